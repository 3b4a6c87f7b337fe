"""How fast P generates and D replays, as D has seen it, and from it when P is asked to stop, and where.

Wrong estimates cost time, never correctness: any length that P is asked to stop at is a right one.
"""

from __future__ import annotations

from math import ceil
from typing import Optional

from .cost import WEIGHT, LinearCost

SEAL_LAG = 8  # entries that may be left to replay when P is asked to stop at once, in tokens
# An average of message delays this close above a whole token is that token.
ROUNDING = 0.1
# Entries past the length asked for that count as late: all of a worker's requests learn from each peer's seals.
MOST_LATE = 32
# A last round this much longer than P's next token is still as good as any.
TOLERANCE = 1.25
# A round before the last one is worth its time if it makes the last one shorter by as much.
SHORTER = 0.5


class SealNow:
    """P is asked to stop at once, when at most ``seal_lag`` entries are left to replay."""

    # Whether it is while a round is in flight; a long one would keep the client waiting.
    asks_in_flight = False

    def __init__(self, seal_lag: int) -> None:
        self.seal_lag = seal_lag

    def appended(self, now: float, count: int) -> None:
        """``count`` new entries have come."""

    def sealed(self, late: int) -> None:
        """P has stopped ``late`` entries past the length that it was asked for."""

    def seal_ahead(self, lag: int) -> Optional[int]:
        """Entries that P may still log beyond those here, when it is to be asked now: 0 to stop at once. None:
        replay the ``lag`` entries first, P goes on."""
        return 0 if lag <= self.seal_lag else None


class SealAhead(SealNow):
    """P logs its last token while D runs its last round, so that D's first own step follows both.

    The last round covers all that is here, so P is asked to stop one entry later; with messages
    under way, as many more as came too late before. While a round takes longer than P's next
    token, and one before it would make it much shorter, D replays first. Rounds that cost their
    start-up, whatever their length, don't get shorter: then one has to do.
    """

    def __init__(self, seal_lag: int, cost: LinearCost, late: LateSeals) -> None:
        super().__init__(seal_lag)
        self._cost, self._late = cost, late
        self._interval: Optional[float] = None
        self._appended_at: Optional[float] = None

    def appended(self, now: float, count: int) -> None:
        if self._appended_at is not None and count:
            interval = (now - self._appended_at) / count
            if self._interval is None:
                self._interval = interval
            else:
                self._interval += WEIGHT * (interval - self._interval)
        self._appended_at = now

    def sealed(self, late: int) -> None:
        self._late.seen(late)

    def seal_ahead(self, lag: int) -> Optional[int]:
        ahead = 1 + self._late.tokens
        seconds = self._cost.seconds(lag + ahead)
        if not self._interval or seconds is None:
            return super().seal_ahead(lag)
        if lag > self.seal_lag and self._catches_up(ahead, seconds):
            return None
        return ahead

    def _catches_up(self, ahead: int, seconds: float) -> bool:
        """Whether to let P go on for now: a last round, of ``seconds``, would be waited for, and one after a round before it
        is much shorter."""
        left = ceil(seconds / self._interval)
        return (
            seconds > TOLERANCE * self._interval
            and self._cost.seconds(left + ahead) < SHORTER * seconds
        )


class SealAheadOfSteps(SealAhead):
    """The same where D replays by decode steps: it gains on P only as far as its steps are shorter than P's."""

    asks_in_flight = True  # the next step is launched before the last one ends, so there is always one

    def _catches_up(self, ahead: int, seconds: float) -> bool:
        return self._cost.seconds(1) * TOLERANCE < self._interval


class LateSeals:
    """By how many entries P logs past the length asked for, since the request takes time and a step is in flight."""

    def __init__(self) -> None:
        self._mean = 0.0

    @property
    def tokens(self) -> int:
        return ceil(self._mean - ROUNDING) if self._mean > ROUNDING else 0

    def seen(self, tokens: int) -> None:
        self._mean += WEIGHT * (min(max(0, tokens), MOST_LATE) - self._mean)
