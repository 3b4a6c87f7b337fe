"""Replay rounds of a decode worker with seamless handoff, in the Triton backend."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple, Optional

import torch

from sglang.kernels.ops.attention.short_extend_attention import (
    MAX_LEN_EXTEND,
    ShortExtendScratch,
    short_extend_attention_fwd,
    why_unsupported,
)
from sglang.srt.runtime_context import get_exec

if TYPE_CHECKING:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class _Metadata(NamedTuple):
    """One forward's, shared by its layers. Lengths in tokens."""

    qo_indptr: torch.Tensor  # [requests + 1], over new tokens
    kv_indptr: torch.Tensor  # [requests + 1], over prefix and new tokens
    kv_indices: torch.Tensor  # [sum of KV lengths or more], slots
    max_len_extend: int
    max_len_kv: int
    scratches: dict[tuple[int, int], ShortExtendScratch]  # by heads and v_head_dim

    def scratch_for(self, q: torch.Tensor, layer: RadixAttention) -> ShortExtendScratch:
        shape = layer.tp_q_head_num, layer.v_head_dim
        if shape not in self.scratches:
            self.scratches[shape] = ShortExtendScratch.allocate(
                q.shape[0], *shape, self.max_len_kv, q.device
            )
        return self.scratches[shape]


