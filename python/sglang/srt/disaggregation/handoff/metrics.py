"""What the handoff tells an operator: counters, and one short record per request."""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally
from typing import Any, Dict

logger = logging.getLogger(__name__)

# Outcomes on both roles.
ORDINARY = "ordinary"  # no handoff: the reason says why
COMMITTED = "committed"  # D generates from the boundary on
FINISHED = "finished"  # the request ended on a relayed token
FAILED = "failed"


class HandoffMetrics:
    """Counts of one worker. Made when the handoff is on, so that /metrics is as released when it
    is off; one a process, since Prometheus names are."""

    def __init__(self, role: str) -> None:
        # Not at import: the main process sets PROMETHEUS_MULTIPROC_DIR after importing the scheduler.
        from prometheus_client import Counter

        self._role = role
        self._requests = Counter(
            "sglang:handoff_requests_total",
            "Requests by the worker's role, how their handoff ended, and why.",
            labelnames=("role", "outcome", "reason"),
        )
        self._tokens = Counter(
            "sglang:handoff_tokens_total",
            "Output tokens: bridged by prefill, relayed and replayed by decode.",
            labelnames=("role", "kind"),
        )
        self.outcomes: Tally[str] = Tally()  # "outcome/reason"
        self._warned: set[str] = set()

    def request(self, outcome: str, reason: str = "") -> None:
        self.outcomes[f"{outcome}/{reason}" if reason else outcome] += 1
        self._requests.labels(self._role, outcome, reason).inc()

    def tokens(self, kind: str, number: int) -> None:
        if number:
            self._tokens.labels(self._role, kind).inc(number)

    def warn_once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(text)


class RequestRecord:
    """``meta_info["handoff"]`` of one request: what happened, and when.

    Times are wall-clock milliseconds since ``started_at`` (seconds since the epoch), when D
    offered the handoff. For people: no decision reads them.
    """

    def __init__(self, outcome: str, reason: str = "") -> None:
        self._zero = time.time()
        self.fields: Dict[str, Any] = {"outcome": outcome}
        if reason:
            self.fields["reason"] = reason
        else:
            self.fields |= {"started_at": self._zero, "at_ms": {}, "rounds": []}

    def now_ms(self) -> float:
        return round((time.time() - self._zero) * 1e3, 3)

    def opened(self, prefill_ms: float) -> None:
        """P has opened the log; ``prefill_ms`` is P's own time from receipt to t1."""
        self.fields["at_ms"].setdefault("opened", self.now_ms())
        self.fields.setdefault("prefill_ms", prefill_ms)

    def start_round(self, tokens: int) -> None:
        """A replay round over ``tokens`` entries is launched: [start, end, tokens] in ``rounds``."""
        self.fields["rounds"].append([self.now_ms(), None, tokens])

    def end_round(self) -> int:
        """The newest round's result is here; return its tokens."""
        newest = self.fields["rounds"][-1]
        newest[1] = self.now_ms()
        return newest[2]

    def mark(self, what: str) -> None:
        """Keep the time of the first ``what``."""
        self.fields["at_ms"].setdefault(what, self.now_ms())
