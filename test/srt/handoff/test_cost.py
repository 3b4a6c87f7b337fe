"""Lines through what was seen."""

import pytest

from sglang.srt.disaggregation.handoff.cost import LinearCost, StepCost


def test_the_cost_is_a_line_through_the_rounds():
    cost = LinearCost()
    assert cost.seconds(5) is None
    cost.took(8, 0.02)
    assert cost.seconds(1) == cost.seconds(99) == pytest.approx(0.02), "one round says nothing of the slope"
    for tokens in (2, 30, 8, 100):
        cost.took(tokens, 0.015 + 0.001 * tokens)
    for _ in range(60):
        cost.took(4, 0.019), cost.took(50, 0.065)
    assert cost.seconds(10) == pytest.approx(0.025, rel=0.02)


def test_the_cost_follows_a_change_and_is_never_negative():
    cost = LinearCost()
    for _ in range(50):
        cost.took(4, 0.01), cost.took(40, 0.01)
    for _ in range(30):
        cost.took(4, 0.03), cost.took(40, 0.03)
    assert cost.seconds(20) == pytest.approx(0.03, rel=0.05)
    cost.took(1000, 0.0)
    assert cost.seconds(5000) >= 0


def test_a_start_up_that_would_be_negative_bends_nothing():
    """Long ones have become slow, short ones were seen before: what all long ones took is what a long one takes."""
    cost = LinearCost()
    for _ in range(20):
        cost.took(150, 0.02)
    for _ in range(10):
        cost.took(900, 1.5)
    assert cost.seconds(900) == pytest.approx(1.5, rel=0.01)
    assert cost.seconds(0) == 0


def test_steps_have_no_start_up():
    cost = StepCost()
    assert cost.seconds(3) is None
    cost.took(1, 0.01), cost.took(9, 0.01)
    assert cost.seconds(4) == pytest.approx(0.04)