class TritonShortExtend:
    """Runs an extend by the short extend kernel where it can; the backend's own kernels do the
    rest. The graphs of a full prefill CUDA graph are the kernel's alone."""

    def __init__(self, backend: TritonAttnBackend) -> None:
        self._backend = backend
        self._forward_batch: Optional[ForwardBatch] = None
        self._metadata: Optional[_Metadata] = None  # of _forward_batch, which runs eagerly
        self._graph_metadata: Optional[_Metadata] = None  # at the addresses that graphs read

    def forward(
        self,
        q: torch.Tensor,
        o: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        logit_cap: float,
        plain: bool,
    ) -> bool:
        """Attention of ``layer`` into ``o``; False if this is no case for the kernel.

        Args:
            q, o: [tokens, heads * head_dim]. The new tokens' KV is in the pool.
            plain: causal, without sinks and score_mod.

        Raises:
            ValueError: no case for the kernel while a graph is captured.
        """
        capturing = forward_batch.full_prefill_cuda_graph_capture
        if reason := self._why_not(q, layer, forward_batch, plain):
            if capturing:
                raise _graph_refusal(reason)
            return False
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        pool = self._backend.token_to_kv_pool
        metadata = self._graph_metadata if capturing else self._metadata_of(forward_batch)
        scaled = layer.k_scale is not None and layer.v_scale is not None
        short_extend_attention_fwd(
            q,
            o.view(-1, layer.tp_q_head_num, layer.v_head_dim),
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            layer.k_scale_float if scaled else 1.0,
            layer.v_scale_float if scaled else 1.0,
            metadata.qo_indptr,
            metadata.kv_indptr,
            metadata.kv_indices,
            metadata.max_len_extend,
            metadata.max_len_kv,
            sm_scale=layer.scaling,
            logit_cap=logit_cap,
            scratch=metadata.scratch_for(q, layer),
        )
        return True

    def init_graph_metadata(self, forward_batch: ForwardBatch, in_capture: bool) -> bool:
        """Metadata of ``forward_batch`` where a captured extend reads it; False for other modes.

        Args:
            forward_batch: with as many requests in each call as graphs have request slots;
                unused ones have no tokens and no KV.

        Raises:
            ValueError: in a capture, when the kernel can't serve all that the graph would.
        """
        if not forward_batch.forward_mode.is_extend_without_speculative():
            return False
        self._forward_batch = self._metadata = None  # an eager round's scratch may be large
        if in_capture:
            self._prepare_capture(forward_batch)
        graph, backend = self._graph_metadata, self._backend
        graph.qo_indptr[1:] = torch.cumsum(forward_batch.extend_seq_lens, dim=0)
        backend._fill_kv_indptr_and_indices(
            forward_batch.kv_loc_plan,
            forward_batch.batch_size,
            forward_batch.seq_lens,
            forward_batch.req_pool_indices,
            graph.kv_indices,
            graph.kv_indptr,
        )
        return True

    def _why_not(
        self, q: torch.Tensor, layer: RadixAttention, forward_batch: ForwardBatch, plain: bool
    ) -> Optional[str]:
        if not plain or layer.xai_temperature_len > 0:
            return "attention with sinks, a temperature, a score_mod or keys after the query"
        lens = forward_batch.extend_seq_lens_cpu
        if (
            not forward_batch.forward_mode.is_extend_without_speculative()
            or lens is None
            or forward_batch.seq_lens_cpu is None
        ):
            return "a batch that is no extend, or whose lengths the host doesn't know"
        pool = self._backend.token_to_kv_pool
        return why_unsupported(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            max(lens),
            layer.sliding_window_size,
        )

    def _prepare_capture(self, forward_batch: ForwardBatch) -> None:
        from sglang.srt.layers.attention.triton_backend import ForwardMetadata

        backend = self._backend
        bucket = forward_batch.extend_num_tokens
        if backend.enable_deterministic:
            raise _graph_refusal("--enable-deterministic-inference")
        if backend.use_sliding_window_kv_pool:
            raise _graph_refusal("sliding window attention")
        if bucket > MAX_LEN_EXTEND:
            # one request may fill the bucket, and nothing could send it elsewhere at replay
            raise _graph_refusal(f"the bucket of {bucket} tokens, more than {MAX_LEN_EXTEND}")
        # what reads anything else of it in a capture fails there, not in a replay
        backend.forward_metadata = ForwardMetadata(
            **{field.name: None for field in fields(ForwardMetadata)}
        )
        if self._graph_metadata is None:
            self._graph_metadata = self._graph_buffers(forward_batch.batch_size, bucket)
        self._graph_metadata = self._graph_metadata._replace(max_len_extend=bucket)

    def _graph_buffers(self, requests: int, bucket: int) -> _Metadata:
        backend, device = self._backend, self._backend.device
        max_len_kv = min(backend.max_context_len, backend.token_to_kv_pool.size)
        if limit := get_exec().graph.cuda_graph_config.prefill.max_seq_len:
            max_len_kv = min(max_len_kv, limit)
        max_len_kv = max(max_len_kv, bucket)  # the dummy request's
        return _Metadata(
            torch.zeros(requests + 1, dtype=torch.int64, device=device),
            torch.zeros(requests + 1, dtype=torch.int32, device=device),
            torch.zeros(requests * max_len_kv, dtype=torch.int64, device=device),
            0,
            max_len_kv,
            {},
        )

    def _metadata_of(self, forward_batch: ForwardBatch) -> _Metadata:
        if self._forward_batch is forward_batch:
            return self._metadata
        backend, lens = self._backend, forward_batch.seq_lens_cpu.tolist()
        kv_indices = torch.empty(sum(lens), dtype=torch.int64, device=backend.device)
        kv_indptr = backend._fill_kv_indptr_and_indices(
            forward_batch.kv_loc_plan,
            len(lens),
            forward_batch.seq_lens,
            forward_batch.req_pool_indices,
            kv_indices,
            torch.zeros(len(lens) + 1, dtype=torch.int32, device=backend.device),
        )
        self._forward_batch = forward_batch
        self._metadata = _Metadata(
            backend.forward_metadata.qo_indptr,
            kv_indptr,
            kv_indices,
            max(forward_batch.extend_seq_lens_cpu),
            max(lens),
            {},
        )
        return self._metadata


def _graph_refusal(what: str) -> ValueError:
    return ValueError(
        "With --disaggregation-seamless-handoff a decode worker's full prefill CUDA graphs run the "
        f"short extend kernel, which does not support {what}. In --cuda-graph-config, set prefill's "
        f"bs to buckets of at most {MAX_LEN_EXTEND} tokens, or its backend to breakable or disabled."
    )
