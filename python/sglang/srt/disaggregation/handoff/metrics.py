"""What the handoff tells Prometheus: the table of all its metrics, and how each is counted."""

from __future__ import annotations

from collections import Counter as Tally
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from sglang.srt.observability.utils import exponential_buckets

# Outcomes on both roles.
ORDINARY = "ordinary"  # no handoff: the reason says why
COMMITTED = "committed"  # D generates from the boundary on
FINISHED = "finished"  # the request ended on a relayed token
FAILED = "failed"

MARGINS = tuple(2.0**n for n in range(-7, 5))  # logits; bf16 noise ends where a wrong cache begins
# Half a millisecond to about 15 s: a decode step of a small model to a gap that a client complains of.
SECONDS = tuple(exponential_buckets(start=0.0005, width=1.62, length=22))

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Metric(NamedTuple):
    """One metric: ``labels`` are those beside SGLang's own (model_name, engine_type, ...)."""

    name: str
    kind: str
    documentation: str
    labels: Tuple[str, ...] = ()
    buckets: Tuple[float, ...] = ()


ATTEMPTS = Metric(
    "sglang:handoff_attempts_total",
    COUNTER,
    "Requests for which decode has offered the handoff, or prefill has accepted an offer.",
)
REQUESTS = Metric(
    "sglang:handoff_requests_total",
    COUNTER,
    "Requests by how their handoff ended, and why.",
    ("outcome", "reason"),
)
TOKENS = Metric(
    "sglang:handoff_tokens_total",
    COUNTER,
    "Output tokens: bridged by prefill, relayed and replayed by decode.",
    ("kind",),
)
BOUNDARY_GAP = Metric(
    "sglang:handoff_boundary_gap_seconds",
    HISTOGRAM,
    "Time from the last relayed token to decode's first own one.",
    buckets=SECONDS,
)
REPLAY_ROUND = Metric(
    "sglang:handoff_replay_round_seconds",
    HISTOGRAM,
    "Time from the launch of a replay round to its result.",
    buckets=SECONDS,
)
MESSAGES = Metric(
    "sglang:handoff_messages_total",
    COUNTER,
    "Control messages, sent and received.",
    ("direction", "type"),
)
DROPPED = Metric(
    "sglang:handoff_dropped_messages_total",
    COUNTER,
    "Control messages that were not obeyed or could not be sent.",
    ("reason",),
)
VERIFIED = Metric(
    "sglang:handoff_verified_tokens_total",
    COUNTER,
    "Logged tokens compared with the decode worker's own prediction, by whether they agree.",
    ("agree",),
)
MARGIN = Metric(
    "sglang:handoff_mismatch_margin",
    HISTOGRAM,
    "Top-2 margin in logits of predictions that differ from the log.",
    buckets=MARGINS,
)
LIVE = Metric(
    "sglang:handoff_num_reqs",
    GAUGE,
    "Requests in a handoff, by the state of this worker's side.",
    ("state",),
)
DEADLINES = Metric(
    "sglang:handoff_deadlines_total",
    COUNTER,
    "Deadlines of the protocol that have fired.",
    ("deadline",),
)
NOT_BRIDGED = Metric(
    "sglang:handoff_not_bridged_total",
    COUNTER,
    "Requests of which prefill makes the first token alone, and why.",
    ("reason",),
)
METRICS = (
    ATTEMPTS,
    REQUESTS,
    NOT_BRIDGED,
    TOKENS,
    BOUNDARY_GAP,
    REPLAY_ROUND,
    MESSAGES,
    DROPPED,
    VERIFIED,
    MARGIN,
    LIVE,
    DEADLINES,
)


OWN_LABELS = {label for metric in METRICS for label in metric.labels}


