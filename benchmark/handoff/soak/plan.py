"""What a soak sends and which faults it injects: all of it drawn from one seed before the start."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

POOL = 250  # different requests; each is sent several times, so that prefix caches take part
# Ranges of tokens. The longest prompts are prefilled in chunks.
LENGTHS = ((1, 40), (40, 300), (300, 1000), (2049, 2600))
OUTPUTS = ((1, 5), (5, 60), (60, 200))
# What is done to one request, in percent. The rest is left alone.
REQUEST_FAULTS = {"hold": 15, "fail": 7, "cancel": 10, "abort": 4}
# What is done to both workers during one round, in percent.
ROUND_FAULTS = {
    "slow_link": 14, "hold_all": 10, "pauses": 10, "short_freeze_prefill": 6, "short_freeze_decode": 6,
    "long_freeze_prefill": 5, "long_freeze_decode": 5, "abort_all": 2,
}  # fmt: skip
# The faults that permit a request to end in an error, and no other does.
PERMIT_ERROR = frozenset({"fail", "abort", "abort_all"})


@dataclass(frozen=True)
class Prompt:
    """What is asked: token ids and sampling parameters."""

    ids: Tuple[int, ...]
    sampling: Dict[str, object]


@dataclass
class Request:
    """One request of a round.

    Attributes:
        delay: seconds after the round's start at which it is sent.
        fault: one of REQUEST_FAULTS, or None.
        after_tokens, after: the fault comes when so many tokens were seen, or after so many seconds if not streamed.
    """

    rid: str
    prompt: Prompt
    stream: bool
    delay: float
    fault: Optional[str] = None
    after_tokens: int = 0
    after: float = 0.0


@dataclass
class Round:
    """Requests that are under way together.

    Attributes:
        fault: one of ROUND_FAULTS, or None; at ``delay`` seconds after the start, for ``seconds``.
        mbit: rate of the slow link.
    """

    number: int
    fault: Optional[str]
    delay: float
    seconds: float
    mbit: float
    requests: List[Request] = field(default_factory=list)


def pool(draw: random.Random, size: int) -> List[Prompt]:
    """Mostly short prompts and answers, some long ones, some that end early, some of the ordinary path."""
    prompts = []
    for _ in range(size):
        length = draw.randrange(*draw.choices(LENGTHS, (40, 45, 12, 3))[0])
        output = draw.randrange(*draw.choices(OUTPUTS, (15, 70, 15))[0])
        sampling: Dict[str, object] = {"max_new_tokens": output, "ignore_eos": True}
        kind = draw.random()
        if kind < 0.15:
            sampling = {"max_new_tokens": output, "stop_token_ids": draw.sample(range(3, 500), 12)}
        elif kind < 0.2:
            sampling["min_new_tokens"] = 1  # changes nothing but the path
        prompts.append(Prompt(tuple(draw.randrange(10, 500) for _ in range(length)), sampling))
    return prompts


def make(requests: int, seed: int, long_freeze: float) -> List[Round]:
    """The rounds of a soak.

    Args:
        long_freeze: seconds that every lease is over after.
    """
    draw = random.Random(seed)
    prompts, rounds, made = pool(draw, min(POOL, requests)), [], 0
    while made < requests:
        fault = _one_of(draw, ROUND_FAULTS)
        seconds = draw.uniform(0.05, 0.6)
        if fault and fault.startswith("long"):
            seconds = long_freeze * draw.uniform(1, 1.5)
        new = Round(len(rounds), fault, draw.uniform(0, 0.5), seconds, draw.choice((2, 5, 10, 40)))
        burst = draw.random() < 0.4
        for _ in range(min(requests - made, draw.choice((3, 6, 10, 14, 20)))):
            delay = 0.0 if burst else draw.uniform(0, 1)
            request = Request(f"soak-{seed}-{made}", draw.choice(prompts), draw.random() < 0.88, delay)
            request.fault = _one_of(draw, REQUEST_FAULTS)
            request.after_tokens = draw.randrange(0, min(60, request.prompt.sampling["max_new_tokens"]) + 1)
            request.after = draw.uniform(0, 0.6)
            new.requests.append(request)
            made += 1
        rounds.append(new)
    return rounds


def _one_of(draw: random.Random, percent: Dict[str, int]) -> Optional[str]:
    at = draw.uniform(0, 100)
    for name, share in percent.items():
        at -= share
        if at < 0:
            return name
    return None
