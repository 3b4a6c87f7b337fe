"""What a bridge must give to pay for its replay."""

import pytest
from sglang.srt.disaggregation.handoff.cost import LinearCost
from sglang.srt.disaggregation.handoff.worth import MOST_CREDIT, ReplayWorth
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=1, suite="stage-b-test-cpu")

ROUND, STEP, NOW = 0.016, 0.007, 1000.0


@pytest.fixture
def rounds():
    cost = LinearCost()
    cost.took(1, ROUND)
    return cost


def strict(rounds):
    """Nothing is for free."""
    return ReplayWorth(rounds, 0.0)


# ---------------------------------------------------------------------------- what a round costs
def test_a_step_of_each_running_request_where_nothing_is_known(rounds):
    assert strict(LinearCost()).tokens(NOW, 25, True) == strict(rounds).tokens(NOW, 25, True) == 25
    assert strict(rounds).tokens(NOW, 0, True) == 0


def test_a_round_costs_the_steps_that_fit_in_it(rounds):
    worth = strict(rounds)
    worth.step_launched(4, 100.0, after_idle=False)
    worth.step_launched(5, 100.0 + STEP, after_idle=False)
    assert worth.tokens(NOW, 25, True) == 58  # 25 * 16 / 7 = 57.1


def test_a_round_that_is_shorter_than_a_step_costs_a_step(rounds):
    worth = strict(rounds)
    worth.step_launched(4, 100.0, after_idle=False)
    worth.step_launched(5, 100.0 + 3 * ROUND, after_idle=False)
    assert worth.tokens(NOW, 25, True) == 25


@pytest.mark.parametrize("number, idle", [(6, False), (5, True), (4, False)], ids=["another forward between", "idle before", "again"])
def test_steps_that_do_not_follow_each_other_teach_nothing(rounds, number, idle):
    worth = strict(rounds)
    worth.step_launched(4, 100.0, after_idle=False)
    worth.step_launched(number, 100.0 + STEP, after_idle=idle)
    assert worth.tokens(NOW, 25, True) == 25
    worth.step_launched(number + 1, 100.0 + 2 * STEP, after_idle=False)
    assert worth.tokens(NOW, 25, True) == 58, "but the next one does"


# ---------------------------------------------------------------------------- what is for free
SHARE = 0.02


def free_rounds(worth, start, every, seconds):
    """How many of the rounds offered ``every`` so many seconds are for free, beside 25 requests."""
    free = 0
    for number in range(int(seconds / every)):
        now = start + number * every
        if worth.tokens(now, 25, True) == 0:
            free += 1
            worth.round_took(now + ROUND, ROUND, 25)
    return free


def test_rounds_that_take_less_than_their_share_are_for_free(rounds):
    assert free_rounds(ReplayWorth(rounds, SHARE), NOW, every=1.0, seconds=100) == 100  # 1.6 %


def test_nothing_is_for_free_on_a_D_without_room_to_spare(rounds):
    worth = ReplayWorth(rounds, SHARE)
    assert (worth.tokens(NOW, 25, True), worth.tokens(NOW, 25, False)) == (0, 25)


def test_rounds_take_no_more_than_their_share_for_free(rounds):
    free = free_rounds(ReplayWorth(rounds, SHARE), NOW, every=0.05, seconds=100)  # 32 %, if all were
    assert (100 * SHARE + MOST_CREDIT) / ROUND - 2 <= free <= (100 * SHARE + MOST_CREDIT) / ROUND + 1


def test_a_burst_after_a_quiet_time_is_for_free_up_to_its_limit(rounds):
    worth = ReplayWorth(rounds, SHARE)
    worth.tokens(NOW, 25, True)
    assert free_rounds(worth, NOW + 3600, every=1e-4, seconds=0.1) == int(MOST_CREDIT / ROUND)


def test_rounds_that_pay_are_paid_off_in_a_bounded_time(rounds):
    worth = ReplayWorth(rounds, SHARE)
    for _ in range(1000):
        worth.round_took(NOW, ROUND, 25)
    assert worth.tokens(NOW + (MOST_CREDIT - 0.001) / SHARE, 25, True) == 25
    assert worth.tokens(NOW + (MOST_CREDIT + ROUND + 0.001) / SHARE, 25, True) == 0


def test_a_round_beside_nobody_costs_nothing(rounds):
    worth = ReplayWorth(rounds, SHARE)
    for _ in range(1000):
        worth.round_took(NOW, ROUND, 0)
    assert worth.tokens(NOW, 25, True) == 0


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_is_one(rounds, share):
    with pytest.raises(ValueError, match="DECODE_SHARE must be between 0 and 1"):
        ReplayWorth(rounds, share)
