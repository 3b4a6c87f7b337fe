"""The benchmark suite's statistics and figures, on answers made up here."""

import random

import numpy as np
import pytest

from benchmark.handoff.answer import Request
from benchmark.handoff.suite import figures, statistics
from benchmark.handoff.suite.block import CANCELLED, ERROR, WHOLE, Block, Sample


def sample(
    *gaps, ttft=0.5, sent_at=100.0, number=0, ended=WHOLE, boundary=None, ids=None, due_at=None, prompt="1-9", output="1-9"
):
    """A request whose tokens are so many seconds apart; without a TTFT none came."""
    at = [] if ttft is None else [sent_at + ttft]
    for gap in gaps:
        at.append(at[-1] + gap)
    record = {} if boundary is None else {"outcome": "committed", "boundary": boundary}
    request = Request(sent_at, tuple(at), tuple(range(len(at)) if ids is None else ids), record)
    return Sample(request, number, 5, len(at), prompt, output, ended, (at or [sent_at + 1])[-1], due_at)


def block(*samples, arm="PD", plan="1", **more):
    return Block("case", arm, "sglang", plan, tuple(samples), **more)


def test_quantiles_are_values_that_were_seen():
    found = statistics.quantiles([[float(n)] for n in range(1, 201)])
    assert {name: one.value for name, one in found.items()} == {"p50": 100, "p95": 190, "p99": 198}
    assert not any(one.is_largest for one in found.values())


def test_a_quantile_of_too_few_is_marked_as_the_largest():
    found = statistics.quantiles([[float(n)] for n in range(1, 51)])
    assert [one.is_largest for one in found.values()] == [False, False, True]
    assert found["p99"].value == 50


def test_no_quantiles_of_nothing():
    assert statistics.quantiles([]) is None and statistics.quantiles([[], []]) is None


def test_one_request_has_no_interval():
    one = statistics.quantiles([[3.0, 4.0]])["p50"]
    assert (one.value, one.low, one.high) == (3.0, None, None)


def test_the_interval_of_a_median_is_the_known_one():
    # for 101 values the exact 95 % interval of the median lies between the 41st and the 61st of them
    one = statistics.quantiles([[float(n)] for n in range(101)])["p50"]
    assert one.low == pytest.approx(40, abs=2.5) and one.high == pytest.approx(60, abs=2.5)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng, covered = random.Random(1), 0
    for _ in range(100):
        one = statistics.quantiles([[rng.expovariate(1.0)] for _ in range(60)])["p50"]
        covered += one.low <= np.log(2) <= one.high
    assert 88 <= covered <= 100


def test_gaps_of_one_answer_are_drawn_together():
    # 100 answers' gaps agree within an answer: 10,000 gaps say no more than 100 TTFTs
    rng = random.Random(1)
    means = [rng.uniform(1, 3) for _ in range(100)]
    together = statistics.quantiles([[mean] * 100 for mean in means])["p50"]
    alone = statistics.quantiles([[mean] for mean in means])["p50"]
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=0.4)


def test_spread_shows_all_repeats():
    assert statistics.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0, "repeats": 3}
    assert statistics.spread([]) is None


def values(found):
    return {name: one.value for name, one in found.items()} if found else None


def test_the_switch_is_measured_by_itself_and_within_itl():
    found = figures.of_samples([sample(0.1, 0.4, 0.1, boundary=2)])
    assert values(found["boundary_gap"])["p50"] == pytest.approx(400)
    assert values(found["itl"])["p50"] == pytest.approx(100) and values(found["itl"])["p99"] == pytest.approx(400)
    assert values(found["largest_gap"])["p50"] == pytest.approx(400)
    assert found["outcomes"] == {"committed": 1}


def test_times_are_in_milliseconds_from_sending():
    found = figures.of_samples([sample(0.1, 0.1, ttft=0.25)])
    assert values(found["ttft"])["p50"] == pytest.approx(250) and values(found["end_to_end"])["p50"] == pytest.approx(450)
    assert found["boundary_gap"] is None


