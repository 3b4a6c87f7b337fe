"""Requests, and the answer that each of them must get."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Iterator, List

from .core import EndReason

VOCABULARY = 151_936
UNIFIED, PD, HANDOFF = "unified", "pd", "handoff"


class Request:
    """One request: what it asks for, what the client has seen, and its state on both workers.

    The oracle: token i is (first + (i - 1) * stride) mod VOCABULARY. A worker makes a token from
    the one before it alone, so a lost, doubled or foreign token spoils all that follow.
    """

    __slots__ = (
        "id room mode p d prompt length end arrival first stride "  # asked for
        "seen first_at last_at gap largest boundary outcome ended_at aborting "  # the client's side
        "nonce offer worth transfer "  # the wire's
        "computed p_rows p_session p_done p_held p_came_at cancelled "  # on P
        "d_rows d_session d_state d_done owner joined ready"  # on D
    ).split()

    def __init__(
        self, number: int, mode: str, p: int, d: int, prompt: int, length: int,
        end: EndReason, arrival: float, first: int, stride: int, room: int,
    ) -> None:  # fmt: skip
        """Args: ``prompt`` and ``length`` (of the answer) in tokens, ``arrival`` in seconds;
        ``p`` and ``d`` are the workers' numbers."""
        self.id, self.mode, self.p, self.d, self.room = number, mode, p, d, room
        self.prompt, self.length, self.end, self.arrival = prompt, length, end, arrival
        self.first, self.stride = first, stride
        self.seen = self.computed = self.p_rows = self.d_rows = self.joined = 0
        self.first_at = self.last_at = self.gap = self.ended_at = self.boundary = None
        self.outcome = self.nonce = self.offer = self.transfer = None
        self.worth, self.largest = 0, 0.0
        self.p_session = self.d_session = self.d_state = None
        self.p_done = self.p_held = self.d_done = self.owner = False
        self.aborting = self.cancelled = self.ready = False

    def token(self, index: int) -> int:
        """What token ``index`` must be, from 1."""
        return (self.first + (index - 1) * self.stride) % VOCABULARY

    def next_token(self, last: int) -> int:
        """What a generator makes whose input is ``last``."""
        return (last + self.stride) % VOCABULARY

    def __repr__(self) -> str:
        return f"request {self.id} (P{self.p} D{self.d}, prompt {self.prompt}, answer {self.length}, seen {self.seen})"


@dataclass(frozen=True)
class Workload:
    """Attributes:
    requests: how many.
    rate: arrivals per second, all together (Poisson).
    prompts: prompt lengths in tokens, each as likely.
    answers: shortest and longest answer in tokens, uniform.
    rooms: room numbers in use, so that a late message meets its room taken by another request.
    at_once: a closed loop instead: so many clients, each with one request at a time. ``rate`` doesn't count then.
    """

    requests: int
    rate: float
    prompts: List[int]
    answers: tuple
    mode: str = HANDOFF
    rooms: int = 1 << 20
    at_once: int = 0

    def __post_init__(self) -> None:
        if self.requests < 1 or not self.rate > 0 or not 1 <= self.answers[0] <= self.answers[1]:
            raise ValueError(f"no such workload: {self}")

    def arrivals(self, rng: random.Random, prefills: int, decodes: int) -> Iterator[Request]:
        """The requests in the order they come, made one by one: a million need no list. In a closed loop the times
        are set as they come."""
        time = 0.0
        for number in range(self.requests):
            time += rng.expovariate(self.rate)
            r = rng.random
            yield Request(
                number,
                self.mode,
                int(r() * prefills),
                int(r() * decodes),
                self.prompts[int(r() * len(self.prompts))],
                self.answers[0] + int(r() * (self.answers[1] - self.answers[0] + 1)),
                EndReason.TOKEN if r() < 0.5 else EndReason.LENGTH,
                time,
                int(r() * VOCABULARY),
                1 + int(r() * (VOCABULARY - 1)),
                1 + number % self.rooms,
            )
