"""What is run: a model, its prompts, the link, and how many requests at once."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from rig import servers

UNIFIED, PD, HANDOFF = ARMS = ("unified", "PD", "PD + handoff")


def random_prompts(length: int, seed: int, count: int) -> list[list[int]]:
    """Random token ids of both models' vocabularies, `length` each, without a common beginning."""
    rng = random.Random(seed)
    return [[rng.randrange(10, 400) for _ in range(length)] for _ in range(count)]


@dataclasses.dataclass(frozen=True)
class Setup:
    """
    Attributes:
        name: of the model, in short.
        prompt: length of the prompts, in tokens.
        new_tokens: length of the answers, in tokens.
        link_mbit: rate of the KV link, in Mbit/s, so that a prompt's KV takes about as long as its forward.
        warm_up: requests of each arm before any is counted.
    """

    name: str
    options: servers.Options
    prompt: int
    new_tokens: int
    link_mbit: float
    warm_up: int = 6

    def prompts(self, seed: int, count: int) -> list[list[int]]:
        """The setup's prompts, the same for every arm."""
        return random_prompts(self.prompt, seed, count)


def _options(model, pause_s: float) -> servers.Options:
    # Five workers beside each other: pools for what runs, and those that wait leave the cores to those that compute.
    return servers.Options(
        model=model,
        max_total_tokens=16384,
        max_running_requests=16,
        env={"RIG_IDLE_PAUSE_S": str(pause_s)},
    )


SETUPS: Sequence[Setup] = (
    # 2 KB of KV a token: 0.37 s a prompt
    Setup("tiny", _options(servers.TINY, 0.0005), prompt=900, new_tokens=64, link_mbit=40),
    # 46 KB of KV a token: 0.8 s a prompt
    Setup("smollm2", _options(servers.SMOLLM2, 0.004), prompt=256, new_tokens=40, link_mbit=120),
)
