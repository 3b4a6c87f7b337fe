"""Time of short extend attention at Qwen3-8B's shape, and how near it is to reading the KV once.

    python benchmark/handoff/bench_short_extend.py [--prefix 4096,16384] [--new 1,8] [--batch 1,16] [--out build/short_extend]

Needs torch and Triton alone: the kernel's file is loaded by its path. SGLang's Triton extend, FA3 and FlashInfer are
further columns where they can be imported. Writes <out>.json and <out>.md. Without a GPU nothing can be measured: exit
status 2; `--check` compares a small case with float64 instead, in Triton's interpreter if need be.

A call is one layer's attention of a batch, captured in a CUDA graph for several layers with a KV of their own, so that
the KV of none is left in L2 from the run before. The floor is the bytes of KV, queries and output, once, at the
bandwidth that a copy of 2 GiB (bytes read and bytes written) reaches in the same run. A read alone may be a little
faster than that copy.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ROOT / "python/sglang/kernels/ops/attention/short_extend_attention.py"
HEADS, KV_HEADS, DIM, DTYPE = 32, 8, 128, torch.bfloat16  # Qwen3-8B
LAYERS = 36
PREFIXES, NEW, BATCHES = (4096, 16384, 32768, 131072), (1, 4, 8, 16, 32), (1, 4, 16)
GIB = 1 << 30
COPY_BYTES = 2 * GIB
REPEATS = 20  # of the graph; the median counts
EXIT_NO_GPU = 2


def load_kernel():
    spec = importlib.util.spec_from_file_location("short_extend_attention", KERNEL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Case:
    """`batch` requests of `prefix` + `new` tokens; each layer has its own pool, slots in random order."""

    prefix: int
    new: int
    batch: int
    q: torch.Tensor
    pools: list  # of (k_buffer, v_buffer)
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor

    @property
    def bytes(self) -> int:
        """What one layer must move at least."""
        kv = 2 * self.kv_indices.numel() * self.pools[0][0][0].numel() * self.q.element_size()
        return kv + 2 * self.q.numel() * self.q.element_size()

    @property
    def requests(self) -> torch.Tensor:
        """kv_indices as [batch, prefix + new]."""
        return self.kv_indices.view(self.batch, -1)


def make(prefix, new, batch, device, layers, dtype=DTYPE, heads=HEADS, kv_heads=KV_HEADS, dim=DIM) -> Case:
    slots, tokens = batch * (prefix + new), batch * new
    pools = [
        tuple(torch.randn(slots, kv_heads, dim, device=device, dtype=dtype) for _ in range(2)) for _ in range(layers)
    ]
    steps = torch.arange(batch + 1, dtype=torch.int32, device=device)
    q = torch.randn(tokens, heads, dim, device=device, dtype=dtype)
    indices = torch.randperm(slots, device=device)
    return Case(prefix, new, batch, q, pools, steps * new, steps * (prefix + new), indices)


# Each column prepares what a server prepares once a batch, and returns a call for one layer's pool.


def column_short_extend(case: Case):
    short = load_kernel()
    o = torch.empty_like(case.q)
    length = case.prefix + case.new
    scratch = short.ShortExtendScratch.allocate(len(case.q), case.q.shape[1], case.q.shape[2], length, case.q.device)

    def call(k, v):
        short.short_extend_attention_fwd(
            *(case.q, o, k, v, 1.0, 1.0, case.qo_indptr, case.kv_indptr, case.kv_indices, case.new, length),
            scratch=scratch,
        )
        return o

    return call


def column_sglang_triton(case: Case):
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    o = torch.empty_like(case.q)
    prefix, new = (part.reshape(-1) for part in case.requests.split([case.prefix, case.new], 1))
    prefix_indptr = case.qo_indptr // case.new * case.prefix
    # the new tokens' K and V are contiguous there, from the projection
    k_new, v_new = (buffer[new] for buffer in case.pools[0])

    def call(k, v):
        extend_attention_fwd(
            *(case.q, k_new, v_new, o, k, v, case.qo_indptr, prefix_indptr, prefix),
            *(None, True, None, case.new, 1.0, 1.0),
        )
        return o

    return call


def column_fa3(case: Case):
    from sglang.kernels.ops.attention.flash_attention import flash_attn_with_kvcache

    table = case.requests.to(torch.int32)
    lengths = torch.full((case.batch,), case.prefix + case.new, dtype=torch.int32, device=case.q.device)

    def call(k, v):
        return flash_attn_with_kvcache(
            q=case.q,
            k_cache=k.unsqueeze(1),
            v_cache=v.unsqueeze(1),
            page_table=table,
            cache_seqlens=lengths,
            cu_seqlens_q=case.qo_indptr,
            max_seqlen_q=case.new,
            softmax_scale=case.q.shape[-1] ** -0.5,
            causal=True,
        )

    return call


def column_flashinfer(case: Case):
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    workspace = torch.empty(GIB // 2, dtype=torch.uint8, device=case.q.device)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        *(case.qo_indptr, case.kv_indptr, case.kv_indices.to(torch.int32)),
        torch.ones(case.batch, dtype=torch.int32, device=case.q.device),
        *(case.q.shape[1], case.pools[0][0].shape[1], case.q.shape[2], 1),
        causal=True,
        q_data_type=case.q.dtype,
    )
    return lambda k, v: wrapper.run(case.q, (k.unsqueeze(1), v.unsqueeze(1)))


COLUMNS = {
    "short extend": column_short_extend,
    "SGLang Triton extend": column_sglang_triton,
    "FA3": column_fa3,
    "FlashInfer": column_flashinfer,
}


def seconds(call) -> float:
    """Median of one replay of a graph of `call`, by CUDA events."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # compiles
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) / 1e3


