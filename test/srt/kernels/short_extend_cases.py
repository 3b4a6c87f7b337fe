"""Short extend attention against float64, against SGLang's extend, and against itself cut otherwise.

On a GPU when there is one, else in Triton's interpreter, which must be alone in its process:
`python -m pytest test/srt/kernels/short_extend_cases.py`. There, races and what is read beyond a buffer don't show.
"""

import math
from dataclasses import dataclass

import pytest
import torch

GPU = torch.cuda.is_available()
if not GPU:
    import triton_interpreter

    triton_interpreter.use()

from sglang.kernels.ops.attention import short_extend_attention as short

DEVICE = "cuda" if GPU else "cpu"
F32, F16, BF16, E4M3 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
# relative to 1 + |expected|: rounding of the output, and of the softmax weights before the second product
TOLERANCE = {F32: 1e-5, F16: 1e-3, BF16: 8e-3}
NAN = float("nan")
# rows that are never stored come to 0 / 0
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@dataclass
class Batch:
    """`extends`: (prefix, new) tokens of each request. Slots are scattered; those of nobody hold NaN."""

    extends: list
    q: torch.Tensor
    k_buffer: torch.Tensor
    v_buffer: torch.Tensor
    slots: list  # of each request, in the order of positions
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def dims(self):
        return self.q.shape[1], self.v_buffer.shape[2]

    @property
    def qo_indptr(self):
        return indptr(new for _, new in self.extends)

    @property
    def kv_indptr(self):
        return indptr(prefix + new for prefix, new in self.extends)

    def run(self, max_len_extend=None, max_len_kv=None, scratch=None, o=None, **kwargs):
        """The kernel's output, float32, rows of nobody included. Scratch is full of NaN."""
        max_len_kv = max_len_kv or max(prefix + new for prefix, new in self.extends)
        if scratch is None:
            scratch = short.ShortExtendScratch.allocate(len(self.q), *self.dims, max_len_kv, DEVICE)
        for part in scratch:
            part.fill_(NAN)
        o = torch.full((len(self.q), *self.dims), 7.0, dtype=self.q.dtype, device=DEVICE) if o is None else o
        short.short_extend_attention_fwd(
            *(self.q, o, self.k_buffer, self.v_buffer, self.k_scale, self.v_scale),
            *(self.qo_indptr, self.kv_indptr, torch.cat(self.slots)),
            *(max_len_extend or max(new for _, new in self.extends), max_len_kv),
            scratch=scratch,
            **kwargs,
        )
        return o.float().cpu()

    def expected(self, sm_scale=None, logit_cap=0.0):
        """By float64 on the CPU."""
        out, first = [], 0
        group = self.q.shape[1] // self.k_buffer.shape[1]
        scale = self.q.shape[2] ** -0.5 if sm_scale is None else sm_scale
        for (prefix, new), slots in zip(self.extends, self.slots):
            k, v = (
                (b[slots].cpu().double() * s).repeat_interleave(group, 1)
                for b, s in ((self.k_buffer, self.k_scale), (self.v_buffer, self.v_scale))
            )
            score = torch.einsum("qhd,khd->hqk", self.q[first : first + new].cpu().double(), k) * scale
            if logit_cap:
                score = logit_cap * torch.tanh(score / logit_cap)
            hidden = torch.ones(new, prefix + new, dtype=torch.bool).triu(prefix + 1)
            weight = score.masked_fill(hidden, -math.inf).softmax(-1)
            out.append(torch.einsum("hqk,khd->qhd", weight, v))
            first += new
        return torch.cat(out)


def indptr(lens):
    return torch.tensor([0, *lens], dtype=torch.int32, device=DEVICE).cumsum(0, dtype=torch.int32)


