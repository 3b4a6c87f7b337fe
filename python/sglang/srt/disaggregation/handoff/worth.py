"""What a replay costs the running requests of D, in tokens: a bridge that gives fewer does not pay.

On a D with room to spare nobody has to pay as long as replays take little of its time: a round delays a running request
by less than the gap that the bridge keeps from its own. On a full one whatever runs longer lets others wait.
"""

from __future__ import annotations

from math import ceil
from typing import Optional

from .cost import LinearCost, StepCost

# Seconds of rounds that may come at once, after a time without.
MOST_CREDIT = 0.25


class ReplayWorth:
    """While a round runs every running request loses the tokens of the decode steps that would fit in it."""

    def __init__(self, rounds: LinearCost, share: float) -> None:
        """
        Args:
            rounds: what a replay round takes, as D learns it.
            share: of D's time that rounds may take for nothing while D has room to spare, 0 to 1.

        Raises:
            ValueError: ``share`` is out of range.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"SGLANG_DISAGGREGATION_HANDOFF_DECODE_SHARE must be between 0 and 1, got {share}")
        self._rounds, self._steps, self._share = rounds, StepCost(), share
        self._last: Optional[int] = None
        self._launched_at = 0.0
        self._credit = MOST_CREDIT if share else 0.0  # seconds of rounds
        self._credit_at: Optional[float] = None

    def step_launched(self, number: int, at: float, after_idle: bool) -> None:
        """A decode step was launched as the worker's forward ``number``, ``at`` seconds. One that follows another,
        with no idle time between, has waited for it."""
        if self._last is not None and number == self._last + 1 and not after_idle:
            self._steps.took(1, at - self._launched_at)
        self._last, self._launched_at = number, at

    def round_took(self, now: float, seconds: float, running: int) -> None:
        """A round beside ``running`` requests is over."""
        self._earn(now)
        if running:
            self._credit = max(-MOST_CREDIT, self._credit - seconds)

    def tokens(self, now: float, running: int, spare: bool) -> int:
        """That a bridge must give beside ``running`` requests, on a D with room to ``spare`` or not: for a shortest round, a
        step each where nothing is known."""
        self._earn(now)
        took, step = self._rounds.seconds(1), self._steps.seconds(1)
        if spare and self._credit > 0 and self._credit >= (took or 0.0):
            return 0
        return ceil(running * max(1.0, took / step)) if took and step else running

    def _earn(self, now: float) -> None:
        if self._credit_at is not None:
            self._credit = min(MOST_CREDIT, self._credit + self._share * (now - self._credit_at))
        self._credit_at = now
