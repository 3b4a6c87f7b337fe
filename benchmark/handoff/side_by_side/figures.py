"""Figures of what clients saw, from the times at which tokens came. No I/O, no clock."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmark.handoff.answer import Request
from benchmark.handoff.quantile import quantile


@dataclasses.dataclass(frozen=True)
class Block:
    """Requests that one arm answered without another's in between."""

    arm: str
    requests: tuple[Request, ...]

    @property
    def tokens_per_s(self) -> float:
        """From the first request sent to the last token."""
        tokens = sum(len(request.ids) for request in self.requests)
        return tokens / (max(r.at[-1] for r in self.requests) - min(r.sent_at for r in self.requests))


@dataclasses.dataclass(frozen=True)
class Figures:
    """One arm's, times in milliseconds; None where there is nothing to measure.

    Attributes:
        boundary_gap_itls_*: gap at the switch in median ITLs of the same request.
        itl_*: of tokens made by the worker that decodes to the end.
        largest_gap_*: per request, between a token and the next.
        tokens_per_s: median over blocks.
        outcomes: requests by how their handoff ended.
        ttft_parts: medians of `Request.ttft_parts`.
        gap_parts: means of `Request.gap_parts` over the middle half of the gaps, and over the longest tenth.
    """

    requests: int
    ttft_p50: float
    ttft_p95: float
    boundary_gap_p50: float | None
    boundary_gap_p95: float | None
    boundary_gap_itls_p50: float | None
    boundary_gap_itls_p95: float | None
    largest_gap_p50: float
    largest_gap_max: float
    itl_p50: float | None
    itl_p95: float | None
    tokens_per_s: float
    tokens_bridged: float | None
    outcomes: dict
    ttft_parts: dict
    gap_parts: dict


def requests_of(blocks: Iterable[Block], arm: str) -> list[Request]:
    """One arm's requests, in the order in which they were asked."""
    return [request for block in blocks if block.arm == arm for request in block.requests]


def of_arm(blocks: Sequence[Block]) -> Figures:
    """The figures of one arm's blocks."""
    requests = [request for block in blocks for request in block.requests]
    switched = [request for request in requests if request.boundary is not None]
    boundary = [request.boundary_gap * 1e3 for request in switched]
    in_itls = [request.boundary_gap / request.itl for request in switched]
    largest = [max(request.gaps) * 1e3 for request in requests]
    itls = [gap * 1e3 for request in requests for gap in request.decode_gaps]
    parts = [request.ttft_parts for request in requests if request.ttft_parts]
    gap_parts = sorted((r.gap_parts for r in requests if r.gap_parts), key=lambda each: sum(each.values()))
    quarter = len(gap_parts) // 4
    middle, longest = gap_parts[quarter : len(gap_parts) - quarter], gap_parts[-max(1, len(gap_parts) // 10) :]
    bridged = [request.handoff["tokens_bridged"] for request in requests if "tokens_bridged" in request.handoff]
    return Figures(
        requests=len(requests),
        ttft_p50=quantile((r.ttft * 1e3 for r in requests), 0.5),
        ttft_p95=quantile((r.ttft * 1e3 for r in requests), 0.95),
        boundary_gap_p50=quantile(boundary, 0.5),
        boundary_gap_p95=quantile(boundary, 0.95),
        boundary_gap_itls_p50=quantile(in_itls, 0.5),
        boundary_gap_itls_p95=quantile(in_itls, 0.95),
        largest_gap_p50=quantile(largest, 0.5),
        largest_gap_max=max(largest),
        itl_p50=quantile(itls, 0.5),
        itl_p95=quantile(itls, 0.95),
        tokens_per_s=statistics.median(block.tokens_per_s for block in blocks),
        tokens_bridged=quantile(bridged, 0.5),
        outcomes=dict(Counter(r.handoff["outcome"] for r in requests if "outcome" in r.handoff)),
        ttft_parts={name: quantile((each[name] * 1e3 for each in parts), 0.5) for name in (parts[0] if parts else ())},
        gap_parts={
            name: [statistics.fmean(each[name] * 1e3 for each in some) for some in (middle, longest)]
            for name in (gap_parts[0] if gap_parts else ())
        },
    )
