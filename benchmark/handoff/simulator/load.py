"""Many requests with queues on both sides and no faults: what the handoff does to TTFT under load."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import List, Tuple

from .costs import Costs, Network
from .workload import Request, Workload
from .world import Setup, World

PROMPTS = (4096, 16384, 32768)
ANSWERS = (64, 512)  # tokens


@dataclass(frozen=True)
class Point:
    """What comes, and to which workers. The seed is fixed: every arm gets the same requests at the same times.

    Attributes:
        share: of what the prefill workers can do arrives (Poisson).
        at_once: so many clients instead, each with one request at a time; 0: none.
        prompts, answers: see Workload.
        max_running: requests in one of D's batches.
        pipeline: see Setup.
    """

    costs: Costs
    network: Network = field(default_factory=Network.of_report)
    prefills: int = 2
    decodes: int = 1
    share: float = 0.7
    at_once: int = 0
    prompts: Tuple[int, ...] = PROMPTS
    answers: Tuple[int, int] = ANSWERS
    requests: int = 300
    max_running: int = 256
    pipeline: int = 2
    seed: int = 11

    @property
    def rate(self) -> float:
        """Requests per second that come."""
        mean = sum(self.costs.ttft(prompt) for prompt in self.prompts) / len(self.prompts)
        return self.share * self.prefills / mean


@dataclass(frozen=True)
class Load:
    """Seconds, one entry a request, in the order in which they came.

    Attributes:
        gap: the client's wait at the switch; in PD between t1 and t2. Not of those that P finished.
        largest: the longest wait before a token that P made, or at the switch.
        latency: arrival to the last token.
        tokens_per_s: of all answers, until the last one ends.
        count: what World counted.
    """

    ttft: List[float]
    gap: List[float]
    largest: List[float]
    latency: List[float]
    tokens_per_s: float
    count: Counter[str]


def load(point: Point, mode: str, admits: bool = True) -> Load:
    kept: List[Request] = []
    workload = Workload(
        point.requests, point.rate, list(point.prompts), point.answers, mode, at_once=point.at_once
    )
    world = World(
        Setup(
            point.costs, point.network, workload, prefills=point.prefills, decodes=point.decodes,
            max_running=point.max_running, waits_for_place=True, admits=admits, pipeline=point.pipeline,
            patience=1e5, seed=point.seed,
        ),
        kept.append,
    )  # fmt: skip
    world.run()
    kept.sort(key=lambda request: request.id)
    return Load(
        [request.first_at - request.arrival for request in kept],
        [request.gap for request in kept if request.gap is not None],
        [request.largest for request in kept],
        [request.ended_at - request.arrival for request in kept],
        sum(request.length for request in kept) / max(request.ended_at for request in kept),
        world.count,
    )