def batch(extends, heads=2, kv_heads=1, dim=64, dim_v=None, dtype=F32, kv_dtype=None, seed=0, scale=1.0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    lens = [prefix + new for prefix, new in extends]
    slots = torch.randperm(sum(lens) + 40, generator=draw)
    mine, other = slots[: sum(lens)], slots[sum(lens) :]
    if 0 in mine:  # what masked loads point at
        mine[mine == 0], other[0] = int(other[0]), 0
    buffers = []
    for width in (dim, dim_v or dim):
        buffer = torch.randn(len(slots), kv_heads, width, generator=draw) * scale
        buffer[other] = NAN
        buffers.append(buffer.to(dtype if kv_dtype is None else kv_dtype).to(DEVICE))
    q = torch.randn(sum(new for _, new in extends), heads, dim, generator=draw).to(dtype).to(DEVICE)
    return Batch(extends, q, *buffers, list(mine.to(DEVICE).split(lens)))


def assert_close(got, expected, dtype):
    assert got.shape == expected.shape and not got.isnan().any()
    error = ((got - expected).abs() / (1 + expected.abs())).max().item()
    assert error < TOLERANCE[dtype], f"error {error:.2e}"


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 64, 64, 128, 128, 256, ... tokens: many of them, and of all lengths, in a short prompt."""
    monkeypatch.setattr(short, "_FIRST_CHUNK", 64)
    monkeypatch.setattr(short, "_CHUNKS_PER_LENGTH", 2)


RAGGED = [(63, 1), (0, 1), (64, 2), (127, 2), (390, 1), (0, 3)]


@pytest.mark.parametrize(
    "dtype, heads, kv_heads", [(F32, 2, 2), (BF16, 9, 3), (F16, 8, 2), (F32, 5, 1), (BF16, 8, 1), (F32, 6, 2)]
)
def test_ragged_batch(small_chunks, dtype, heads, kv_heads):
    """Prefixes around chunk boundaries and none at all, each size of group."""
    case = batch(RAGGED, heads, kv_heads, dtype=dtype)
    assert_close(case.run(), case.expected(), dtype)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_several_tiles_of_rows(small_chunks, dtype):
    """A token's heads lie in two tiles: 3 does not divide 16 or 32."""
    case = batch([(120, 17), (0, 12)], 3, 1, dtype=dtype)
    assert_close(case.run(), case.expected(), dtype)


def test_most_new_tokens(small_chunks):
    case = batch([(100, short.MAX_LEN_EXTEND)], 2, 2, dtype=F16)
    assert_close(case.run(), case.expected(), F16)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("dim, dim_v", [(80, 80), (96, 96), (128, 128), (256, 256), (128, 64), (48, 80)])
def test_head_dims(small_chunks, dtype, dim, dim_v):
    case = batch([(100, 3), (0, 2)], dim=dim, dim_v=dim_v, dtype=dtype)
    assert_close(case.run(), case.expected(), dtype)


@pytest.mark.parametrize("dtype", [F32, F16])
def test_chunks_of_the_real_length(dtype):
    """One token before, at and after their boundaries."""
    case = batch([(510, 1), (511, 1), (512, 1), (1030, 2)], 1, 1, dtype=dtype)
    assert_close(case.run(), case.expected(), dtype)


def test_long_prefix_reaches_the_longer_chunks():
    case = batch([(short._FIRST_CHUNK * short._CHUNKS_PER_LENGTH + 1500, 1)], 1, 1, dtype=F16)
    assert_close(case.run(), case.expected(), F16)


@pytest.mark.parametrize("cap", [2.0, 30.0])
def test_logit_cap(small_chunks, cap):
    case = batch([(150, 6), (0, 3)], scale=3.0)
    expected = case.expected(logit_cap=cap)
    assert (expected - case.expected()).abs().max() > 0.01
    assert_close(case.run(logit_cap=cap), expected, F32)


@pytest.mark.parametrize("sm_scale", [0.0, 0.5])
def test_given_scale(small_chunks, sm_scale):
    case = batch([(150, 6), (0, 3)])
    assert_close(case.run(sm_scale=sm_scale), case.expected(sm_scale), F32)


def test_scores_far_apart(small_chunks):
    """Each chunk's weights are tiny or huge beside another's: they must be rescaled, not just summed."""
    case = batch([(900, 2)], scale=4.0)
    assert_close(case.run(), case.expected(), F32)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_fp8_pool(small_chunks, dtype):
    case = batch([(150, 6), (0, 3)], dtype=dtype, kv_dtype=E4M3)
    case.k_scale, case.v_scale = 0.5, 0.25
    assert_close(case.run(), case.expected(), dtype)


def test_views_of_a_larger_tensor(small_chunks):
    """Parts of wider tensors, the pool as one layer of a stack: strides are obeyed, and padding of the head dim is not
    read."""
    case = batch([(150, 3), (0, 2)], dim=80)
    expected = case.expected()

    def view(tensor):
        return torch.stack([tensor, torch.full_like(tensor, NAN)], -2).flatten(-2)[..., : tensor.shape[-1]]

    case.q, case.v_buffer = view(case.q), view(case.v_buffer)
    case.k_buffer = view(torch.stack([torch.full_like(case.k_buffer, NAN), case.k_buffer], 1))[:, 1]
    assert not case.q.is_contiguous() and not case.k_buffer.is_contiguous()
    assert_close(case.run(), expected, F32)


# What a row is must depend on nothing but its query and its KV.


def cut(case: Batch, request: int, rounds) -> Batch:
    """The same new tokens in several extends, as a list of batches of this request alone."""
    (prefix, new), first = case.extends[request], sum(n for _, n in case.extends[:request])
    assert sum(rounds) == new
    for size in rounds:
        end = prefix + size
        later = case.slots[request][end:]
        k, v = case.k_buffer.clone(), case.v_buffer.clone()
        k[later], v[later] = NAN, NAN  # not written yet
        yield Batch([(prefix, size)], case.q[first : first + size], k, v, [case.slots[request][:end]])
        prefix, first = end, first + size


@pytest.mark.parametrize("dtype, prefix", [(F32, 0), (F16, 58), (BF16, 185)])
@pytest.mark.parametrize("rounds", [[1] * 9, [4, 5], [8, 1], [2, 7]], ids=str)
def test_bits_do_not_depend_on_the_cut_into_rounds(small_chunks, dtype, prefix, rounds):
    """4 heads: up to four tokens lie in the tile of 16 rows, nine in two tiles of 32."""
    case = batch([(prefix, 9)], 4, 1, dtype=dtype)
    assert torch.equal(torch.cat([part.run() for part in cut(case, 0, rounds)]), case.run())


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_bits_do_not_depend_on_the_batch(small_chunks, dtype):
    case = batch([*RAGGED, (100, 9)], 4, 1, dtype=dtype)
    alone = [next(cut(case, n, [new])).run() for n, (_, new) in enumerate(case.extends)]
    assert torch.equal(torch.cat(alone), case.run())


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_bits_do_not_depend_on_the_maxima(small_chunks, dtype):
    """As a captured graph has them: larger than the batch in it."""
    case = batch([(450, 2), (0, 3)], dtype=dtype)
    assert torch.equal(case.run(max_len_extend=20, max_len_kv=5000), case.run())


def test_many_requests_of_many_lengths(small_chunks):
    """More tiles than requests, and more requests than a power of two."""
    case = batch([(3 * n % 70, 1 + 7 * n % 19) for n in range(37)], 3, 1)
    assert_close(case.run(), case.expected(), F32)


def test_bits_do_not_depend_on_the_maxima_at_the_real_chunk_length():
    case = batch([(1100, 1)], 1, 1, dtype=F16)
    assert torch.equal(case.run(max_len_extend=2, max_len_kv=131072), case.run())


# The contract around the arithmetic.


def test_padding_requests_have_no_rows_and_rows_of_nobody_are_zero(small_chunks):
    case = batch([(150, 6), (0, 3)])
    expected = case.expected()
    case.q = torch.cat([case.q, torch.full_like(case.q[:5], NAN)])
    case.extends, case.slots = [*case.extends, (0, 0), (0, 0)], [*case.slots, case.slots[0][:0], case.slots[0][:0]]
    got = case.run()
    assert_close(got[:9], expected, F32)
    assert (got[9:] == 0.0).all()


def test_requests_without_new_tokens_lie_anywhere(small_chunks):
    case = batch([(0, 0), (150, 6), (70, 0), (0, 0), (0, 3), (5, 0)])
    assert_close(case.run(), case.expected(), F32)


def test_larger_scratch_of_other_batches_is_used(small_chunks):
    case = batch([(150, 6), (0, 3)])
    scratch = short.ShortExtendScratch.allocate(50, *case.dims, 9000, DEVICE)
    assert torch.equal(case.run(scratch=scratch), case.run())


def test_a_longer_request_than_announced_is_nan_and_the_others_are_right(small_chunks):
    case = batch([(50, 3), (126, 4)])
    got = case.run(max_len_kv=128)  # positions 126 to 129
    assert_close(got[:5], case.expected()[:5], F32)
    assert got[5:].isnan().all()


@pytest.mark.parametrize("max_len", [0, 1, 63, 64, 65, 128, 129, 256, 257, 384, 5000])
def test_chunks_cover_the_kv_and_no_more(small_chunks, max_len):
    lengths = [64 << n // 2 for n in range(40)]
    assert short.num_kv_chunks(max_len) == next(n for n in range(40) if sum(lengths[:n]) >= max_len)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(sliding_window_size=128), "sliding window"),
        (dict(max_len_extend=65), "65 new tokens"),
        (dict(scratch=short.ShortExtendScratch.allocate(8, 2, 64, 156, DEVICE)), "too small"),
        (dict(scratch=short.ShortExtendScratch.allocate(9, 2, 32, 156, DEVICE)), "too small"),
        (dict(max_len_kv=2000, scratch=short.ShortExtendScratch.allocate(9, 2, 64, 156, DEVICE)), "too small"),
        (dict(o=torch.empty(9, 2, 32, device=DEVICE)), "do not fit"),
        (dict(o=torch.empty(9, 64, 2, device=DEVICE).mT), "contiguous"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(change, words):
    with pytest.raises(ValueError, match=words):
        batch([(150, 6), (0, 3)]).run(**change)


@pytest.mark.parametrize(
    "how, words",
    [
        (dict(dtype=torch.float64), "queries in"),
        (dict(kv_dtype=F16), "k_buffer in torch.float16"),
        (dict(dim=288), "head dim 288"),
        (dict(heads=5, kv_heads=2), "do not fit"),
    ],
    ids=str,
)
def test_refused_types_and_shapes(how, words):
    with pytest.raises(ValueError, match=words):
        batch([(150, 6), (0, 3)], **how).run()


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_equals_upstreams_extend(dtype, cap):
    """extend_attention_fwd takes the new tokens' K and V apart from the pool, and the prefix' slots alone."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    case = batch([(63, 1), (0, 9), (130, 7)], 4, 2, dtype=dtype)
    new = torch.cat([slots[prefix:] for (prefix, _), slots in zip(case.extends, case.slots)])
    prefix = torch.cat([slots[:prefix] for (prefix, _), slots in zip(case.extends, case.slots)])
    o = torch.empty_like(case.q)
    extend_attention_fwd(
        *(case.q, case.k_buffer[new], case.v_buffer[new], o, case.k_buffer, case.v_buffer),
        *(case.qo_indptr, indptr(prefix for prefix, _ in case.extends), prefix),
        *(None, True, None, 9, 1.0, 1.0),
        logit_cap=cap,
    )
    assert_close(case.run(logit_cap=cap), o.float().cpu(), dtype)
