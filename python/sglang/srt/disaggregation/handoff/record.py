"""One request's milestones, and ``meta_info["handoff"]``. For people: no decision reads them."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

# In the order in which an ordinary handoff passes them, on each role.
PREFILL_MILESTONES = (
    "arrived",  # at the scheduler
    "prefill_started",
    "prefill_ended",  # t1 is known
    "opened",  # t1 is in the log, and on its way to D
    "kv_sent",  # the transfer is over
    "sealed",  # P generates no more
    "committed",
    "finished",
    "failed",
    "completed",  # P holds nothing of the request any more
)
DECODE_MILESTONES = (
    "arrived",
    "opened",  # P's Open was read
    "first_relay",
    "kv_arrived",
    "sealing",  # P was asked to stop
    "draining",  # the log's end is known
    "last_relay",
    "committed",
    "first_own_token",
    "finished",  # on a relayed token
    "failed",
    "completed",
)


class RequestRecord:
    """What happened to a request, and when.

    Milestones are kept in seconds of ``time.perf_counter``, as SGLang's own are, and shown as
    milliseconds since ``started_at`` (seconds since the epoch): when D offered the handoff, or P
    opened it. What was before has negative numbers.

    Attributes:
        fields: ``meta_info["handoff"]``, plain data.
    """

    def __init__(self, outcome: str, reason: str = "") -> None:
        self._zero = time.perf_counter()
        self._at: Dict[str, float] = {}
        self._rounds: List[Tuple[float, float, int]] = []
        self._rounds_in_flight: List[Tuple[float, List[Any]]] = []
        self.fields: Dict[str, Any] = {"outcome": outcome}
        self.took_part = not reason
        if reason:
            self.fields["reason"] = reason
        else:
            self.fields |= {"started_at": time.time(), "at_ms": {}, "rounds": []}
        self.on_first_own_token: Optional[Callable[[float], None]] = None
        self.on_completed: Optional[Callable[[], None]] = None

    # ------------------------------------------------------------------ writing
    def mark(self, what: str, at: Optional[float] = None) -> None:
        """Keep the time of the first ``what``; ``at`` in seconds of perf_counter, now by default."""
        if what not in self._at:
            self.mark_again(what, at)

    def mark_again(self, what: str, at: Optional[float] = None) -> None:
        """Keep the time of the last ``what``."""
        self._at[what] = time.perf_counter() if at is None else at
        self.fields["at_ms"][what] = self._ms(self._at[what])

    def opened(self, prefill_ms: float) -> bool:
        """P has opened the log; ``prefill_ms`` is P's own time from receipt to t1. False: known before."""
        if "opened" in self._at:
            return False
        self.mark("opened")
        self.fields["prefill_ms"] = prefill_ms
        return True

    def start_round(self, tokens: int) -> None:
        """A replay round over ``tokens`` entries is launched: [start, end, tokens] in ``rounds``."""
        now = time.perf_counter()
        shown = [self._ms(now), None, tokens]
        self.fields["rounds"].append(shown)
        self._rounds_in_flight.append((now, shown))

    def end_round(self) -> Tuple[int, float]:
        """The result of the oldest round in flight is here: its tokens, and how long it took, in seconds."""
        now = time.perf_counter()
        start, shown = self._rounds_in_flight.pop(0)
        shown[1] = self._ms(now)
        self._rounds.append((start, now, shown[2]))
        return shown[2], now - start

    def decoded(self, at: float) -> None:
        """A decode step of the request's own has ended. The first after the commit ends the gap at the
        boundary."""
        if "committed" not in self._at or "first_own_token" in self._at:
            return
        self.mark("first_own_token", at)
        gap = self.between("last_relay", "first_own_token")
        if gap is not None:
            self.fields["gap_ms"] = round(gap * 1e3, 3)
            if self.on_first_own_token is not None:
                self.on_first_own_token(gap)
                self.on_first_own_token = None

    def completed(self, at: float) -> None:
        """The request has ended on this worker."""
        if self.took_part:
            self.mark("completed", at)
        # Both hold the request that holds this.
        told, self.on_completed, self.on_first_own_token = self.on_completed, None, None
        if told is not None:
            told()

    # ------------------------------------------------------------------ reading
    def between(self, start: str, end: str) -> Optional[float]:
        """Seconds from one milestone to another; None if one of them was not passed."""
        if start not in self._at or end not in self._at:
            return None
        return self._at[end] - self._at[start]

    def span(self, start: str, ends: Tuple[str, ...]) -> Optional[Tuple[float, float]]:
        """From milestone ``start`` to the first of ``ends`` that was passed, in seconds of perf_counter;
        None if one of both was not."""
        end = next((name for name in ends if name in self._at), None)
        return None if start not in self._at or end is None else (self._at[start], self._at[end])

    def rounds(self) -> Iterator[Tuple[float, float, int]]:
        """Ended replay rounds as (start, end, tokens), in seconds of perf_counter."""
        return iter(self._rounds)

    def describe(self) -> str:
        """For SGLang's log of request times: the milestones in their order, in ms since ``started_at``."""
        text = f"handoff={self.fields['outcome']}"
        if self.fields.get("reason"):
            text += f" ({self.fields['reason']})"
        if not self.took_part:
            return text
        passed = sorted(self._at.items(), key=lambda item: item[1])
        return ", ".join([text, *(f"{name}={self._ms(at):.2f}ms" for name, at in passed)])

    def __reduce__(self) -> Tuple[Any, ...]:
        """It goes to the tokenizer manager with SGLang's request times, as plain data: its callbacks stay here."""
        return dict, (self.fields,)

    def _ms(self, at: float) -> float:
        return round((at - self._zero) * 1e3, 3)
