"""What a replay costs the running requests of D, in tokens: less than that no bridge should give."""

from __future__ import annotations

from math import ceil
from typing import Optional

from .cost import LinearCost, StepCost


class ReplayWorth:
    """While a round runs every running request loses the tokens of the decode steps that would fit in it."""

    def __init__(self, rounds: LinearCost) -> None:
        """``rounds``: what a replay round takes, as D learns it."""
        self._rounds, self._steps = rounds, StepCost()
        self._last: Optional[int] = None
        self._launched_at = 0.0

    def step_launched(self, number: int, at: float, after_idle: bool) -> None:
        """A decode step was launched as the worker's forward ``number``, ``at`` seconds. One that follows another,
        with no idle time between, has waited for it."""
        if self._last is not None and number == self._last + 1 and not after_idle:
            self._steps.took(1, at - self._launched_at)
        self._last, self._launched_at = number, at

    def tokens(self, running: int) -> int:
        """Of a shortest round beside ``running`` requests; a step each where nothing is known."""
        took, step = self._rounds.seconds(1), self._steps.seconds(1)
        return ceil(running * max(1.0, took / step)) if took and step else running
