"""The figures of one arm under one case, in all and by bucket. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from . import statistics
from .block import CANCELLED, ERROR, WHOLE, Block, Sample

MS = 1e3


def of_blocks(blocks: Sequence[Block]) -> dict:
    """Figures of the repeats of one case by one arm behind one router: `all`, and by `prompt` and `output` bucket."""
    samples = [sample for block in blocks for sample in block.samples]
    return {
        "all": of_samples(samples)
        | {
            "requests_per_s": statistics.spread([block.requests_per_s for block in blocks]),
            "tokens_per_s": statistics.spread([block.tokens_per_s for block in blocks]),
            "ttft_p50_of_repeats": statistics.spread([p50 for p50 in map(_ttft_p50, blocks) if p50 is not None]),
            "client_late_ms": max(sample.late for sample in samples) * MS,
            "client_cores": max(block.client_cores for block in blocks),
            "load": statistics.spread([block.load for block in blocks if block.load is not None]),
        },
        "prompt": {name: of_samples([s for s in samples if s.prompt_bucket == name]) for name in _names(samples, "prompt")},
        "output": {name: of_samples([s for s in samples if s.output_bucket == name]) for name in _names(samples, "output")},
    }


def of_samples(samples: Sequence[Sample]) -> dict:
    """Counts, and quantiles in milliseconds (None where there is nothing to measure).

    Requests cut short by their client count with the tokens that came: a TTFT if there was a first one, and their gaps.
    Those that ended in an error count as errors only.

    - ttft: from sending to the first token.
    - itl: between a token and the next, the switch included; 0 between tokens of one event.
    - boundary_gap: between the prefill worker's last token and the decode worker's first.
    - largest_gap: of each request, between a token and the next.
    - end_to_end: from sending to the end, of whole answers.
    """
    ended = Counter(sample.ended for sample in samples)
    seen = [s for s in samples if s.ended != ERROR]
    with_gaps = [s.request.gaps for s in seen if len(s.request.at) > 1]
    boundary = [s.request.boundary_gap for s in seen if s.request.boundary is not None]
    return {
        "requests": len(samples),
        "whole": ended[WHOLE],
        "cancelled": ended[CANCELLED],
        "errors": ended[ERROR],
        "outcomes": dict(Counter(_outcome(s) for s in seen if "outcome" in s.request.handoff)),
        "ttft": statistics.quantiles([[s.request.ttft * MS] for s in seen if s.request.at]),
        "itl": statistics.quantiles([[gap * MS for gap in gaps] for gaps in with_gaps]),
        "boundary_gap": statistics.quantiles([[gap * MS] for gap in boundary]),
        "largest_gap": statistics.quantiles([[max(gaps) * MS] for gaps in with_gaps]),
        "end_to_end": statistics.quantiles([[(s.ended_at - s.request.sent_at) * MS] for s in seen if s.ended == WHOLE]),
    }


def different(blocks: Sequence[Block], wanted_arm: str) -> dict[str, list[str]]:
    """By arm, one sentence for each answer that is neither `wanted_arm`'s to the same request nor its beginning."""
    found: dict[str, list[str]] = {}
    for block, sample, right in _pairs(blocks, wanted_arm):
        ids = sample.request.ids
        if ids != right[: len(ids)]:
            at = next((n for n, (a, b) in enumerate(zip(ids, right)) if a != b), len(right))
            where = f"{block.arm} ({block.router}), {block.case}, plan {block.plan}, request {sample.number}"
            found.setdefault(block.arm, []).append(f"{where}: from token {at + 1} on")
    return found


def compared(blocks: Sequence[Block], wanted_arm: str) -> int:
    """How many answers `different` could compare."""
    return sum(bool(sample.request.ids) for _, sample, _ in _pairs(blocks, wanted_arm))


def _pairs(blocks: Sequence[Block], wanted_arm: str) -> Iterator[tuple[Block, Sample, tuple[int, ...]]]:
    """Samples of the other arms, each with the whole answer of `wanted_arm` to the same request."""
    wanted = {
        (block.case, block.plan, sample.number): sample.request.ids
        for block in blocks
        if block.arm == wanted_arm
        for sample in block.samples
        if sample.ended == WHOLE
    }
    for block in blocks:
        for sample in block.samples:
            right = wanted.get((block.case, block.plan, sample.number))
            if block.arm != wanted_arm and right is not None and sample.ended != ERROR:
                yield block, sample, right


def _outcome(sample: Sample) -> str:
    record = sample.request.handoff
    return "/".join(filter(None, (record["outcome"], record.get("reason"))))


def _ttft_p50(block: Block) -> float | None:
    found = statistics.quantiles([[s.request.ttft * MS] for s in block.samples if s.request.at and s.ended != ERROR])
    return found and found["p50"].value


def _names(samples: Sequence[Sample], kind: str) -> list[str]:
    """Buckets from the shortest to the longest."""
    return sorted({getattr(s, f"{kind}_bucket") for s in samples}, key=lambda name: int(name.partition("-")[0]))
