"""A request's milestones, as meta_info and SGLang's log of request times show them."""

import itertools
import pickle

import pytest
from sglang.srt.disaggregation.handoff import record as records
from sglang.srt.disaggregation.handoff.record import RequestRecord


@pytest.fixture
def clock(monkeypatch):
    """perf_counter that is set by hand; the first record is made at 100 s."""
    now = [100.0]
    monkeypatch.setattr(records.time, "perf_counter", lambda: now[0])

    def set_to(seconds):
        now[0] = seconds

    return set_to


def test_milestones_are_milliseconds_since_the_start(clock):
    record = RequestRecord("offered")
    clock(100.25)
    record.mark("first_relay")
    record.mark("arrived", 99.5)
    assert record.fields["at_ms"] == {"first_relay": 250, "arrived": -500}


def test_a_milestone_is_passed_once_and_the_last_relay_again(clock):
    record = RequestRecord("offered")
    for second in (101, 102):
        clock(second)
        record.mark("first_relay")
        record.mark_again("last_relay")
    assert record.fields["at_ms"] == {"first_relay": 1000, "last_relay": 2000}


def test_opened_says_whether_it_is_new(clock):
    record = RequestRecord("offered")
    assert record.opened(12.5) is True
    clock(101)
    assert record.opened(99.0) is False
    assert record.fields["prefill_ms"] == 12.5 and record.fields["at_ms"] == {"opened": 0}


def test_rounds_end_in_the_order_of_their_start(clock):
    record = RequestRecord("offered")
    record.start_round(5)
    clock(100.1)
    record.start_round(2)
    clock(100.5)
    tokens, took = record.end_round()
    assert (tokens, round(took, 6)) == (5, 0.5)
    assert record.fields["rounds"] == [[0, 500, 5], [100, None, 2]]
    clock(100.6)
    tokens, took = record.end_round()
    assert (tokens, round(took, 6)) == (2, 0.5)
    assert list(record.rounds()) == [(100.0, 100.5, 5), (100.1, 100.6, 2)]


def test_the_gap_is_from_the_last_relay_to_the_first_own_token(clock):
    record, gaps = RequestRecord("offered"), []
    record.on_first_own_token = gaps.append
    clock(101)
    record.mark_again("last_relay")
    record.decoded(101.5)  # not committed: a step of somebody else's
    record.mark("committed", 101.6)
    assert not gaps
    record.decoded(102.0)
    record.decoded(103.0)
    assert gaps == [1.0] and record.fields["gap_ms"] == 1000
    assert record.fields["at_ms"]["first_own_token"] == 2000


def test_completion_is_told_once_and_lets_go_of_the_request(clock):
    record, told = RequestRecord("opened"), itertools.count()
    record.on_completed = lambda: next(told)
    record.on_first_own_token = lambda gap: None
    record.completed(104.0)
    record.completed(105.0)
    assert next(told) == 1
    assert record.fields["at_ms"] == {"completed": 4000}
    assert record.on_first_own_token is None and record.on_completed is None


def test_spans_need_both_ends(clock):
    record = RequestRecord("opened")
    record.mark("opened")
    assert record.span("opened", ("sealed", "committed")) is None
    record.mark("committed", 103.0)
    assert record.span("opened", ("sealed", "committed")) == (100.0, 103.0)
    record.mark("sealed", 102.0)
    assert record.span("opened", ("sealed", "committed")) == (100.0, 102.0)
    assert record.span("draining", ("committed",)) is None
    assert record.between("opened", "sealed") == 2.0 and record.between("opened", "draining") is None


def test_it_travels_as_plain_data_without_its_callbacks(clock):
    record = RequestRecord("offered")
    record.on_completed = lambda: None  # a lambda can't be pickled
    assert pickle.loads(pickle.dumps(record)) == record.fields
    # SGLang's tokenizer workers pickle what they were sent once more.
    assert pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(record)))) == record.fields


def test_the_log_line_has_the_milestones_in_their_order(clock):
    record = RequestRecord("committed")
    record.mark("committed", 102.0)
    record.mark("arrived", 99.5)
    record.mark("opened", 101.0)
    assert record.describe() == "handoff=committed, arrived=-500.00ms, opened=1000.00ms, committed=2000.00ms"


def test_a_request_that_took_no_part_has_a_reason_and_no_times(clock):
    record = RequestRecord("ordinary", "penalties")
    record.decoded(101.0)
    record.completed(102.0)
    assert record.fields == {"outcome": "ordinary", "reason": "penalties"}
    assert record.describe() == "handoff=ordinary (penalties)"