def test_errors_are_counted_and_not_timed():
    found = figures.of_samples([sample(0.1), sample(9.0, ttft=9.0, ended=ERROR), sample(ttft=None, ended=ERROR)])
    assert (found["requests"], found["whole"], found["errors"]) == (3, 1, 2)
    assert values(found["ttft"])["p99"] == pytest.approx(500) and values(found["itl"])["p99"] == pytest.approx(100)


def test_a_client_that_went_away_counts_with_what_it_got():
    gone = [sample(0.3, ttft=0.7, ended=CANCELLED), sample(ttft=None, ended=CANCELLED)]
    found = figures.of_samples([*gone, sample(0.1)])
    assert (found["cancelled"], found["whole"], found["errors"]) == (2, 1, 0)
    assert values(found["ttft"])["p99"] == pytest.approx(700) and values(found["itl"])["p99"] == pytest.approx(300)
    assert values(found["end_to_end"])["p99"] == pytest.approx(600), "of whole answers alone"


def test_each_bucket_has_its_own_figures():
    samples = [
        sample(0.1, ttft=0.1, prompt="64-255"),
        sample(0.1, ttft=2.0, prompt="1024-2047"),
        sample(0.1, prompt="64-255", ttft=0.2),
    ]
    found = figures.of_blocks([block(*samples)])
    assert list(found["prompt"]) == ["64-255", "1024-2047"], "from the shortest on"
    assert found["prompt"]["64-255"]["requests"] == 2
    assert values(found["prompt"]["64-255"]["ttft"])["p99"] == pytest.approx(200)
    assert values(found["prompt"]["1024-2047"]["ttft"])["p50"] == pytest.approx(2000)
    assert found["all"]["requests"] == 3


def test_rates_run_from_the_first_request_to_the_last_end():
    one = block(
        sample(1.0, ttft=1.0, sent_at=10.0),
        sample(1.0, ttft=2.0, sent_at=11.0),
        sample(ttft=0.5, sent_at=11.0, ended=CANCELLED),
    )
    assert one.seconds == pytest.approx(4.0)
    assert one.requests_per_s == pytest.approx(2 / 4) and one.tokens_per_s == pytest.approx(5 / 4)
    two = block(sample(0.5, ttft=0.5))
    rates = figures.of_blocks([one, two])["all"]["requests_per_s"]
    assert rates == {"median": 0.75, "low": pytest.approx(0.5), "high": pytest.approx(1.0), "repeats": 2}


def test_a_client_that_sends_late_is_seen():
    assert figures.of_blocks([block(sample(0.1, sent_at=100.0, due_at=99.75))])["all"]["client_late_ms"] == pytest.approx(
        250
    )


def test_different_answers_are_named_and_cut_ones_compared_as_far_as_they_go():
    right = block(sample(0.1, 0.1, 0.1, ids=[1, 2, 3, 4]), sample(0.1, ids=[5, 6], number=1), arm="unified x2")
    cut = sample(0.1, ids=[1, 2], ended=CANCELLED)
    assert figures.different([right, block(cut, sample(0.1, ids=[5, 6], number=1))], "unified x2") == {}
    wrong = figures.different([right, block(sample(0.1, 0.1, ids=[1, 2, 9], ended=CANCELLED))], "unified x2")
    assert [line.endswith("request 0: from token 3 on") for line in wrong["PD"]] == [True]
    assert figures.different([right, block(cut, plan="2")], "unified x2") == {}, "another plan asks something else"
    assert figures.compared([right, block(cut, sample(0.1, ids=[5, 6], number=1))], "unified x2") == 2


def test_an_answer_longer_than_the_right_one_is_different():
    right = block(sample(0.1, ids=[1, 2]), arm="unified x2")
    assert "PD" in figures.different([right, block(sample(0.1, 0.1, ids=[1, 2, 3]))], "unified x2")
