"""The soak's own checks: each kind of fault in an answer is told, memory that grows is seen, the plan is its seed's."""

import pytest

from benchmark.handoff.soak import memory, plan
from benchmark.handoff.soak.judge import DIFFERENT, DOUBLED, FAILED, LOST, against, judge
from rig.client import Answer, Event, RequestFailed

RIGHT = [5, 6, 7, 7, 8, 9]
STOP = {"type": "length", "length": 6}
ABORT = {"type": "abort", "status_code": 500, "message": "transfer failed"}


def answer(ids, reason=STOP, text=None, **meta) -> Answer:
    events = [Event(0.0, [token], "", {"meta_info": {"completion_tokens": n}}) for n, token in enumerate(ids, 1)]
    info = {"completion_tokens": len(ids), "prompt_tokens": 3} | meta
    return Answer(0.0, 1.0, list(ids), str(ids) if text is None else text, reason, info, events)


def verdict(got, fault=None, round_fault=None, error=None):
    request = plan.Request("rid", plan.Prompt((1, 2, 3), {}), True, 0.0, fault)
    return judge(request, round_fault, got, answer(RIGHT), error)


@pytest.mark.parametrize(
    "ids, kind",
    [
        (RIGHT, None),
        (RIGHT[:4], None),
        ([], None),
        ([5, 6, 6, 7, 7, 8, 9], DOUBLED),
        ([5, 6, 6, 7], DOUBLED),
        ([*RIGHT, 9], DOUBLED),
        ([5, 7, 7, 8, 9], LOST),
        ([6, 7], LOST),
        ([5, 6, 7, 8, 9], LOST),
        ([5, 6, 1, 7, 8, 9], DIFFERENT),
        ([*RIGHT, 1], DIFFERENT),
        ([9], DIFFERENT),
    ],
)
def test_how_the_tokens_went_wrong(ids, kind):
    assert against(ids, RIGHT) == kind


def test_a_right_answer_is_right():
    assert verdict(answer(RIGHT)) == verdict(answer(RIGHT), fault="fail") and verdict(answer(RIGHT)).violation is None


@pytest.mark.parametrize("fault", [None, "hold", "fail", "cancel", "abort"])
def test_wrong_tokens_are_permitted_to_no_fault(fault):
    assert verdict(answer([5, 6, 1]), fault, error=RequestFailed("gone")).violation == DIFFERENT


def test_an_answer_that_is_cut_short_is_lost_unless_the_client_left():
    assert verdict(answer(RIGHT[:4])).violation == LOST
    assert verdict(answer(RIGHT[:4]), "fail").violation == LOST  # a failure must be said
    assert verdict(answer(RIGHT[:4], None), "cancel").violation is None


@pytest.mark.parametrize("fault", [None, "fail", "abort"])
def test_no_end_is_lost(fault):
    assert verdict(answer(RIGHT[:4], None), fault, error=TimeoutError("90 s")).violation == LOST


@pytest.mark.parametrize(
    "fault, round_fault, cause",
    [
        ("fail", None, "fail"),
        ("abort", "pauses", "abort"),
        (None, "abort_all", "abort_all"),
        ("hold", "abort_all", "abort_all"),
    ],
)
def test_an_error_is_permitted_to_some_faults(fault, round_fault, cause):
    for got, error in ((answer(RIGHT[:2], ABORT), None), (answer(RIGHT[:2], None), RequestFailed("500"))):
        assert verdict(got, fault, round_fault, error).error == cause
        assert verdict(got, fault, round_fault, error).violation is None


@pytest.mark.parametrize(
    "fault, round_fault", [(None, None), ("hold", None), (None, "long_freeze_decode"), ("hold", "slow_link")]
)
def test_an_error_is_not_permitted_to_the_others(fault, round_fault):
    assert verdict(answer(RIGHT[:2], ABORT), fault, round_fault).violation == FAILED
    assert verdict(answer(RIGHT[:2], None), fault, round_fault, RequestFailed("500")).violation == FAILED


def test_the_servers_count_tells_what_ids_hide():
    """The stream repeats all ids, so a token sent twice may be seen in the counts alone."""
    got = answer(RIGHT)
    got.events[3].data["meta_info"]["completion_tokens"] = 3
    assert verdict(got).violation == DOUBLED
    got.events[3].data["meta_info"]["completion_tokens"] = 5
    assert verdict(got).violation == LOST


@pytest.mark.parametrize(
    "change", [dict(text="x"), dict(reason={"type": "stop"}), dict(completion_tokens=7), dict(prompt_tokens=2)]
)
def test_text_reason_and_usage_count(change):
    assert verdict(answer(RIGHT, **change)).violation == DIFFERENT


def samples(per_request, number=2000, noise=200_000):
    return [(n, (700 << 20) + per_request * n + (noise if n % 160 else 0)) for n in range(0, number + 1, 80)]


def test_memory_that_grows_is_seen_and_noise_is_not():
    assert memory.flat(samples(0)) and memory.flat(samples(1000))
    assert memory.flat(samples(8192)) is False
    assert memory.flat([(n, 10**9 if n > 900 else 10**8) for n in range(0, 2001, 80)])  # grew early, then no more


def test_too_few_requests_are_not_judged():
    assert memory.flat(samples(10**6, number=400)) is None


def test_the_plan_is_its_seeds_and_whole():
    rounds = plan.make(500, 7, 1.6)
    assert rounds == plan.make(500, 7, 1.6) != plan.make(500, 8, 1.6)
    requests = [r for round in rounds for r in round.requests]
    assert len({r.rid for r in requests}) == len(requests) == 500
    assert {r.fault for r in requests} == {None, *plan.REQUEST_FAULTS}
    assert {round.fault for round in plan.make(5000, 7, 1.6)} == {None, *plan.ROUND_FAULTS}
    assert plan.PERMIT_ERROR <= {*plan.REQUEST_FAULTS, *plan.ROUND_FAULTS}
