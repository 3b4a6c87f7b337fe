"""Replay rounds of a decode worker with seamless handoff, in the torch_native backend.

The torch_native backend's extend computes every row of the sequence, O(L^2) for a prefix
of L tokens. A replay round has a few rows: this path computes just those, O(q * L).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class TorchNativeShortExtend:
    """Runs an extend with few rows and a long prefix; what it can't is the backend's."""

    def __init__(self, backend: TorchNativeAttnBackend) -> None:
        self._backend = backend

    def forward(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
    ) -> bool:
        """Causal attention of ``layer`` into ``output``; False with a sliding window or an encoder.

        Args:
            query, output: [tokens, heads, head_dim]. The new tokens' KV is in the pool.
        """
        window = layer.sliding_window_size
        if forward_batch.encoder_lens is not None or (window is not None and window >= 0):
            return False
        pool = self._backend.token_to_kv_pool
        short_extend_sdpa(
            query,
            output,
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            self._backend.req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices,
            forward_batch.seq_lens,
            forward_batch.extend_seq_lens,
            scaling=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )
        return True


def short_extend_sdpa(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    *,
    scaling: Optional[float],
    enable_gqa: bool,
) -> torch.Tensor:
    """Causal attention of each sequence's last ``extend_seq_lens`` tokens over its whole KV.

    The new tokens' KV must already be in the cache.

    Args:
        query, output: [tokens, heads, head_dim], the sequences one after the other.
        k_cache, v_cache: [slots, kv_heads, head_dim].
        req_to_token: [rows, max_context], slot of each position.
        req_pool_indices, seq_lens, extend_seq_lens: [sequences]; seq_lens counts prefix and new.

    Returns:
        ``output``, filled.
    """
    start = 0
    lens = zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist())
    for row, kv_len, q_len in lens:
        slots = req_to_token[row, :kv_len]
        q = query[start : start + q_len].movedim(0, 1).unsqueeze(0)
        k = k_cache[slots].movedim(0, 1).unsqueeze(0).to(q.dtype)
        v = v_cache[slots].movedim(0, 1).unsqueeze(0).to(q.dtype)
        mask = None
        if q_len > 1:
            # Row i sits at position kv_len - q_len + i and sees every key up to itself.
            mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(
                kv_len - q_len
            )
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scaling, enable_gqa=enable_gqa
        )
        output[start : start + q_len] = out.squeeze(0).movedim(1, 0)
        start += q_len
    return output
