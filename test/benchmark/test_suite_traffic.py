"""The benchmark suite's traffic: arrivals, lengths, cancellations."""

import random
import statistics

import pytest

from benchmark.handoff.suite import cpu, gpu
from benchmark.handoff.suite.traffic import Bucket, Bursts, Case, Closed, Mix, Poisson, apportioned

IDS = range(10, 500)
MIX = Mix("mix", (Bucket(10, 20, 0.7), Bucket(100, 200, 0.3)), (Bucket(1, 4, 0.5), Bucket(5, 50, 0.5)), cancelled=0.25)


def test_poisson_pauses_are_exponential_with_the_mean_of_the_rate():
    due = Poisson(4.0).due(20_001, random.Random(1))
    pauses = [b - a for a, b in zip(due, due[1:])]
    assert due[0] == 0 and len(due) == 20_001
    assert statistics.mean(pauses) == pytest.approx(1 / 4, rel=0.03)
    assert statistics.stdev(pauses) == pytest.approx(1 / 4, rel=0.03), "of an exponential distribution it equals the mean"
    assert sum(pause > 0.25 for pause in pauses) / 20_000 == pytest.approx(0.3679, abs=0.01), "1/e"


def test_bursts_come_together_at_the_same_mean_rate():
    due = Bursts(4.0, 8).due(8_004, random.Random(1))
    assert len(due) == 8_004 and due == sorted(due)
    assert len(set(due)) == 1001 and due[:8] == [0.0] * 8 and due[8] > 0
    assert len(due) / due[-1] == pytest.approx(4.0, rel=0.1)


def test_nothing_is_due_in_a_closed_loop():
    assert Closed(3).due(2, random.Random(1)) == [None, None]


def test_lengths_are_log_uniform_within_their_bucket():
    rng = random.Random(1)
    lengths = [Bucket(64, 1023, 1.0).draw(rng) for _ in range(20_000)]
    assert min(lengths) == 64 and max(lengths) == 1023
    # 64 to 1,024 are four doublings: a quarter of all in each
    for low in (64, 128, 256, 512):
        assert sum(low <= length < 2 * low for length in lengths) / 20_000 == pytest.approx(0.25, abs=0.015)


def test_a_bucket_of_one_length_gives_that_length():
    assert {Bucket(4096, 4096, 1.0).draw(random.Random(n)) for n in range(50)} == {4096}
    assert Bucket(4096, 4096, 1.0).name == "4096" and Bucket(1, 4, 1.0).name == "1-4"


@pytest.mark.parametrize("count, times", [(10, [5, 3, 2]), (7, [4, 2, 1]), (1, [1, 0, 0]), (0, [0, 0, 0])])
def test_buckets_get_their_share_to_the_nearest_request(count, times):
    buckets = [Bucket(1, 1, 0.5), Bucket(2, 2, 0.3), Bucket(3, 3, 0.2)]
    drawn = apportioned(buckets, count, random.Random(1))
    assert [drawn.count(bucket) for bucket in buckets] == times


def test_a_plan_is_the_same_for_every_arm_and_another_for_every_seed():
    case = Case(MIX, Poisson(2.0), 40)
    assert case.plan("1", IDS) == case.plan("1", IDS) != case.plan("2", IDS)
    assert case.plan("1", IDS) != Case(MIX, Closed(1), 40).plan("1", IDS)


def test_a_plan_keeps_its_mix():
    plan = Case(MIX, Closed(4), 40).plan("1", IDS)
    assert [sum(one.prompt_bucket == name for one in plan) for name in ("10-20", "100-200")] == [28, 12]
    assert [sum(one.output_bucket == name for one in plan) for name in ("1-4", "5-50")] == [20, 20]
    for one in plan:
        for bucket, length in ((one.prompt_bucket, len(one.prompt)), (one.output_bucket, one.new_tokens)):
            low, high = map(int, bucket.split("-"))
            assert low <= length <= high
    assert {token for one in plan for token in one.prompt} <= set(IDS)


def test_no_two_prompts_begin_alike():
    plan = Case(MIX, Closed(4), 200).plan("1", IDS)
    assert len({one.prompt[:8] for one in plan}) == 200


def test_the_share_of_those_who_go_away_do_so_in_time():
    plan = Case(MIX, Closed(4), 400).plan("1", IDS)
    by_tokens = [one for one in plan if one.cancel_after_tokens is not None]
    by_time = [one for one in plan if one.cancel_after_s is not None]
    assert len(by_tokens) + len(by_time) == 100 and not set(by_tokens) & set(by_time)
    assert all(0 < one.cancel_after_tokens < one.new_tokens for one in by_tokens)
    assert all(0 <= one.cancel_after_s <= MIX.patience_s for one in by_time) and len(by_time) > 20


def test_nobody_goes_away_unless_the_mix_says_so():
    plan = Case(Mix("mix", MIX.prompts, MIX.outputs), Closed(4), 100).plan("1", IDS)
    assert all(one.cancel_after_tokens is None and one.cancel_after_s is None for one in plan)


@pytest.mark.parametrize("scale", cpu.SCALES.values(), ids=lambda scale: scale.name)
def test_every_case_on_cpu_fits_into_the_workers(scale):
    cases = scale.cases(["expected", "hard"], 1.0)
    assert {type(case.arrivals) for case in cases} == {Closed, Poisson, Bursts}
    for case in cases:
        for buckets in (case.mix.prompts, case.mix.outputs):
            assert sum(bucket.share for bucket in buckets) == pytest.approx(1)
        assert case.mix.prompts[-1].high + case.mix.outputs[-1].high < scale.options.max_total_tokens / 2


def test_the_cases_on_gpus_are_those_of_the_public_figures():
    cases = gpu.cases(["expected", "hard"], 1.0)
    alone = [case for case in cases if case.arrivals == Closed(1)]
    assert [case.mix.prompts[0].name for case in alone] == ["4096", "16384", "32768"]
    assert {case.arrivals.at_once for case in cases if isinstance(case.arrivals, Closed)} == {1, 2, 4, 8, 16, 32, 64}
    assert {"16384", "32768"} <= {str(row["prompt"]) for row in gpu.PUBLIC_H20}
    for case in cases:
        assert sum(bucket.share for bucket in case.mix.prompts) == pytest.approx(1)
        if isinstance(case.arrivals, Closed):
            assert case.requests >= 2 * case.arrivals.at_once, "else the loop is hardly ever full"


def test_more_can_be_asked_by_one_factor():
    small, large = (cpu.SCALES["tiny"].cases(["hard"], size)[0].requests for size in (1.0, 4.0))
    assert large == 4 * small
