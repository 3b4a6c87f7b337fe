"""What goes wrong, when: drawn from the run's seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Dict, Optional, Tuple


@dataclass(frozen=True)
class FaultRates:
    """Chances per message or request, and rates per second; durations are means in seconds.

    A worker's restart ends every session it has. ``silence`` cuts one direction, or both, between
    one pair of workers. ``full`` makes a decode worker's pool look full.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_mean: float = 0.05
    kv_failure: float = 0.0
    kv_stall: float = 0.0
    kv_stall_mean: float = 0.1
    abort: float = 0.0
    p_restart: float = 0.0
    d_restart: float = 0.0
    silence: float = 0.0
    silence_mean: float = 1.0
    full: float = 0.0
    full_mean: float = 0.3
    detect: float = 0.5  # until D's transfer learns that P has died


_AS_SENT = (0.0,)
NO_FAULTS = FaultRates()
# Dense: about every second request meets one. A restart hits all requests of its worker.
ROUGH = FaultRates(
    drop=0.02, duplicate=0.02, delay=0.02, kv_failure=0.02, kv_stall=0.02, abort=0.05,
    p_restart=0.05, d_restart=0.05, silence=0.1, full=0.1,
)  # fmt: skip


class Faults:
    """The one source of faults of a run."""

    def __init__(self, rates: FaultRates, rng: random.Random) -> None:
        self.rates, self.rng = rates, rng
        self.count: Counter[str] = Counter()
        self._messages = bool(rates.drop or rates.duplicate or rates.delay or rates.silence)
        self._any = rates.drop + rates.duplicate + rates.delay
        self._silent: Dict[Tuple[str, str], float] = {}
        self._silent_until = 0.0  # the last of them

    def deliveries(self, now: float, source: str, target: str) -> Tuple[float, ...]:
        """Extra delays (s) of the copies of one frame that arrive; none: it is lost."""
        if not self._messages:
            return _AS_SENT
        if now < self._silent_until:
            if now < self._silent.get((host(source), host(target)), 0.0):
                self.count["silenced"] += 1
                return ()
        rates, draw = self.rates, self.rng.random()
        if draw >= self._any:
            return _AS_SENT
        if draw < rates.drop:
            self.count["dropped"] += 1
            return ()
        draw -= rates.drop
        if draw < rates.duplicate:
            self.count["duplicated"] += 1
            return (0.0, self.rng.expovariate(1 / rates.delay_mean))
        self.count["delayed"] += 1
        return (self.rng.expovariate(1 / rates.delay_mean),)

    def silence(self, now: float, one: str, other: str) -> None:
        """Cut the way between two hosts, in one direction or both."""
        self.count["silence"] += 1
        until = now + self.rng.expovariate(1 / self.rates.silence_mean)
        self._silent_until = max(self._silent_until, until)
        which = self.rng.randrange(3)
        if which != 0:
            self._silent[one, other] = until
        if which != 1:
            self._silent[other, one] = until

    def chance(self, name: str) -> bool:
        """Whether the fault ``name``, a chance in FaultRates, happens now."""
        rate = getattr(self.rates, name)
        if rate and self.rng.random() < rate:
            self.count[name] += 1
            return True
        return False

    def next(self, name: str) -> Optional[float]:
        """Seconds to the next ``name``, a rate in FaultRates; None: never."""
        rate = getattr(self.rates, name)
        return self.rng.expovariate(rate) if rate else None


def host(endpoint: str) -> str:
    """tcp://p0:3 is process 3 on host p0."""
    return endpoint[6:].partition(":")[0]
