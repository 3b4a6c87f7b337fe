"""Replay rounds of a decode worker with seamless handoff, in the Triton backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

import torch

from sglang.kernels.ops.attention.short_extend_attention import (
    ShortExtendScratch,
    short_extend_attention_fwd,
    why_unsupported,
)

if TYPE_CHECKING:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class _Metadata(NamedTuple):
    """One forward's, shared by its layers. Lengths in tokens."""

    forward_batch: ForwardBatch
    kv_indptr: torch.Tensor  # [requests + 1], over prefix and new tokens
    kv_indices: torch.Tensor  # [sum of KV lengths], slots
    max_len_extend: int
    max_len_kv: int
    scratch: ShortExtendScratch


class TritonShortExtend:
    """Runs an extend by the short extend kernel where it can; the backend's own kernels do the rest."""

    def __init__(self, backend: TritonAttnBackend) -> None:
        self._backend = backend
        self._metadata: Optional[_Metadata] = None

    def forward(
        self,
        q: torch.Tensor,
        o: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        logit_cap: float,
    ) -> bool:
        """Attention of ``layer`` into ``o``; False if this is no case for the kernel.

        Args:
            q, o: [tokens, heads * head_dim]. The new tokens' KV is in the pool.
        """
        lens = forward_batch.extend_seq_lens_cpu
        if (
            not forward_batch.forward_mode.is_extend_without_speculative()
            or lens is None
            or forward_batch.seq_lens_cpu is None
            or layer.xai_temperature_len > 0
        ):
            return False
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        pool = self._backend.token_to_kv_pool
        k_buffer = pool.get_key_buffer(layer.layer_id)
        v_buffer = pool.get_value_buffer(layer.layer_id)
        if why_unsupported(q, k_buffer, v_buffer, max(lens), layer.sliding_window_size):
            return False
        metadata = self._metadata_of(forward_batch, layer, q)
        scaled = layer.k_scale is not None and layer.v_scale is not None
        short_extend_attention_fwd(
            q,
            o.view(-1, layer.tp_q_head_num, layer.v_head_dim),
            k_buffer,
            v_buffer,
            layer.k_scale_float if scaled else 1.0,
            layer.v_scale_float if scaled else 1.0,
            self._backend.forward_metadata.qo_indptr,
            metadata.kv_indptr,
            metadata.kv_indices,
            metadata.max_len_extend,
            metadata.max_len_kv,
            sm_scale=layer.scaling,
            logit_cap=logit_cap,
            scratch=metadata.scratch,
        )
        return True

    def _metadata_of(
        self, forward_batch: ForwardBatch, layer: RadixAttention, q: torch.Tensor
    ) -> _Metadata:
        if (
            self._metadata is not None
            and self._metadata.forward_batch is forward_batch
        ):
            return self._metadata
        lens = forward_batch.seq_lens_cpu.tolist()
        requests, device = len(lens), q.device
        kv_indices = torch.empty(sum(lens), dtype=torch.int64, device=device)
        kv_indptr = self._backend._fill_kv_indptr_and_indices(
            forward_batch.kv_loc_plan,
            requests,
            forward_batch.seq_lens,
            forward_batch.req_pool_indices,
            kv_indices,
            torch.zeros(requests + 1, dtype=torch.int32, device=device),
        )
        self._metadata = _Metadata(
            forward_batch,
            kv_indptr,
            kv_indices,
            max(forward_batch.extend_seq_lens_cpu),
            max(lens),
            ShortExtendScratch.allocate(
                q.shape[0], layer.tp_q_head_num, layer.v_head_dim, max(lens), device
            ),
        )
        return self._metadata
