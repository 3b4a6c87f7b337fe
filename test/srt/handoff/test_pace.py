"""When P is asked to stop, from what D has seen."""

import pytest

from sglang.srt.disaggregation.handoff.cost import LinearCost, StepCost
from sglang.srt.disaggregation.handoff.pace import MOST_LATE, LateSeals, SealAhead, SealAheadOfSteps, SealNow

LAG = 8
INTERVAL = 0.010


def ahead(start_up=None, per_token=0.0, interval=INTERVAL, late=()):
    """A session's pace whose worker has seen replay rounds of that cost, and that has seen P's tokens."""
    cost, seals = LinearCost(), LateSeals()
    for tokens in (1, 4, 16, 64) if start_up is not None else ():
        cost.took(tokens, start_up + per_token * tokens)
    for tokens in late:
        seals.seen(tokens)
    pace = SealAhead(LAG, cost, seals)
    for n in range(5 if interval else 0):
        pace.appended(100 + n * interval, 1)
    return pace


@pytest.mark.parametrize("pace", [SealNow(LAG), ahead(None), ahead(0.01, interval=None)])
def test_with_nothing_known_P_is_asked_to_stop_at_once_when_little_is_left(pace):
    assert pace.seal_ahead(LAG) == 0 and pace.seal_ahead(LAG + 1) is None


def test_a_round_as_short_as_a_token_is_the_last_one():
    """P makes one more token while it runs."""
    assert ahead(INTERVAL).seal_ahead(0) == ahead(INTERVAL).seal_ahead(40) == 1


def test_D_replays_first_while_that_leaves_less():
    slow = ahead(0.0, per_token=0.001)  # 400 tokens: 40 of P's; 40 tokens: 4 of P's; 4: less than one
    assert slow.seal_ahead(400) is None and slow.seal_ahead(40) is None and slow.seal_ahead(4) == 1


def test_rounds_that_get_no_shorter_are_not_put_off():
    """A round costs three of P's tokens however short it is: the client would wait as long for the last of two."""
    assert ahead(3 * INTERVAL).seal_ahead(3) == ahead(3 * INTERVAL).seal_ahead(100) == 1


def test_a_round_that_gets_half_as_long_is_worth_another():
    slow = ahead(0.02, per_token=0.001)  # 9 entries: 30 ms, 3 of P's tokens; 100: 121 ms, 13 of them, which take 34
    assert slow.seal_ahead(9) == 1 and slow.seal_ahead(100) is None


def by_steps(step, interval=INTERVAL):
    """The pace of a worker that replays by decode steps of ``step`` seconds."""
    cost = StepCost()
    pace = SealAheadOfSteps(0, cost, LateSeals())
    assert pace.seal_ahead(3) is None
    for rows in (1, 7, 3):
        cost.took(rows, step)
    for n in range(5):
        pace.appended(100 + n * interval, 1)
    assert cost.seconds(4) == pytest.approx(4 * step), "each of a request's tokens is a step of its own"
    return pace


def test_steps_as_long_as_Ps_never_catch_up():
    assert by_steps(INTERVAL).seal_ahead(40) == by_steps(2 * INTERVAL).seal_ahead(2) == 1


def test_shorter_steps_catch_up_to_the_last_entry():
    pace = by_steps(INTERVAL / 2)
    assert pace.seal_ahead(40) is None and pace.seal_ahead(1) is None and pace.seal_ahead(0) == 1


def test_one_peers_nonsense_moves_no_others_seal_far():
    """P's word for where its log ends is not bounded, and all requests of a worker learn from it."""
    assert ahead(INTERVAL, late=[2**31 - 1] * 30).seal_ahead(4) <= 1 + MOST_LATE


def test_requests_to_stop_that_come_too_late_are_made_sooner():
    assert ahead(INTERVAL, late=[2] * 30).seal_ahead(4) == 3
    assert ahead(INTERVAL, late=[0, 0, 1, 0]).seal_ahead(4) == 2
    assert ahead(INTERVAL, late=[2] * 30 + [0] * 30).seal_ahead(4) == 1


def test_Ps_interval_is_counted_by_entry():
    """Three entries in one message after 30 ms: 10 ms each."""
    pace = ahead(INTERVAL, interval=None)
    for n in range(4):
        pace.appended(100 + 0.03 * n, 3)
    assert pace.seal_ahead(100) == 1
