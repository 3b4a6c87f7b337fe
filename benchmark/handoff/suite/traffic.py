"""What is asked and when: mixes of lengths, arrivals, cancellations. All drawn from a seed before anything is sent, so that
every arm gets the same.

SGLang's own generators don't serve here. `sglang.benchmark.serving.get_request` draws while it sends, so that no two arms
get the same arrivals, and knows no bursts or cancellations. Its "random-ids" prompts count up from a first id: with a small
vocabulary two prompts are soon the same one, and the prefix cache answers.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A range of lengths in tokens, both ends included, drawn log-uniformly; `share` of the mix's requests."""

    low: int
    high: int
    share: float

    @property
    def name(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def draw(self, rng: random.Random) -> int:
        """A length."""
        length = math.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))
        return min(self.high, max(self.low, int(length)))


@dataclasses.dataclass(frozen=True)
class Mix:
    """
    Attributes:
        name: in the report.
        prompts, outputs: the buckets; shares of each sum to 1.
        cancelled: share of requests whose client goes away.
        patience_s: a client that goes away before the first token does so within this time.
    """

    name: str
    prompts: tuple[Bucket, ...]
    outputs: tuple[Bucket, ...]
    cancelled: float = 0.0
    patience_s: float = 1.0


@dataclasses.dataclass(frozen=True)
class Closed:
    """So many clients, each with one request at a time."""

    at_once: int

    @property
    def name(self) -> str:
        return f"closed loop, {self.at_once} at once"

    def due(self, count: int, rng: random.Random) -> list[None]:
        """Nothing is due at a time of its own."""
        return [None] * count


@dataclasses.dataclass(frozen=True)
class Poisson:
    """Requests that come whatever is still under way: exponential pauses of 1 / `per_s` seconds in the mean."""

    per_s: float

    @property
    def name(self) -> str:
        return f"Poisson, {self.per_s:g}/s"

    def due(self, count: int, rng: random.Random) -> list[float]:
        """Seconds after the start at which each is sent; the first at 0."""
        times = [0.0]
        while len(times) < count:
            times.append(times[-1] + rng.expovariate(self.per_s))
        return times[:count]


@dataclasses.dataclass(frozen=True)
class Bursts:
    """As Poisson at the same mean rate, but `size` requests come at the same moment."""

    per_s: float
    size: int

    @property
    def name(self) -> str:
        return f"bursts of {self.size}, {self.per_s:g}/s"

    def due(self, count: int, rng: random.Random) -> list[float]:
        """Seconds after the start at which each is sent; the first burst at 0."""
        starts = Poisson(self.per_s / self.size).due(-(-count // self.size), rng)
        return [start for start in starts for _ in range(self.size)][:count]


Arrivals = Closed | Poisson | Bursts


@dataclasses.dataclass(frozen=True)
class Planned:
    """One request before it's sent.

    Attributes:
        prompt: token ids.
        prompt_bucket, output_bucket: names of the buckets that its lengths were drawn from.
        due: seconds after the start of its block; None in a closed loop.
        cancel_after_tokens: the client goes away after so many tokens; None: not then.
        cancel_after_s: the client goes away after so many seconds; None: not then.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    prompt_bucket: str
    output_bucket: str
    due: float | None = None
    cancel_after_tokens: int | None = None
    cancel_after_s: float | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One mix with one kind of arrivals; `requests` in each block."""

    mix: Mix
    arrivals: Arrivals
    requests: int

    @property
    def name(self) -> str:
        return f"{self.mix.name}: {self.arrivals.name}"

    def plan(self, seed: str, ids: range) -> list[Planned]:
        """The requests of one block.

        Each bucket gets its share of them to the nearest request, not by chance: blocks are small.

        Args:
            seed: the same one gives the same block.
            ids: token ids that prompts are drawn from; no two prompts have a common beginning to speak of.
        """
        rng = random.Random(f"{seed} {self.name}")
        prompts, outputs = (apportioned(buckets, self.requests, rng) for buckets in (self.mix.prompts, self.mix.outputs))
        due = self.arrivals.due(self.requests, rng)
        cancelled = set(rng.sample(range(self.requests), round(self.mix.cancelled * self.requests)))
        planned = []
        for number, (prompt, output) in enumerate(zip(prompts, outputs)):
            one = Planned(
                tuple(rng.choices(ids, k=prompt.draw(rng))), output.draw(rng), prompt.name, output.name, due[number]
            )
            planned.append(_cancelled(one, self.mix, rng) if number in cancelled else one)
        return planned


def apportioned(buckets: Sequence[Bucket], count: int, rng: random.Random) -> list[Bucket]:
    """`count` buckets in random order, each as often as its share says, by largest remainders."""
    exact = [bucket.share * count for bucket in buckets]
    times = [math.floor(e + 1e-9) for e in exact]
    by_remainder = sorted(range(len(buckets)), key=lambda i: times[i] - exact[i])
    for i in by_remainder[: count - sum(times)]:
        times[i] += 1
    drawn = [bucket for bucket, n in zip(buckets, times) for _ in range(n)]
    rng.shuffle(drawn)
    return drawn


def _cancelled(one: Planned, mix: Mix, rng: random.Random) -> Planned:
    """A third of those who go away do so by the clock, most often before the first token; the others in mid-answer."""
    if one.new_tokens < 2 or rng.random() < 1 / 3:
        return dataclasses.replace(one, cancel_after_s=rng.uniform(0, mix.patience_s))
    return dataclasses.replace(one, cancel_after_tokens=rng.randrange(1, one.new_tokens))