class HandoffMetrics:
    """One worker's metrics, one object a process."""

    def __init__(self, collector: Optional[Any], series: Iterable[Tuple[Any, ...]] = ()) -> None:
        """Args:
        collector: SGLang's SchedulerMetricsCollector, for its labels and for the classes that another
            backend may have put in place of prometheus_client's; None: metrics are off, and only
            ``outcomes`` and ``drops`` are counted.
        series: (metric, value of each label) to be shown as 0 from the start: a rate needs two samples, and
            what is first seen as 1 would be missed.
        """
        self.outcomes: Tally[str] = Tally()  # "outcome/reason"
        self.drops: Tally[str] = Tally()
        self._labels: Dict[str, Any] = {}
        self._families: Dict[str, Any] = {}
        self._series: Dict[Tuple[str, ...], Any] = {}
        self._live: Dict[str, int] = {}
        if collector is not None:
            self._labels = dict(collector.labels)
            self._families = {metric.name: self._make(metric, collector) for metric in METRICS}
        for metric, *values in series:
            if metric is LIVE:
                self._set_live(values[0], 0)
            else:
                self._of(metric, *values)

    def _make(self, metric: Metric, collector: Any) -> Any:
        # Not at import: the main process sets PROMETHEUS_MULTIPROC_DIR after importing the scheduler.
        from prometheus_client import Counter, Gauge, Histogram

        about = metric.name, metric.documentation, [*self._labels, *metric.labels]
        if metric.kind == COUNTER:
            return (collector._counter_cls or Counter)(*about)
        if metric.kind == GAUGE:
            return (collector._gauge_cls or Gauge)(*about, multiprocess_mode="mostrecent")
        return (collector._histogram_cls or Histogram)(*about, buckets=metric.buckets)

    def _of(self, metric: Metric, *values: str) -> Optional[Any]:
        """The series of ``metric`` with these values of its own labels; None when metrics are off."""
        series = self._series.get((metric.name, *values))
        if series is None and (family := self._families.get(metric.name)) is not None:
            labels = {**self._labels, **dict(zip(metric.labels, values, strict=True))}
            series = self._series[metric.name, *values] = family.labels(**labels)
        return series

    def _add(self, metric: Metric, number: float, *values: str) -> None:
        series = self._of(metric, *values)
        if series is not None:
            series.inc(number)

    def _observe(self, metric: Metric, value: float) -> None:
        series = self._of(metric)
        if series is not None:
            series.observe(value)

    def attempt(self) -> None:
        """D has made an offer, or P has accepted one."""
        self._add(ATTEMPTS, 1)

    def request(self, outcome: str, reason: str = "") -> None:
        """A request's handoff has ended, or has not begun."""
        self.outcomes[f"{outcome}/{reason}" if reason else outcome] += 1
        self._add(REQUESTS, 1, outcome, reason)

    def not_bridged(self, reason: str) -> None:
        self._add(NOT_BRIDGED, 1, reason)

    def tokens(self, kind: str, number: int) -> None:
        if number:
            self._add(TOKENS, number, kind)

    def boundary_gap(self, seconds: float) -> None:
        self._observe(BOUNDARY_GAP, seconds)

    def replay_round(self, seconds: float) -> None:
        self._observe(REPLAY_ROUND, seconds)

    def message(self, direction: str, kind: str) -> None:
        """``direction`` is "sent" or "received", ``kind`` the message's type."""
        self._add(MESSAGES, 1, direction, kind)

    def dropped(self, reason: str, number: int = 1) -> None:
        """Messages were not obeyed, or not sent."""
        self.drops[reason] += number
        self._add(DROPPED, number, reason)

    def verified(self, compared: int, margins: Sequence[float]) -> None:
        """``compared`` logged tokens were compared with D's predictions, of which those with these
        top-2 ``margins``, in logits, differ."""
        self._add(VERIFIED, compared - len(margins), "true")
        self._add(VERIFIED, len(margins), "false")
        for margin in margins:
            self._observe(MARGIN, margin)

    def live(self, numbers: Mapping[str, int]) -> None:
        """{state: requests}. States that are not named have none."""
        for state in {*self._live, *numbers}:
            number = numbers.get(state, 0)
            if self._live.get(state) != number:
                self._set_live(state, number)

    def _set_live(self, state: str, number: int) -> None:
        self._live[state] = number
        series = self._of(LIVE, state)
        if series is not None:
            series.set(number)  # one that was never set isn't shown: /metrics shows those set most recently

    def deadline(self, deadline: str) -> None:
        self._add(DEADLINES, 1, deadline)
