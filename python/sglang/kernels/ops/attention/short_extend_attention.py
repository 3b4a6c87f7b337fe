"""Attention of a ragged batch of short extends: a few new tokens each, on a long paged KV.

``extend_attention_fwd`` walks the whole prefix serially in each (request, head), which is
slow when there are few query rows. Here the KV is split over programs and the query heads of
one KV head share a tile, so each KV byte is read once for them.

Two launches, as in flash-decoding (https://pytorch.org/blog/flash-decoding): each program
computes the softmax-weighted mean of V over one chunk of the KV and the log of its weight,
by the online softmax of Milakov and Gimelshein (arXiv:1805.02867); then the chunks of each
row are averaged by weight.

A row's bits depend on its own query and KV alone, neither on the batch around it nor on how
the tokens were cut into extends:

- Chunks and the tiles in them begin at absolute positions, so a key meets the same
  neighbours in every launch. Keys that a row may not see contribute exact zeros.
- A model shape has one width, one number of warps and one kind of MMA instruction
  (``_tiles``); only the number of rows in a tile varies, and rows do not mix.
- Contraction to FMA is off, so that no compiled variant rounds otherwise.
- The reduce adds a fixed number of chunks at a time, from the first on.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
import triton
import triton.language as tl

# KV tokens in a chunk. It doubles after each 32 chunks: short prompts still fill the device,
# and 128K tokens need no more than 100 partial results a row.
_FIRST_CHUNK = 512
_CHUNKS_PER_LENGTH = 32

_REDUCE_CHUNKS = 16  # partial results that the reduce adds at a time
_REDUCE_WARPS = 4

MAX_LEN_EXTEND = 64  # beyond it the KV is read too often: extend_attention_fwd's case
_MAX_HEAD_DIM = 256
_LOG2E = tl.constexpr(1.4426950408889634)
# Finite, so that rows without a visible key give no NaN on the way; they are never stored.
_NO_SCORE = tl.constexpr(-1.0e30)


class Tiles(NamedTuple):
    """Launch parameters of the chunk kernel for one model shape.

    block_m: query rows (tokens x heads of one KV head) in a tile, smallest first. All of them
        must compile to the same layouts and MMA instructions, see the module's head; on
        Hopper and Blackwell 64 rows would not.
    block_n: keys in a tile; divides the chunks.
    """

    block_m: tuple[int, ...]
    block_n: int
    num_warps: int
    num_stages: int


# By bytes of a query element and padded head dim. An index load precedes each K and V load, so
# five stages are what keeps two tiles of K and V in flight. At most 84 KiB of shared memory.
_TILES = {
    (2, 64): Tiles((16, 32), 64, 4, 5),
    (2, 128): Tiles((16, 32), 32, 4, 5),
    (2, 256): Tiles((16, 32), 32, 4, 5),
    (4, 64): Tiles((16,), 16, 4, 3),
    (4, 128): Tiles((16,), 16, 4, 3),
    (4, 256): Tiles((16,), 16, 4, 3),
}
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@triton.jit
def _chunk_start(chunk, FIRST_CHUNK: tl.constexpr, PER_LENGTH: tl.constexpr):
    """First position of a chunk: those of a shorter length, then those of its own."""
    length = FIRST_CHUNK << (chunk // PER_LENGTH)
    return (length - FIRST_CHUNK) * PER_LENGTH + (chunk % PER_LENGTH) * length


@triton.jit
def _request_of(
    item,
    qo_indptr,
    num_requests,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
):
    """Of an item in the list of all requests' tiles: whose it is, and which of its tiles.

    Past the end of the list the request is ``num_requests`` or more.
    """
    requests = tl.arange(0, BLOCK_REQUESTS)
    is_request = requests < num_requests
    begin = tl.load(qo_indptr + requests, mask=is_request, other=0)
    end = tl.load(qo_indptr + requests + 1, mask=is_request, other=0)
    tiles = (((end - begin) * GROUP + BLOCK_M - 1) // BLOCK_M).to(tl.int32)
    request = tl.sum((tl.cumsum(tiles, 0) <= item).to(tl.int32), 0)
    return request, item - tl.sum(tl.where(requests < request, tiles, 0), 0)


@triton.jit
def _attend_chunk_kernel(
    Q,
    K_Buffer,
    V_Buffer,
    qo_indptr,
    kv_indptr,
    kv_indices,
    Partial_Out,
    Partial_Lse,
    qk_scale,
    num_requests,
    stride_q_token,
    stride_q_head,
    stride_k_slot,
    stride_k_head,
    stride_v_slot,
    stride_v_head,
    stride_po_token,
    stride_po_head,
    stride_po_chunk,
    stride_pl_token,
    stride_pl_head,
    LOGIT_CAP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM_QK: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_DIM_QK: tl.constexpr,
    BLOCK_DIM_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    FIRST_CHUNK: tl.constexpr,
    PER_LENGTH: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    tl.static_assert(FIRST_CHUNK % BLOCK_N == 0, "tiles must begin where chunks do")
    # the heads and tiles that share KV run side by side; the longest chunks start first
    request, tile_m = _request_of(
        tl.program_id(0) // NUM_KV_HEADS, qo_indptr, num_requests, GROUP, BLOCK_M, BLOCK_REQUESTS
    )
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    chunk = tl.num_programs(1) - 1 - tl.program_id(1)
    if request >= num_requests:
        return

    q_begin = tl.load(qo_indptr + request)
    q_len = tl.load(qo_indptr + request + 1) - q_begin
    kv_begin = tl.load(kv_indptr + request)
    kv_len = tl.load(kv_indptr + request + 1) - kv_begin
    prefix_len = kv_len - q_len

    # row = token * GROUP + head within the group
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    position = prefix_len + token
    is_row = token < q_len

    start = _chunk_start(chunk, FIRST_CHUNK, PER_LENGTH)
    end = _chunk_start(chunk + 1, FIRST_CHUNK, PER_LENGTH)
    last_token = tl.minimum(((tile_m + 1) * BLOCK_M - 1) // GROUP, q_len - 1)
    end = tl.minimum(end, prefix_len + last_token + 1)
    if start >= end:
        return

    dim_qk = tl.arange(0, BLOCK_DIM_QK)
    dim_v = tl.arange(0, BLOCK_DIM_V)
    is_dim_qk = dim_qk < DIM_QK
    is_dim_v = dim_v < DIM_V

    q_row = (q_begin + token).to(tl.int64)
    q = tl.load(
        Q + q_row[:, None] * stride_q_token + head[:, None] * stride_q_head + dim_qk,
        mask=is_row[:, None] & is_dim_qk,
        other=0.0,
    )

    row_max = tl.full([BLOCK_M], _NO_SCORE, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DIM_V], tl.float32)
    for n in range(start, end, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)
        is_key = keys < end
        slot = tl.load(kv_indices + kv_begin + keys, mask=is_key, other=0).to(tl.int64)

        # masked as V below, where it matters: other slots may hold NaN, and 0 * NaN is NaN
        k = tl.load(
            K_Buffer + slot[:, None] * stride_k_slot + kv_head * stride_k_head + dim_qk,
            mask=is_key[:, None] & is_dim_qk,
            other=0.0,
        ).to(q.dtype)
        score = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * qk_scale
        if LOGIT_CAP > 0:
            # cap * tanh(score / cap), in base 2 from here on
            tanh = 1.0 - 2.0 / (tl.exp2(score * (2 * _LOG2E / LOGIT_CAP)) + 1.0)
            score = tanh * (LOGIT_CAP * _LOG2E)
        # keys past the end are past the position of each row too
        score = tl.where(keys[None, :] <= position[:, None], score, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(score, 1))
        rescale = tl.exp2(row_max - new_max)
        weight = tl.exp2(score - new_max[:, None])
        row_sum = row_sum * rescale + tl.sum(weight, 1)
        row_max = new_max

        v = tl.load(
            V_Buffer + slot[:, None] * stride_v_slot + kv_head * stride_v_head + dim_v,
            mask=is_key[:, None] & is_dim_v,
            other=0.0,
        ).to(q.dtype)
        acc = acc * rescale[:, None]
        acc = tl.dot(weight.to(q.dtype), v, acc, input_precision=INPUT_PRECISION)

    # rows that end before this chunk have nothing in it, and the reduce does not ask for it
    is_live = is_row & (position >= start)
    tl.store(
        Partial_Out
        + q_row[:, None] * stride_po_token
        + head[:, None] * stride_po_head
        + chunk * stride_po_chunk
        + dim_v,
        acc / row_sum[:, None],
        mask=is_live[:, None] & is_dim_v,
    )
    tl.store(
        Partial_Lse + q_row * stride_pl_token + head * stride_pl_head + chunk,
        row_max + tl.log2(row_sum),
        mask=is_live,
    )


@triton.jit
def _reduce_chunks_kernel(
    Partial_Out,
    Partial_Lse,
    Out,
    qo_indptr,
    kv_indptr,
    v_scale,
    max_chunks,
    num_requests,
    stride_po_token,
    stride_po_head,
    stride_po_chunk,
    stride_pl_token,
    stride_pl_head,
    stride_o_token,
    stride_o_head,
    DIM_V: tl.constexpr,
    BLOCK_DIM_V: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    REDUCE_CHUNKS: tl.constexpr,
    FIRST_CHUNK: tl.constexpr,
    PER_LENGTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    request, token = _request_of(tl.program_id(0), qo_indptr, num_requests, 1, 1, BLOCK_REQUESTS)

    dim = tl.arange(0, BLOCK_DIM_V)
    is_dim = dim < DIM_V
    out = Out + row * stride_o_token + head * stride_o_head + dim
    if request >= num_requests:
        zero = tl.zeros([BLOCK_DIM_V], tl.float32)
        tl.store(out, zero.to(Out.dtype.element_ty), mask=is_dim)
        return
    q_len = tl.load(qo_indptr + request + 1) - tl.load(qo_indptr + request)
    kv_len = tl.load(kv_indptr + request + 1) - tl.load(kv_indptr + request)
    position = kv_len - q_len + token
    if position >= _chunk_start(max_chunks, FIRST_CHUNK, PER_LENGTH):
        # longer than the caller said: a visible error, and no read beyond the scratch
        nan = tl.full([BLOCK_DIM_V], float("nan"), tl.float32)
        tl.store(out, nan.to(Out.dtype.element_ty), mask=is_dim)
        return

    lse_row = Partial_Lse + row * stride_pl_token + head * stride_pl_head
    all_chunks = tl.arange(0, BLOCK_CHUNKS)
    is_live = _chunk_start(all_chunks, FIRST_CHUNK, PER_LENGTH) <= position
    num_live = tl.sum(is_live.to(tl.int32), 0)
    all_lse = tl.load(lse_row + all_chunks, mask=is_live, other=float("-inf"))
    max_lse = tl.max(all_lse, 0)

    weight_sum = 0.0
    acc = tl.zeros([BLOCK_DIM_V], tl.float32)
    out_row = Partial_Out + row * stride_po_token + head * stride_po_head
    for first in range(0, num_live, REDUCE_CHUNKS):
        chunks = first + tl.arange(0, REDUCE_CHUNKS)
        lse = tl.load(lse_row + chunks, mask=chunks < num_live, other=float("-inf"))
        weight = tl.exp2(lse - max_lse)
        partial = tl.load(
            out_row + chunks[:, None] * stride_po_chunk + dim,
            mask=(chunks[:, None] < num_live) & is_dim,
            other=0.0,
        )
        acc += tl.sum(partial * weight[:, None], 0)
        weight_sum += tl.sum(weight, 0)
    acc = acc / weight_sum * v_scale
    tl.store(out, acc.to(Out.dtype.element_ty), mask=is_dim)


def num_kv_chunks(max_len_kv: int) -> int:
    """Chunks that cover ``max_len_kv`` tokens of KV: partial results of a row."""
    chunks, start, length = 0, 0, _FIRST_CHUNK
    while start < max_len_kv:
        left = -(-(max_len_kv - start) // length)
        taken = min(_CHUNKS_PER_LENGTH, left)
        chunks, start, length = chunks + taken, start + taken * length, length * 2
    return chunks


class ShortExtendScratch(NamedTuple):
    """Partial results, float32. Need not be cleared, may be shared by layers.

    out: [tokens, heads, chunks, v_head_dim]
    lse: [tokens, heads, chunks], base 2
    """

    out: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def allocate(
        cls, max_tokens: int, num_heads: int, v_head_dim: int, max_len_kv: int, device
    ) -> ShortExtendScratch:
        """For at most ``max_tokens`` new tokens in a batch, ``max_len_kv`` as in the call.

        About 50 KiB for each token and head at 128K tokens of KV and head dim 128.
        """
        shape = (max_tokens, num_heads, num_kv_chunks(max_len_kv))
        return cls(
            torch.empty((*shape, v_head_dim), dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )


def why_unsupported(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    max_len_extend: int,
    sliding_window_size: int = -1,
) -> Optional[str]:
    """Why ``short_extend_attention_fwd`` refuses this case, or None. Reads no device value."""
    if sliding_window_size is not None and sliding_window_size > -1:
        return "sliding window attention"
    if max_len_extend > MAX_LEN_EXTEND:
        return f"{max_len_extend} new tokens, more than {MAX_LEN_EXTEND}"
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"queries in {q.dtype}"
    for name, buffer in (("k_buffer", k_buffer), ("v_buffer", v_buffer)):
        if buffer.dtype != q.dtype and buffer.dtype not in _FP8:
            return f"{name} in {buffer.dtype} with queries in {q.dtype}"
        if buffer.shape[-1] > _MAX_HEAD_DIM:
            return f"{name} of head dim {buffer.shape[-1]}, more than {_MAX_HEAD_DIM}"
        if (
            buffer.dtype == torch.float8_e4m3fn
            and buffer.is_cuda
            and torch.cuda.get_device_capability(buffer.device) < (8, 9)
        ):
            return f"{name} in {buffer.dtype} on a GPU before sm_89"
    return None


def _tiles(q: torch.Tensor, v_buffer: torch.Tensor) -> Tiles:
    padded = max(64, triton.next_power_of_2(max(q.shape[-1], v_buffer.shape[-1])))
    return _TILES[q.element_size(), padded]


def short_extend_attention_fwd(
    q: torch.Tensor,
    o: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    max_len_extend: int,
    max_len_kv: int,
    sm_scale: Optional[float] = None,
    logit_cap: float = 0.0,
    sliding_window_size: int = -1,
    scratch: Optional[ShortExtendScratch] = None,
) -> None:
    """Causal attention of each request's last tokens over its whole KV, into ``o``.

    The new tokens' KV must already be in the pool. The launches depend on shapes and on the
    two maxima alone, so the call can be captured in a CUDA graph, with ``scratch`` given;
    requests of no new tokens (``qo_indptr`` repeated) and rows after the last are padding.

    Args:
        q: [tokens, heads, qk_head_dim], bf16, fp16 or fp32, the requests one after the other.
        o: [tokens, heads, v_head_dim]. Rows that ``qo_indptr`` does not cover become zero.
        k_buffer, v_buffer: [slots, kv_heads, head_dim], of q's dtype or fp8. fp8 values are
            widened to q's dtype (exact) before the products.
        k_scale, v_scale: what the pool's values are to be multiplied by; 1.0 without fp8.
        qo_indptr: [requests + 1], a request's first row in q.
        kv_indptr: [requests + 1], a request's first entry in kv_indices.
        kv_indices: slots of prefix and new tokens, in the order of positions.
        max_len_extend: most new tokens that a request may have; rows of a longer one are left out.
        max_len_kv: most tokens of KV (prefix and new) that a request may have; the rows of a
            longer one become NaN.
        sm_scale: 1 / sqrt(qk_head_dim) by default.
        logit_cap: scores become ``cap * tanh(score / cap)``; 0 for none.
        scratch: ``ShortExtendScratch.allocate``; allocated here by default.

    Raises:
        ValueError: the case is not supported (``why_unsupported``), the shapes do not fit
            together, or scratch is too small.
    """
    if reason := why_unsupported(q, k_buffer, v_buffer, max_len_extend, sliding_window_size):
        raise ValueError(f"short extend attention does not support {reason}")
    tokens, num_heads, dim_qk = q.shape
    slots, num_kv_heads, dim_v = v_buffer.shape
    requests = qo_indptr.shape[0] - 1
    if (
        k_buffer.shape != (slots, num_kv_heads, dim_qk)
        or o.shape != (tokens, num_heads, dim_v)
        or num_heads % num_kv_heads
        or kv_indptr.shape[0] != requests + 1
    ):
        raise ValueError(
            f"shapes do not fit together: q {tuple(q.shape)}, o {tuple(o.shape)}, "
            f"k_buffer {tuple(k_buffer.shape)}, v_buffer {tuple(v_buffer.shape)}, "
            f"qo_indptr {tuple(qo_indptr.shape)}, kv_indptr {tuple(kv_indptr.shape)}"
        )
    if any(t.stride(-1) != 1 for t in (q, o, k_buffer, v_buffer)):
        raise ValueError("the last dimension of q, o, k_buffer and v_buffer must be contiguous")
    chunks = num_kv_chunks(max_len_kv)
    if scratch is None:
        scratch = ShortExtendScratch.allocate(tokens, num_heads, dim_v, max_len_kv, q.device)
    elif (
        scratch.out.shape[0] < tokens
        or scratch.out.shape[2] < chunks
        or scratch.out.shape[1::2] != (num_heads, dim_v)
    ):
        raise ValueError(
            f"scratch {tuple(scratch.out.shape)} is too small for {tokens} tokens, "
            f"{num_heads} heads, {chunks} chunks and head dim {dim_v}"
        )
    if not tokens or not requests or max_len_extend < 1:
        return

    group = num_heads // num_kv_heads
    tiles = _tiles(q, v_buffer)
    rows = max_len_extend * group
    block_m = next((m for m in tiles.block_m if rows <= m), tiles.block_m[-1])
    # each request may have one tile that is not full, and none has more than the longest
    max_tiles = min(
        (tokens * group + requests * (block_m - 1)) // block_m,
        requests * triton.cdiv(rows, block_m),
    )
    block_requests = triton.next_power_of_2(requests)
    qk_scale = (dim_qk**-0.5 if sm_scale is None else sm_scale) * k_scale
    if not logit_cap > 0:
        qk_scale *= _LOG2E.value
    chunking = {"FIRST_CHUNK": _FIRST_CHUNK, "PER_LENGTH": _CHUNKS_PER_LENGTH}

    _attend_chunk_kernel[(max_tiles * num_kv_heads, chunks)](
        q,
        k_buffer,
        v_buffer,
        qo_indptr,
        kv_indptr,
        kv_indices,
        scratch.out,
        scratch.lse,
        qk_scale,
        requests,
        q.stride(0),
        q.stride(1),
        k_buffer.stride(0),
        k_buffer.stride(1),
        v_buffer.stride(0),
        v_buffer.stride(1),
        scratch.out.stride(0),
        scratch.out.stride(1),
        scratch.out.stride(2),
        scratch.lse.stride(0),
        scratch.lse.stride(1),
        LOGIT_CAP=float(logit_cap),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        DIM_QK=dim_qk,
        DIM_V=dim_v,
        BLOCK_DIM_QK=triton.next_power_of_2(dim_qk),
        BLOCK_DIM_V=triton.next_power_of_2(dim_v),
        BLOCK_M=block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_REQUESTS=block_requests,
        # float32 models ask for float32 products
        INPUT_PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        enable_fp_fusion=False,
        **chunking,
    )
    _reduce_chunks_kernel[(tokens, num_heads)](
        scratch.out,
        scratch.lse,
        o,
        qo_indptr,
        kv_indptr,
        v_scale,
        chunks,
        requests,
        scratch.out.stride(0),
        scratch.out.stride(1),
        scratch.out.stride(2),
        scratch.lse.stride(0),
        scratch.lse.stride(1),
        o.stride(0),
        o.stride(1),
        DIM_V=dim_v,
        BLOCK_DIM_V=triton.next_power_of_2(dim_v),
        BLOCK_CHUNKS=triton.next_power_of_2(chunks),
        BLOCK_REQUESTS=block_requests,
        REDUCE_CHUNKS=_REDUCE_CHUNKS,
        num_warps=_REDUCE_WARPS,
        enable_fp_fusion=False,
        **chunking,
    )
