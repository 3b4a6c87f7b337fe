"""The regression stages' figures and judgement, on timelines that can be done in the head."""

import pytest
from handoff_regression import Figures, Thresholds, Timeline, figures, violations
from handoff_thresholds import CPU, H20


def line(*gaps, ttft=0.1, sent=50.0, boundary=None, ids=None):
    """An answer whose tokens are ``gaps`` seconds apart."""
    arrivals = [(sent + ttft, 1)]
    for gap in gaps:
        arrivals.append((arrivals[-1][0] + gap, arrivals[-1][1] + 1))
    handoff = {} if boundary is None else {"outcome": "committed", "boundary": boundary}
    return Timeline(sent, arrivals, list(ids or range(len(arrivals))), handoff)


def test_of_one_answer():
    found = line(0.01, 0.01, 0.05, 0.01, 0.01, boundary=3)
    assert found.ttft == pytest.approx(0.1) and found.itl == pytest.approx(0.01)
    assert found.switch_gap == pytest.approx(0.05)


def test_tokens_that_come_together_share_their_time():
    found = Timeline(0.0, [(1.0, 1), (1.4, 5), (1.5, 6)], [], {"boundary": 3})
    assert found.itl == pytest.approx(0.1)
    assert found.switch_gap == pytest.approx(0.4), "tokens 2 to 5 came in one event: t3 is P's, t4 D's own"


@pytest.mark.parametrize("boundary", [None, 9])
def test_no_token_of_Ds_own_no_switch(boundary):
    assert line(0.01, 0.01, boundary=boundary).switch_gap is None


def test_of_two_arms():
    handoff = [line(0.01, 0.02, 0.01, 0.01, boundary=2), line(0.01, 0.03, 0.01, 0.01, boundary=2)]
    ordinary, unified = [line(*[0.01] * 4, ttft=0.5)] * 2, [line(*[0.01] * 4, ttft=0.08)] * 2
    found = figures(handoff, ordinary, unified)
    assert (found.committed, found.different) == (1.0, 0)
    assert found.ttft_ratio == pytest.approx(0.2) and found.tail_ms == pytest.approx(20)
    assert found.gap_in_itls_p50 == pytest.approx(2.5) and found.gap_in_itls_p95 == pytest.approx(3)
    assert found.gap_share == pytest.approx(0.025 / 0.4)


def test_answers_that_differ_are_counted():
    assert figures([line(0.01, 0.01, boundary=1)], [line(0.01, 0.01, ids=[0, 1, 9])]).different == 1


def test_nothing_handed_off_is_an_error():
    with pytest.raises(ValueError, match="no request was handed off"):
        figures([line(0.01)], [line(0.01)])


GOOD = Figures(1.0, 0, 0.2, 1.1, 2.0, 0.03, 5.0)


@pytest.mark.parametrize("limits", [CPU, H20])
def test_good_figures_pass(limits):
    assert violations(GOOD, limits) == []


@pytest.mark.parametrize(
    "limits, changes, said",
    [
        (CPU, {"committed": 0.9}, "committed is 0.9, at least 1"),
        (CPU, {"different": 1}, "different is 1, at most 0"),
        (CPU, {"ttft_ratio": 1.0}, "ttft_ratio is 1, at most 0.6"),
        (CPU, {"gap_share": 0.6}, "gap_share is 0.6, at most 0.5"),
        (H20, {"tail_ms": 62.8}, "tail_ms is 62.8, at most 16"),
        (H20, {"tail_ms": None}, "tail_ms was not measured"),
        (H20, {"gap_in_itls_p50": 1.6}, "gap_in_itls_p50 is 1.6, at most 1.5"),
        (H20, {"gap_in_itls_p95": 40.0}, "gap_in_itls_p95 is 40, at most 2.5"),
    ],
)
def test_a_regression_is_named(limits, changes, said):
    (text,) = violations(Figures(**vars(GOOD) | changes), limits)
    assert text.startswith(said)


def test_a_limit_that_is_not_set_is_not_looked_at():
    assert violations(Figures(**vars(GOOD) | {"gap_in_itls_p95": 1e9}), Thresholds()) == []
