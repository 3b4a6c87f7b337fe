"""A point as the simulator has it. Neither servers nor torch."""

from __future__ import annotations

from typing import Dict, Optional

from benchmark.handoff.simulator import load
from benchmark.handoff.simulator.workload import HANDOFF

from . import figures
from .points import PROMPT, PacedCosts, Point


def simulate(point: Point, arm: str) -> Dict[str, Optional[float]]:
    """Return the figures of one arm."""
    found = load.load(
        load.Point(
            PacedCosts(), point.network, prefills=1, at_once=point.clients, prompts=(PROMPT,),
            answers=(point.new_tokens, point.new_tokens), requests=point.requests, max_running=point.places, pipeline=1,
        ),
        arm,
    )  # fmt: skip
    return figures.of(found.ttft, found.gap if arm == HANDOFF else [], found.latency, found.tokens_per_s)
