"""What is measured and simulated: clients, lengths, the link, D's places, and what a forward costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

from benchmark.handoff.simulator.costs import Model, Network
from benchmark.handoff.simulator.workload import HANDOFF, PD
from rig.pace import Pace

ARMS = (PD, HANDOFF)
# A decode step is four times what it takes the tiny model on two cores of a Xeon at 2.80 GHz, a prompt five times, and a
# replay round half as long again as a step: an eager EXTEND costs more than a step on GPUs too.
PACE = Pace(token=0.4 / 1024, extend=0.060, step=0.040, more=0.001)
PROMPT = 1024  # tokens; also the longest prompt piece, so that each forward has one prompt, as in the simulator


class TinyModel(Model):
    """The rig's model: 2,048 bytes of KV a token."""

    kv_token_bytes = 2048.0


@dataclass(frozen=True)
class PacedCosts:
    """The pace as costs of the simulator."""

    name: str = "paced rig"
    pace: Pace = PACE
    chunk: int = PROMPT
    model: Model = TinyModel()

    def prefill(self, done: int, tokens: int) -> float:
        return self.pace.of_extend(tokens)

    def decode(self, batch: int, context: float) -> float:
        return self.pace.of_step(batch)

    def replay(self, parts: Sequence[Tuple[int, int]]) -> float:
        return self.pace.of_extend(sum(tokens for tokens, _ in parts))

    def ttft(self, prompt: int) -> float:
        return self.prefill(0, prompt)


@dataclass(frozen=True)
class Point:
    """A closed loop.

    Attributes:
        clients: each with one request at a time.
        requests: of each arm.
        new_tokens: length of the answers.
        prompt_on_link: how long a prompt's KV takes, in seconds.
        places: requests in one of D's batches.
    """

    name: str
    clients: int
    requests: int
    new_tokens: int
    prompt_on_link: float
    places: int = 32

    @property
    def link_mbit(self) -> float:
        """Rate of the KV link, in Mbit/s."""
        return PROMPT * TinyModel.kv_token_bytes * 8 / 1e6 / self.prompt_on_link

    @property
    def network(self) -> Network:
        """The simulator's. A message goes through the worker's loop, and SGLang looks at transfers every so often."""
        return Network(control=0.001, kv_latency=0.005, kv_rate=self.link_mbit * 1e6 / 8, poll=0.0005)


POINTS = (
    Point("one client", clients=1, requests=12, new_tokens=48, prompt_on_link=0.8),
    Point("the link is full", clients=8, requests=48, new_tokens=48, prompt_on_link=0.8),
    Point("neither is full", clients=4, requests=40, new_tokens=96, prompt_on_link=0.4),
    Point("P is full", clients=8, requests=64, new_tokens=24, prompt_on_link=0.1),
    Point("D is full", clients=8, requests=48, new_tokens=64, prompt_on_link=0.2, places=4),
)
