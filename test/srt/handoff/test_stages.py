"""The handoff's milestones become SGLang's stages: latency samples, and spans of its tracing."""

from types import SimpleNamespace

import pytest
from sglang.srt.disaggregation.handoff import stages
from sglang.srt.disaggregation.handoff.record import RequestRecord
from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats, convert_time_to_realtime_ns


class Collector:
    def __init__(self):
        self.samples = []

    def observe_per_stage_req_latency(self, stage, latency):
        self.samples.append((stage, round(latency, 6)))


class Trace(SimpleNamespace):
    """What SGLang's request traces are asked for."""

    def trace_slice(self, piece):
        self.slices.append(piece)

    def abort(self):
        self.ended = True


@pytest.fixture
def stats():
    found = SchedulerReqTimeStats()
    found.set_metrics_collector(Collector())
    found.trace_ctx = Trace(tracing_enable=True, slices=[], ended=False)
    return found


def passed(**at):
    record = RequestRecord("committed")
    for what, seconds in at.items():
        record.mark(what, seconds)
    return record


def test_decode(stats):
    record = passed(first_relay=101.0, sealing=102.0, draining=102.5, committed=103.0)
    record._rounds = [(102.1, 102.4, 6)]
    stages.observe_stages(stats, record, stages.DECODE_STAGES, tokens=7)
    assert stats.metrics_collector.samples == [
        ("handoff_relay", 2.0), ("handoff_seal", 0.5), ("handoff_drain", 0.5), ("handoff_replay", 0.3),
    ]  # fmt: skip
    relay, *_, replay = stats.trace_ctx.slices
    assert relay.attrs == {"outcome": "committed", "tokens": 7} and replay.attrs == {"tokens": 6}
    assert relay.start_time_ns == convert_time_to_realtime_ns(101.0)
    assert relay.end_time_ns == convert_time_to_realtime_ns(103.0)


def test_decode_finished_on_a_relayed_token_has_no_seal(stats):
    stages.observe_stages(stats, passed(first_relay=101.0, finished=104.0), stages.DECODE_STAGES, tokens=3)
    assert stats.metrics_collector.samples == [("handoff_relay", 3.0)]


@pytest.mark.parametrize("end", ["committed", "finished", "failed"])
def test_prefill(stats, end):
    record = passed(opened=101.0, sealed=102.0, **{end: 102.25})
    stages.observe_stages(stats, record, stages.PREFILL_STAGES, tokens=3)
    assert stats.metrics_collector.samples == [("handoff_bridge", 1.0), ("handoff_sealed", 0.25)]


def test_prefill_taken_over_without_a_seal(stats):
    stages.observe_stages(stats, passed(opened=101.0, committed=102.25), stages.PREFILL_STAGES, tokens=3)
    assert stats.metrics_collector.samples == [("handoff_bridge", 1.25)]


def test_sglang_tells_the_record_of_the_first_own_token_and_of_the_end(stats):
    """By the lines inserted in set_last_decode_finish_time and set_completion_time."""
    stats.handoff = record = passed(last_relay=101.0, committed=101.5)
    record.fields["boundary"] = 9
    record.on_first_own_token = lambda gap: stages.observe_boundary(stats, record)
    for at in (102.0, 103.0):
        stats.set_last_decode_finish_time(at)
    (boundary,) = [piece for piece in stats.trace_ctx.slices if piece.slice_name == "handoff_boundary"]
    assert boundary.attrs == {"boundary": 9}
    assert record.fields["gap_ms"] == 1000 and "completed" not in record.fields["at_ms"]
    stats.set_completion_time(104.0)
    assert record.between("committed", "completed") == 2.5 and stats.trace_ctx.ended


def test_without_a_handoff_sglang_is_as_released(stats):
    stats.set_last_decode_finish_time(102.0)
    stats.set_completion_time(104.0)
    assert [piece.slice_name for piece in stats.trace_ctx.slices] == ["decode_loop"]
