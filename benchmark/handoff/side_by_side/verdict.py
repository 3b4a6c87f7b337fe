"""What the figures are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rig.goal import Goal

from .figures import Block, Figures, requests_of
from .setups import HANDOFF, PD, UNIFIED


def goals(figures: Mapping[str, Figures], at_once: int) -> list[Goal]:
    """The goals of one setup from its arms' figures; those of load only where there is any."""
    unified, pd, handoff = figures[UNIFIED], figures[PD], figures[HANDOFF]
    found = [Goal("TTFT p50, handoff / unified", handoff.ttft_p50 / unified.ttft_p50, 1.1)]
    if handoff.boundary_gap_itls_p50 is not None:
        found += [
            Goal("gap at the switch in ITLs, p50", handoff.boundary_gap_itls_p50, 1.5),
            Goal("gap at the switch in ITLs, p95", handoff.boundary_gap_itls_p95, 2.5),
        ]
    if at_once > 1:
        if handoff.itl_p50 is not None:
            found.append(Goal("ITL p50 of tokens after the switch, handoff / PD", handoff.itl_p50 / pd.itl_p50, 1.05))
        found.append(Goal("tokens per second, handoff / PD", handoff.tokens_per_s / pd.tokens_per_s, 0.97, at_least=True))
    return found


def different(blocks: Sequence[Block]) -> list[str]:
    """One sentence for each request whose answer differs from the unified server's."""
    answers = {arm: [request.ids for request in requests_of(blocks, arm)] for arm in (UNIFIED, PD, HANDOFF)}
    return [
        f"{arm} answered request {number} differently from {UNIFIED}"
        for arm in (PD, HANDOFF)
        for number, (ids, wanted) in enumerate(zip(answers[arm], answers[UNIFIED], strict=True))
        if ids != wanted
    ]
