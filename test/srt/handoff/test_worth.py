"""What a bridge must give to pay for its replay."""

import pytest
from sglang.srt.disaggregation.handoff.cost import LinearCost
from sglang.srt.disaggregation.handoff.worth import ReplayWorth
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=1, suite="stage-b-test-cpu")

ROUND, STEP = 0.016, 0.007


@pytest.fixture
def rounds():
    cost = LinearCost()
    cost.took(1, ROUND)
    return cost


def test_a_step_of_each_running_request_where_nothing_is_known(rounds):
    assert ReplayWorth(LinearCost()).tokens(25) == ReplayWorth(rounds).tokens(25) == 25
    assert ReplayWorth(rounds).tokens(0) == 0


def test_a_round_costs_the_steps_that_fit_in_it(rounds):
    worth = ReplayWorth(rounds)
    worth.step_launched(4, 100.0, after_idle=False)
    worth.step_launched(5, 100.0 + STEP, after_idle=False)
    assert worth.tokens(25) == 58  # 25 * 16 / 7 = 57.1


def test_a_round_that_is_shorter_than_a_step_costs_a_step(rounds):
    worth = ReplayWorth(rounds)
    worth.step_launched(4, 100.0, after_idle=False)
    worth.step_launched(5, 100.0 + 3 * ROUND, after_idle=False)
    assert worth.tokens(25) == 25


@pytest.mark.parametrize("number, idle", [(6, False), (5, True), (4, False)], ids=["another forward between", "idle before", "again"])
def test_steps_that_do_not_follow_each_other_teach_nothing(rounds, number, idle):
    worth = ReplayWorth(rounds)
    worth.step_launched(4, 100.0, after_idle=False)
    worth.step_launched(number, 100.0 + STEP, after_idle=idle)
    assert worth.tokens(25) == 25
    worth.step_launched(number + 1, 100.0 + 2 * STEP, after_idle=False)
    assert worth.tokens(25) == 58, "but the next one does"
