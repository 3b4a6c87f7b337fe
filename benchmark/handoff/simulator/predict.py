"""One request on an idle pair, nothing else on the workers: the public rows and the predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

from .costs import Costs, Network
from .workload import HANDOFF, PD, UNIFIED, Request, Workload
from .world import Setup, World

ANSWER = 128  # tokens; more than any bridge here
WARM_UP, FAR_APART = 8, 0.01  # requests, requests per second


@dataclass(frozen=True)
class Single:
    """Seconds; ``gap`` is the client's wait between tokens b and b + 1, and ``boundary`` is b."""

    ttft: float
    gap: float
    boundary: int


def single(mode: str, costs: Costs, network: Network, prompt: int, before: int = WARM_UP) -> Single:
    """One request of ``prompt`` tokens, nothing else on the workers, no faults; ``before``: as many have come
    and gone, from which D knows what a replay round costs."""
    kept: List[Request] = []
    workload = Workload(before + 1, FAR_APART, [prompt], (ANSWER, ANSWER), mode)
    World(Setup(costs, network, workload), kept.append).run()
    request = kept[-1]
    return Single(request.first_at - request.arrival, request.gap, request.boundary or 1)


@dataclass(frozen=True)
class Comparison:
    """The three arms on one accelerator at one prompt length."""

    costs: Costs
    prompt: int
    unified: Single
    pd: Single
    handoff: Single

    @property
    def pd_tail(self) -> float:
        return self.pd.ttft - self.unified.ttft

    @property
    def handoff_tail(self) -> float:
        return self.handoff.ttft - self.unified.ttft


def compare(costs: Costs, prompt: int, network: Network) -> Comparison:
    arms = (single(mode, costs, network, prompt) for mode in (UNIFIED, PD, HANDOFF))
    return Comparison(costs, prompt, *arms)
