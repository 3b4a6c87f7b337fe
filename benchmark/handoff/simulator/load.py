"""Many requests with queues on both sides and no faults: what the handoff does to TTFT under load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

from .costs import Costs, Network
from .workload import Request, Workload
from .world import Setup, World

PROMPTS = [4096, 16384, 32768]
ANSWERS = (64, 512)  # tokens
REQUESTS = 300


@dataclass(frozen=True)
class Load:
    """Seconds, one entry a request."""

    ttft: List[float]
    gap: List[float]


def load(mode: str, costs: Costs, prefills: int, decodes: int, share: float, admits: bool = True) -> Load:
    """``share`` of what the prefill workers can do arrives. The seed is fixed: every arm gets the
    same requests at the same times."""
    mean = sum(costs.ttft(prompt) for prompt in PROMPTS) / len(PROMPTS)
    kept: List[Request] = []
    workload = Workload(REQUESTS, share * prefills / mean, PROMPTS, ANSWERS, mode)
    setup = Setup(
        costs, Network.of_report(), workload,
        prefills=prefills, decodes=decodes, admits=admits, seed=11,
    )  # fmt: skip
    World(setup, kept.append).run()
    ttft = [request.first_at - request.arrival for request in kept]
    return Load(sorted(ttft), sorted(request.gap for request in kept if request.gap is not None))
