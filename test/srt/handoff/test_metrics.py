"""Each metric of the handoff: counted by its own method, with SGLang's labels, and only when metrics are on."""

import functools
from types import SimpleNamespace

import prometheus_client
import pytest
from sglang.srt.disaggregation.handoff import metrics as m
from sglang.srt.managers import scheduler_handoff_observability_mixin as mixin

SGLANG = {"model_name": "tiny", "engine_type": "decode", "tp_rank": 0}


class Worker:
    """A worker's metrics in a registry of their own."""

    def __init__(self, series=()):
        self.registry = prometheus_client.CollectorRegistry()
        named = {"counter": "Counter", "gauge": "Gauge", "histogram": "Histogram"}
        classes = {
            f"_{kind}_cls": functools.partial(getattr(prometheus_client, name), registry=self.registry)
            for kind, name in named.items()
        }
        self.metrics = m.HandoffMetrics(SimpleNamespace(labels=SGLANG, **classes), series)

    def value(self, name, **labels):
        """Of one sample; None if it isn't there."""
        return self.registry.get_sample_value(name, {**{k: str(v) for k, v in SGLANG.items()}, **labels})

    def samples(self):
        return {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in self.registry.collect()
            for s in family.samples
            if not s.name.endswith("_created")
        }


@pytest.fixture
def worker():
    return Worker()


COUNTS = [
    # what is called, the sample that it moves, by how much
    (lambda x: x.attempt(), m.ATTEMPTS, {}, 1),
    (lambda x: x.request(m.COMMITTED), m.REQUESTS, {"outcome": "committed", "reason": ""}, 1),
    (lambda x: x.request(m.ORDINARY, "penalties"), m.REQUESTS, {"outcome": "ordinary", "reason": "penalties"}, 1),
    (lambda x: x.not_bridged("prompts_wait"), m.NOT_BRIDGED, {"reason": "prompts_wait"}, 1),
    (lambda x: x.tokens("relayed", 7), m.TOKENS, {"kind": "relayed"}, 7),
    (lambda x: x.message("sent", "Ack"), m.MESSAGES, {"direction": "sent", "type": "Ack"}, 1),
    (lambda x: x.dropped("version"), m.DROPPED, {"reason": "version"}, 1),
    (lambda x: x.dropped("term", 3), m.DROPPED, {"reason": "term"}, 3),
    (lambda x: x.deadline("lease"), m.DEADLINES, {"deadline": "lease"}, 1),
    (lambda x: x.verified(9, [0.5, 2.0]), m.VERIFIED, {"agree": "true"}, 7),
    (lambda x: x.verified(9, [0.5, 2.0]), m.VERIFIED, {"agree": "false"}, 2),
]


@pytest.mark.parametrize("call, metric, labels, number", COUNTS, ids=lambda x: getattr(x, "name", ""))
def test_counter(worker, call, metric, labels, number):
    call(worker.metrics)
    assert worker.value(metric.name, **labels) == number
    before = worker.samples()
    call(worker.metrics)
    assert worker.value(metric.name, **labels) == 2 * number
    assert worker.samples().keys() == before.keys()


HISTOGRAMS = [
    (lambda x: x.boundary_gap(0.02), m.BOUNDARY_GAP, 0.02),
    (lambda x: x.replay_round(0.003), m.REPLAY_ROUND, 0.003),
    (lambda x: x.verified(1, [0.25]), m.MARGIN, 0.25),
]


@pytest.mark.parametrize("call, metric, value", HISTOGRAMS, ids=lambda x: getattr(x, "name", ""))
def test_histogram(worker, call, metric, value):
    call(worker.metrics)
    assert worker.value(f"{metric.name}_count") == 1
    assert worker.value(f"{metric.name}_sum") == value
    below = max(b for b in metric.buckets if b < value)
    at = min(b for b in metric.buckets if b >= value)
    buckets = {key[1]: v for key, v in worker.samples().items() if key[0] == f"{metric.name}_bucket"}
    counts = {dict(labels)["le"]: v for labels, v in buckets.items()}
    of = {float(le): v for le, v in counts.items()}
    assert (of[below], of[at], of[float("inf")]) == (0, 1, 1)


def test_gauge_follows_the_numbers_and_falls_back_to_none(worker):
    worker.metrics.live({"relaying": 2, "sealing": 1})
    assert worker.value(m.LIVE.name, state="relaying") == 2
    worker.metrics.live({"relaying": 1})
    assert worker.value(m.LIVE.name, state="relaying") == 1
    assert worker.value(m.LIVE.name, state="sealing") == 0
    worker.metrics.live({})
    assert worker.value(m.LIVE.name, state="relaying") == 0


def test_every_metric_is_tested():
    counted = {metric for _, metric, _, _ in COUNTS} | {metric for _, metric, _ in HISTOGRAMS} | {m.LIVE}
    assert counted == set(m.METRICS)


def test_zero_tokens_make_no_series(worker):
    worker.metrics.tokens("bridged", 0)
    assert worker.value(m.TOKENS.name, kind="bridged") is None


@pytest.mark.parametrize("series", [mixin.BOTH_SERIES, mixin.PREFILL_SERIES, mixin.DECODE_SERIES, mixin.VERIFY_SERIES])
def test_series_are_there_before_anything_has_happened(series):
    worker = Worker([*series, (m.LIVE, "relaying")])
    samples = worker.samples()
    assert set(samples.values()) == {0}
    shown = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in samples}
    assert shown == {metric.name for metric, *_ in series} | {m.LIVE.name}
    worker.metrics.live({"relaying": 1})
    assert worker.value(m.LIVE.name, state="relaying") == 1


def test_names_follow_prometheus_and_sglang():
    for metric in m.METRICS:
        assert metric.name.startswith("sglang:handoff_")
        assert (metric.kind == m.COUNTER) == metric.name.endswith("_total")
        assert bool(metric.buckets) == (metric.kind == m.HISTOGRAM)
        assert not set(metric.labels) & set(SGLANG)


def test_off_counts_outcomes_and_drops_alone(monkeypatch):
    """Without --enable-metrics nothing may be registered: /metrics and its folder are as released."""

    def never(*args, **kwargs):
        raise AssertionError("a metric was made")

    for name in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(prometheus_client, name, never)
    metrics = m.HandoffMetrics(None, [(m.ATTEMPTS,), (m.LIVE, "relaying")])
    for call, *_ in COUNTS + HISTOGRAMS:
        call(metrics)
    metrics.live({"relaying": 1})
    assert metrics.outcomes == {"committed": 1, "ordinary/penalties": 1}
    assert metrics.drops == {"version": 1, "term": 3}
