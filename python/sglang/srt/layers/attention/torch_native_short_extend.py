"""Attention of a few new tokens on top of a long prefix, by torch's own SDPA.

The torch_native backend's extend computes every row of the sequence, O(L^2) for a prefix
of L tokens. A replay round has a few rows: this path computes just those, O(q * L).
"""

from __future__ import annotations

from typing import Optional

import torch
from torch.nn.functional import scaled_dot_product_attention


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
