"""The text of a soak's progress and end."""

from __future__ import annotations

from collections import Counter
from typing import List

from . import memory
from .judge import DIFFERENT, DOUBLED, FAILED, LOST
from .run import LEAKED, Soak

SHOWN = 10  # violations of a kind


def progress(soak: Soak, total: int, seconds: float) -> str:
    resident = "  ".join(f"{side} {m.samples[-1][1] / 2**20:.1f} MiB" for side, m in soak.memory.items() if m.samples)
    wrong = sum(map(len, soak.violations.values()))
    return (
        f"{soak.done:>6} of {total}  {seconds:6.0f} s  {soak.done / seconds:4.1f} requests/s  {resident}  "
        f"permitted errors {sum(soak.errors.values())}  violations {wrong}"
    )


def end(soak: Soak, seed: int, seconds: float) -> List[str]:
    kinds = (LOST, DOUBLED, DIFFERENT, LEAKED, FAILED)
    speed = f"{soak.done / seconds:.2f} requests/s, {soak.tokens / seconds:.0f} tokens/s"
    found = "  ".join(f"{kind} {len(soak.violations.get(kind, ()))}" for kind in kinds)
    lines = [
        f"{soak.done} requests, seed {seed}, {seconds:.0f} s: {speed}",
        f"{found}    (failed: an error that no fault permits)",
        f"outcomes: {_counts(soak.outcomes)}  cancelled {soak.cancelled}",
        f"errors that a fault permits: {_counts(soak.errors)}",
        f"faults of single requests: {_counts(soak.request_faults)}",
        f"faults of both workers: {_counts(soak.faults.count)}",
    ]
    lines += [memory_line(side, m.samples) for side, m in soak.memory.items()]
    for kind, details in soak.violations.items():
        lines += [f"{kind.upper()}: {detail}" for detail in details[:SHOWN]]
        lines += [f"{kind.upper()}: and {len(details) - SHOWN} more"] if len(details) > SHOWN else []
    return lines


def memory_line(side: str, samples: List[tuple]) -> str:
    if not samples:
        return f"memory of {side}: no sample"
    first, last = samples[0][1], samples[-1][1]
    text = f"memory of {side}: {first / 2**20:.1f} MiB to {last / 2**20:.1f} MiB"
    slope = memory.slope(samples)
    if slope is None:
        return text + f", not judged: fewer than {memory.MIN_REQUESTS} requests in the second half"
    verdict = "flat" if memory.flat(samples) else "GROWS"
    return text + f", second half {slope:+.0f} bytes/request by least squares (limit {memory.LIMIT_PER_REQUEST}): {verdict}"


def good(soak: Soak) -> bool:
    """Nothing was violated, and memory did not grow."""
    return not soak.violations and all(memory.flat(m.samples) is not False for m in soak.memory.values())


def _counts(counter: Counter) -> str:
    return "  ".join(f"{name} {n}" for name, n in sorted(counter.items())) or "none"
