"""Every tile of the short extend's table compiles for Ampere, Hopper and Blackwell, without spills, without a GPU.

And the argument why a row's bits do not depend on the tile it is in: all tiles of a model shape have one layout and
one kind of tensor core instruction. Of a Triton of another release this must be shown again. Run with -s to see the table.
"""

import re

import pytest
import torch
import triton
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=60, suite="stage-b-test-cpu")

if triton.knobs.runtime.interpret:
    pytest.skip("the interpreter is on, so nothing is compiled", allow_module_level=True)

from compiled_launches import compile_launch, recorded
from sglang.kernels.ops.attention import short_extend_attention as short

SHARED_LIMIT = 99 * 1024  # of a block on sm_86 and sm_89, the smallest
E4M3 = torch.float8_e4m3fn


def launches(dtype, dim, tokens, *, longest=None, kv_dtype=None, max_len_kv=32768, heads=32, kv_heads=8, logit_cap=0.0, requests=8):
    """The chunk launch and the reduce launch of a call. Shapes and types count, values are not read."""
    q = torch.empty(tokens, heads, dim, dtype=dtype, device="meta")
    kv = torch.empty(1024, kv_heads, dim, dtype=kv_dtype or dtype, device="meta")
    indptr = torch.empty(requests + 1, dtype=torch.int32, device="meta")
    indices = torch.empty(1024, dtype=torch.int64, device="meta")
    with recorded(short, "_attend_chunk_kernel", "_reduce_chunks_kernel") as found:
        short.short_extend_attention_fwd(
            *(q, torch.empty_like(q), kv, kv, 0.5, 0.5, indptr, indptr, indices, longest or tokens, max_len_kv),
            logit_cap=logit_cap,
        )
    return found


def show(arch, what, compiled):
    print(
        f"sm_{arch} {what:<38} {compiled.registers:>3} registers {compiled.spilled:>4} B spilled "
        f"{compiled.shared:>6} B shared {' '.join(sorted(compiled.mma)) or '-'}"
    )


def check(arch, what, launch):
    compiled = compile_launch(launch, arch)
    show(arch, what, compiled)
    assert compiled.spilled == 0, f"{what} spills {compiled.spilled} B"
    assert compiled.shared <= SHARED_LIMIT, f"{what} wants {compiled.shared} B of shared memory"
    return compiled


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("size, padded", short._TILES)
def test_no_tile_spills_and_all_tiles_of_a_shape_are_alike(arch, size, padded):
    tiles = short._TILES[size, padded]
    dtype = torch.bfloat16 if size == 2 else torch.float32
    seen = []
    for block_m in tiles.block_m:
        chunk, _ = launches(dtype, padded, block_m // 4)
        assert chunk.kwargs["BLOCK_M"] == block_m
        seen.append(check(arch, f"{dtype}, D {padded}, {block_m} x {tiles.block_n} rows", chunk))
    assert len({(one.mma, one.mma_layouts) for one in seen}) == 1
    # mma.sync alone: wgmma and tcgen05 take 64 rows and more, and may add up in another order
    assert all("mma.sync" in name for one in seen for name in one.mma)
    assert bool(seen[0].mma) == (size == 2)


@pytest.mark.parametrize(
    "arch, what",
    [
        (80, dict(dtype=torch.float16, dim=80)),
        (90, dict(dtype=torch.bfloat16, dim=96, logit_cap=30.0)),
        (90, dict(dtype=torch.bfloat16, dim=128, kv_dtype=E4M3)),
        (100, dict(dtype=torch.bfloat16, dim=256, kv_dtype=E4M3)),
        (90, dict(dtype=torch.bfloat16, dim=64, heads=9, kv_heads=3)),
    ],
    ids=str,
)
def test_other_cases_do_not_spill(arch, what):
    check(arch, str(what), launches(tokens=8, **what)[0])


@pytest.mark.parametrize("arch, dim", [(80, 128), (90, 256), (100, 64)])
def test_the_reduce_does_not_spill_and_adds_alike_whatever_the_maximum(arch, dim):
    """The tiles that it adds up are two-dimensional; only a one-dimensional list of chunks grows with the maximum."""
    seen = []
    for max_len_kv in (4096, 131072):
        reduce = launches(torch.bfloat16, dim, 8, max_len_kv=max_len_kv)[1]
        compiled = check(arch, f"reduce, D {dim}, {max_len_kv} tokens of KV", reduce)
        seen.append({layout for layout in compiled.other_layouts if re.search(r"order = \[\d, \d\]", layout)})
    assert seen[0] == seen[1] != set()


@pytest.mark.parametrize("arch, dtype", [(80, torch.bfloat16), (90, torch.bfloat16), (100, torch.bfloat16), (90, torch.float32)])
def test_the_number_of_requests_changes_no_tile(arch, dtype):
    """A token's bits must not depend on it; only the one-dimensional list of requests grows with it."""
    for kernel in (0, 1):
        seen = set()
        for requests in (1, 8, 300):
            compiled = check(arch, f"{dtype}, {requests} requests", launches(dtype, 128, 8, requests=requests)[kernel])
            tiles = frozenset(layout for layout in compiled.other_layouts if re.search(r"order = \[\d, \d\]", layout))
            seen.add((compiled.mma, compiled.mma_layouts, tiles))
        assert len(seen) == 1


@pytest.mark.parametrize(
    "tokens, longest, requests, tiles",
    [(8, 8, 1, 1), (64, 64, 1, 8), (64, 64, 8, 15), (32, 8, 4, 4), (8, 8, 8, 8), (40, 33, 8, 12)],
)
def test_grids_come_from_shapes_and_maxima(tokens, longest, requests, tiles):
    """And nothing reads a value on the device: tensors here are of the meta device and have none."""
    chunk, reduce = launches(torch.bfloat16, 128, tokens, longest=longest, max_len_kv=32768, requests=requests)
    assert chunk.grid == (tiles * 8, short.num_kv_chunks(32768))
    assert reduce.grid == (tokens, 32)
