"""Whether the demo showed what it's for: problems fail it, goals are reported."""

from collections.abc import Sequence

from demo.measure import Figures, Run, equal
from rig.goal import Goal

HANDED_OFF_AT_LEAST = 0.9  # of the requests


def share(flags: Sequence[bool]) -> float:
    """Return how many of `flags` are true, from 0 to 1; 0 if there are none."""
    return sum(flags) / len(flags) if flags else 0.0


def goals(unified: Figures, pd: Figures, handoff: Figures, outputs_equal: float, handed_off: float) -> list[Goal]:
    """Return the goals from the arms' figures and the shares of requests with equal output and with a handoff."""
    return [
        Goal("TTFT of PD + handoff / TTFT of PD", handoff.ttft_ms / pd.ttft_ms, 0.6),
        Goal("TTFT of PD + handoff / TTFT of unified", handoff.ttft_ms / unified.ttft_ms, 1.25),
        Goal("requests with equal output", outputs_equal, 1.0, at_least=True),
        Goal("requests handed off with tokens bridged", handed_off, HANDED_OFF_AT_LEAST, at_least=True),
    ]


def problems(reference: Sequence[Run], others: Sequence[Sequence[Run]], handoff: Sequence[Run]) -> list[str]:
    """Return why the demo fails: one sentence per problem, none if it succeeds.

    Args:
        reference: the unified server's requests.
        others: the other arms' requests, in the same order of prompts.
        handoff: those of the arm with handoff.
    """
    found = [
        f"{run.arm} answered {run.prompt!r} differently from {wanted.arm}, "
        f"from token {first_difference(run.ids, wanted.ids)} on"
        for runs in others
        for run, wanted in zip(runs, reference, strict=True)
        if not equal(run, wanted)
    ]
    done = [run.handed_off for run in handoff]
    if not any(done):
        found.append(f"no handoff took place: {outcomes(handoff)}")
    elif share(done) < HANDED_OFF_AT_LEAST:
        found.append(f"only {sum(done)} of {len(done)} requests were handed off with tokens bridged: {outcomes(handoff)}")
    return found


def first_difference(ids: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the number, from 1, of the first token that differs or that only one answer has."""
    return next((i for i, (a, b) in enumerate(zip(ids, wanted), 1) if a != b), min(len(ids), len(wanted)) + 1)


def outcomes(runs: Sequence[Run]) -> str:
    """Return in words how each request's handoff ended."""
    words = []
    for run in runs:
        record = run.handoff
        end = record.get("outcome", "no record") + (f" ({record['reason']})" if "reason" in record else "")
        words.append(f"{run.prompt} {end}, {record.get('tokens_bridged', 0)} bridged")
    return "; ".join(words)
