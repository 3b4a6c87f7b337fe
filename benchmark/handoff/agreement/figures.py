"""The figures that are compared, the same of both sides. No I/O, no clock."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from benchmark.handoff.quantile import quantile

IN_SECONDS = ("TTFT", "gap at the switch", "whole answer")


def of(
    ttft: Sequence[float], gap: Sequence[float], whole: Sequence[float], tokens_per_s: float
) -> Dict[str, Optional[float]]:
    """Return p50 and p95 in milliseconds of what comes in seconds, one entry a request, and the rate.

    Args:
        gap: of requests that D took over; empty: none.
        whole: from sending to the last token.
    """
    found: Dict[str, Optional[float]] = {}
    for name, values in zip(IN_SECONDS, (ttft, gap, whole)):
        for share in (0.5, 0.95):
            value = quantile(values, share)
            found[f"{name} p{share * 100:.0f}"] = None if value is None else value * 1e3
    found["tokens/s"] = tokens_per_s
    return found
