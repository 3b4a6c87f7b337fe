"""What the handoff tells an operator: counters, and one short record per request."""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally
from typing import Any, Dict, Sequence

logger = logging.getLogger(__name__)

# Outcomes on both roles.
ORDINARY = "ordinary"  # no handoff: the reason says why
COMMITTED = "committed"  # D generates from the boundary on
FINISHED = "finished"  # the request ended on a relayed token
FAILED = "failed"

MARGINS = tuple(2.0**n for n in range(-7, 5))  # logits; bf16 noise ends where a wrong cache begins


class HandoffMetrics:
    """Counts of one worker. Made when the handoff is on, so that /metrics is as released when it
    is off; one a process, since Prometheus names are."""

    def __init__(self, role: str) -> None:
        # Not at import: the main process sets PROMETHEUS_MULTIPROC_DIR after importing the scheduler.
        from prometheus_client import Counter, Histogram

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
        self._not_bridged = Counter(
            "sglang:handoff_not_bridged_total",
            "Requests of which prefill makes the first token alone, and why.",
            labelnames=("reason",),
        )
        self._verified = Counter(
            "sglang:handoff_verified_tokens_total",
            "Logged tokens compared with the decode worker's own prediction, by whether they agree.",
            labelnames=("agree",),
        )
        self._margins = Histogram(
            "sglang:handoff_mismatch_margin",
            "Top-2 margin in logits of predictions that differ from the log.",
            buckets=MARGINS,
        )
        self.outcomes: Tally[str] = Tally()  # "outcome/reason"
        self._warned: set[str] = set()

    def request(self, outcome: str, reason: str = "") -> None:
        self.outcomes[f"{outcome}/{reason}" if reason else outcome] += 1
        self._requests.labels(self._role, outcome, reason).inc()

    def not_bridged(self, reason: str) -> None:
        self._not_bridged.labels(reason).inc()

    def tokens(self, kind: str, number: int) -> None:
        if number:
            self._tokens.labels(self._role, kind).inc(number)

    def verified(self, compared: int, margins: Sequence[float]) -> None:
        """``compared`` logged tokens were compared with D's predictions, of which those with these
        top-2 ``margins``, in logits, differ."""
        self._verified.labels("true").inc(compared - len(margins))
        self._verified.labels("false").inc(len(margins))
        for margin in margins:
            self._margins.observe(margin)

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
        """The result of the oldest round in flight is here; return its tokens."""
        oldest = next(round_ for round_ in self.fields["rounds"] if round_[1] is None)
        oldest[1] = self.now_ms()
        return oldest[2]

    def mark(self, what: str) -> None:
        """Keep the time of the first ``what``."""
        self.fields["at_ms"].setdefault(what, self.now_ms())