def copy_bandwidth() -> float:
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / seconds(lambda: target.copy_(source))


def measure(prefix: int, new: int, batch: int, bandwidth: float) -> list[dict]:
    kv_bytes = batch * (prefix + new) * 2 * KV_HEADS * DIM * DTYPE.itemsize
    l2 = torch.cuda.get_device_properties("cuda").L2_cache_size
    case = make(prefix, new, batch, "cuda", layers=min(LAYERS, max(1, -(-4 * l2 // kv_bytes))))
    rows, ours = [], None
    for name, prepare in COLUMNS.items():
        row = {"prefix": prefix, "new": new, "batch": batch, "kernel": name}
        try:
            call = prepare(case)
            out = call(*case.pools[0]).float().clone()
            ours = out if ours is None else ours
            taken = seconds(lambda: [call(k, v) for k, v in case.pools]) / len(case.pools)
            row |= {
                "microseconds": taken * 1e6,
                "gb_per_second": case.bytes / taken / 1e9,
                "fraction_of_floor": case.bytes / bandwidth / taken,
                "largest_difference": (out - ours).abs().max().item(),
                "layers": len(case.pools),
            }
        except Exception as error:  # another library's refusal is a result too
            if name == "short extend":
                raise
            row["not_measured"] = f"{type(error).__name__}: {error}".splitlines()[0]
        rows.append(row)
    return rows


def table(report: dict) -> str:
    lines = [
        f"Short extend attention, Qwen3-8B's shape, bf16: {report['gpu']}, {report['date']}, torch {report['torch']}, "
        f"Triton {report['triton']}. Copy: {report['copy_gb_per_second']:.0f} GB/s. "
        "Microseconds of a layer (fraction of the floor).",
        "",
        "| prefix | new | batch | " + " | ".join(COLUMNS) + " |",
        "|---" * (3 + len(COLUMNS)) + "|",
    ]
    cells: dict[tuple, list] = {}
    for row in report["rows"]:
        cell = f"{row['microseconds']:.1f} ({row['fraction_of_floor']:.2f})" if "microseconds" in row else "-"
        cells.setdefault((row["prefix"], row["new"], row["batch"]), []).append(cell)
    lines += ["| " + " | ".join(map(str, (*key, *row))) + " |" for key, row in cells.items()]
    missing = {(row["kernel"], row["not_measured"]) for row in report["rows"] if "not_measured" in row}
    lines += ["", *(f"- {kernel}: {reason}" for kernel, reason in sorted(missing))] if missing else []
    return "\n".join(lines) + "\n"


def check() -> int:
    """A small case against float64. 0 if it is right."""
    gpu = torch.cuda.is_available()
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by the kernel's file
    torch.manual_seed(0)
    device, dtype = ("cuda", DTYPE) if gpu else ("cpu", torch.float16)  # the interpreter's bf16 is wrong
    case = make(prefix=600, new=3, batch=2, device=device, layers=1, dtype=dtype, heads=4, kv_heads=1, dim=64)
    ((k, v),) = case.pools
    got = column_short_extend(case)(k, v).double().view(2, 3, 4, 64)
    key, value = (pool[case.requests].squeeze(2).double() for pool in (k, v))  # [batch, tokens, dim]
    score = torch.einsum("bqhd,bkd->bhqk", case.q.double().view(2, 3, 4, 64), key) / 64**0.5
    hidden = torch.ones(3, 603, dtype=torch.bool, device=device).triu(601)
    expected = torch.einsum("bhqk,bkd->bqhd", score.masked_fill(hidden, float("-inf")).softmax(-1), value)
    error = (got - expected).abs().max().item()
    right = error < 4e-3
    where = torch.cuda.get_device_name() if gpu else "Triton's interpreter"
    print(f"{'right' if right else 'WRONG'}: largest error {error:.1e} against float64 in {dtype}, on {where}")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("prefix", PREFIXES), ("new", NEW), ("batch", BATCHES)):
        parser.add_argument(f"--{name}", default=default, type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--out", type=Path, default=ROOT / "build/short_extend")
    parser.add_argument("--check", action="store_true", help="compare a small case with float64, no timing")
    args = parser.parse_args()
    if args.check:
        return check()
    if not torch.cuda.is_available():
        print("No CUDA GPU here, so nothing was measured. --check runs without one.", file=sys.stderr)
        return EXIT_NO_GPU
    import triton

    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    report = {
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_gb_per_second": bandwidth / 1e9,
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "dtype": str(DTYPE)},
        "rows": [],
    }
    for prefix in args.prefix:
        for batch in args.batch:
            for new in args.new:
                report["rows"] += measure(prefix, new, batch, bandwidth)
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
                args.out.with_suffix(".md").write_text(table(report))
    print(table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
