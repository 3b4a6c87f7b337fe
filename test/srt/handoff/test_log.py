"""IMMUTABLE entries: the log takes appends at its end, and nothing else, ever changes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.handoff.log import HandoffLog, LogConflict, LogError, LogGap


def log_of(*ids, closed_at=None):
    log = HandoffLog()
    log.extend(1, ids)
    if closed_at is not None:
        log.close(closed_at)
    return log


def entries(log):
    return log.slice(1, len(log) + 1)


def test_an_empty_log():
    log = HandoffLog()
    assert (len(log), log.closed_at, log.complete, entries(log)) == (0, None, False, [])


def test_entries_are_counted_from_one():
    log = log_of(10, 20, 30)
    assert log.slice(1, 2) == [10]
    assert log.slice(2, 4) == [20, 30]
    assert log.slice(4, 9) == []


@pytest.mark.parametrize(
    "start, ids, new",
    [(4, [40], 1), (1, [10, 20, 30], 0), (2, [20], 0), (3, [30, 40, 50], 2), (4, [], 0), (1, [], 0)],
)
def test_an_equal_overlap_adds_nothing_twice(start, ids, new):
    log = log_of(10, 20, 30)
    assert log.extend(start, ids) == new
    assert entries(log) == [10, 20, 30, 40, 50][: 3 + new]


@pytest.mark.parametrize(
    "start, ids, error",
    [
        (5, [50], LogGap),
        (0, [10], LogGap),
        (-1, [10], LogGap),
        (3, [31, 40], LogConflict),
        (1, [10, 21], LogConflict),
        (4, [40, 50, 60], LogConflict),  # past the end at 5
        (6, [60], LogGap),
    ],
)
def test_a_refused_append_leaves_the_log_unchanged(start, ids, error):
    log = log_of(10, 20, 30, closed_at=5)
    with pytest.raises(error):
        log.extend(start, ids)
    assert (entries(log), log.closed_at) == ([10, 20, 30], 5)


def test_the_end_may_lie_ahead_of_the_entries():
    log = log_of(10, closed_at=3)
    assert not log.complete
    log.extend(2, [20, 30])
    assert log.complete


def test_closing_twice_at_the_same_length_is_harmless():
    log = log_of(10, 20, closed_at=2)
    log.close(2)
    assert log.closed_at == 2 and log.complete


@pytest.mark.parametrize("length", [1, 3])
def test_the_end_never_moves(length):
    log = log_of(10, 20, closed_at=2)
    with pytest.raises(LogConflict):
        log.close(length)
    assert log.closed_at == 2


def test_a_log_is_not_closed_below_its_length():
    log = log_of(10, 20)
    with pytest.raises(LogConflict):
        log.close(1)
    assert log.closed_at is None


def test_close_here_gives_up_entries_that_never_came():
    log = log_of(10, closed_at=3)
    log.close_here()
    assert log.complete and len(log) == 1
    with pytest.raises(LogConflict):
        log.extend(2, [20])


def test_a_reopened_log_keeps_its_entries():
    log = log_of(10, 20, closed_at=2)
    log.reopen()
    assert log.extend(3, [30]) == 1 and entries(log) == [10, 20, 30]


def test_the_digest_names_the_entries_not_the_end():
    assert log_of(1, 2).digest() == log_of(1, 2, closed_at=7).digest()
    assert len({log_of(*ids).digest() for ids in ((), (1,), (1, 2), (2, 1), (258,))}) == 5
    assert len(HandoffLog().digest()) == 8


@given(
    truth=st.lists(st.integers(0, 2**31 - 1), max_size=12),
    appends=st.lists(st.tuples(st.integers(1, 14), st.integers(0, 14), st.booleans()), max_size=30),
)
def test_PREFIX_under_any_sequence_of_appends(truth, appends):
    """Pieces of one log, late, twice, out of order or corrupted, give a prefix of it."""
    log = HandoffLog()
    for start, size, corrupt in appends:
        ids = truth[start - 1 : start - 1 + size]
        if corrupt and ids and start <= len(log):
            ids = [ids[0] ^ 1, *ids[1:]]  # an entry that is known already
        before = entries(log)
        try:
            new = log.extend(start, ids)
        except LogError:
            assert entries(log) == before
        else:
            assert not (corrupt and ids and start <= len(before))
            assert entries(log) == truth[: len(before) + new]
