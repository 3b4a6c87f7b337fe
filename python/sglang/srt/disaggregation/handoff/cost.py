"""What a forward or a transfer of n tokens takes, learned from those seen."""

from __future__ import annotations

from typing import Optional

WEIGHT = 0.2  # of the newest observation in every average


class LinearCost:
    """start-up + n * per-token, in seconds.

    The least-squares line through what was seen with neither part negative, older observations weighted down exponentially.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._n = self._s = self._nn = self._ns = 0.0  # means of n, s, n * n, n * s

    def took(self, tokens: int, seconds: float) -> None:
        """``tokens`` took ``seconds``, waiting for others not counted."""
        self.seen += 1
        weight = max(WEIGHT, 1 / self.seen)
        for name, value in (("_n", tokens), ("_s", seconds), ("_nn", tokens * tokens), ("_ns", tokens * seconds)):
            mean = getattr(self, name)
            setattr(self, name, mean + weight * (value - mean))

    def seconds(self, tokens: int) -> Optional[float]:
        """Of ``tokens``; None before anything was seen."""
        if not self.seen:
            return None
        spread = self._nn - self._n * self._n
        per_token = max(0.0, (self._ns - self._n * self._s) / spread) if spread > 0.5 else 0.0
        start_up = self._s - per_token * self._n
        if start_up < 0:  # the best that is never negative starts at 0
            return self._ns / self._nn * tokens
        return start_up + per_token * tokens


class StepCost(LinearCost):
    """Of n forwards of one token each: n * forward."""

    def seconds(self, tokens: int) -> Optional[float]:
        return self._s * tokens if self.seen else None
