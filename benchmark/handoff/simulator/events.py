"""Virtual time: a heap of what happens next."""

from __future__ import annotations

import heapq
from typing import Any, Callable, List, Optional, Tuple


class Clock:
    """Seconds since the start of the run. Equal times happen in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._heap: List[Tuple[float, int, Callable[..., None], tuple]] = []
        self._asked = 0

    def at(self, time: float, what: Callable[..., None], *args: Any) -> None:
        """Call ``what(*args)`` at ``time``.

        Raises:
            ValueError: ``time`` is past.
        """
        if time < self.now:
            raise ValueError(f"event at {time} s, now is {self.now} s")
        self._asked += 1
        heapq.heappush(self._heap, (time, self._asked, what, args))

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, what, *args)

    def step(self) -> bool:
        """Let the next event happen. False when there is none."""
        if not self._heap:
            return False
        self.now, _, what, args = heapq.heappop(self._heap)
        self.happened += 1
        what(*args)
        return True

    def run(self, until: Optional[float] = None) -> None:
        """Let everything happen, up to ``until`` (s) if given."""
        while self._heap and (until is None or self._heap[0][0] <= until):
            self.step()
