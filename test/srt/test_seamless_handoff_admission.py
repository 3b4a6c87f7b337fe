"""Real workers: who is bridged, and a P that makes way for prompts."""

import time

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff_requests import Asked
from rig import stack
from rig.pace import Pace
from rig.stack import Options

register_cpu_ci(est_time=90, suite="stage-b-test-cpu")
pytestmark = [pytest.mark.real, pytest.mark.alone]

MAX_BRIDGES = 4
# so that no machine is too fast to be found bridging: a token on P takes 10 ms, and a long prompt's forward many times as
# long as its transfer
PACE = Pace(token=0.0005, extend=0.0, step=0.01, more=0.0)
LONG = 900  # tokens of a prompt
TRANSFER_S = 2.0  # over a slow link
NOT_BRIDGED = "sglang:handoff_not_bridged_total"


@pytest.fixture(scope="module")
def pair(oracle):
    options = Options(
        args=("--enable-metrics",),
        env=hs.SHORT_TIMES
        | PACE.env()
        | {"SGLANG_DISAGGREGATION_HANDOFF_MAX_BRIDGES": str(MAX_BRIDGES), hs.BUDGET_VARIABLE: "1200"},
    )
    few = ("--max-prefill-tokens", str(LONG))
    with stack.pair(options, prefill_handoff=True, decode_handoff=True, prefill_args=few) as running:
        running.oracle = oracle
        for n in range(6):  # P learns what forwards and transfers take
            Asked(running, 9200 + n, LONG, 8).is_right()
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(pair):
    """Both workers end empty, and the next 20 requests are right."""
    yield
    hs.nothing_is_left(pair)


def not_bridged(pair, reason: str) -> float:
    return sum(value for name, value in hs.metrics(pair.prefill).items() if name.startswith(NOT_BRIDGED) and reason in name)


def test_one_too_many_gets_its_first_token_early_all_the_same(pair):
    before = not_bridged(pair, "too_many_bridges")
    bridged = [Asked(pair, 9300 + n, 50, 500, held=True, wait_for=5) for n in range(MAX_BRIDGES)]
    alone = Asked(pair, 9310, 50, 100, held=True, wait_for=1)
    assert all(request.tokens >= 5 for request in bridged)
    pair.hold.release()
    assert [request.is_right()["boundary"] > 4 for request in bridged] == [True] * MAX_BRIDGES
    record = alone.is_right()
    assert (record["outcome"], record["boundary"], record["replay_rounds"]) == ("committed", 1, 0)
    assert not_bridged(pair, "too_many_bridges") == before + 1


def test_prompts_that_wait_go_first(pair):
    """Many long prompts at once: P has no time for those whose transfer is shorter than the next forward."""
    before = not_bridged(pair, "prompts_wait")
    requests = [Asked(pair, 9400 + n, LONG, 40) for n in range(8)]
    records = [request.is_right() for request in requests]
    assert not_bridged(pair, "prompts_wait") > before
    assert {record["outcome"] for record in records} <= {"committed", "ordinary"}


@pytest.fixture
def slow_link(pair):
    """The KV of a long prompt takes `TRANSFER_S`, and P has seen some that did. `nothing_is_left` ends it."""
    events = pair.hold.events()
    size = sum(event["bytes"] for event in events if event["what"] == "start")
    tokens = sum(event["tokens"] for event in events if event["what"] == "queued")
    pair.set_link(LONG * size / tokens * 8 / 1e6 / TRANSFER_S)
    for request in [Asked(pair, 9500 + n, LONG, 8) for n in range(8)]:
        request.is_right()
        pair.hold.wait_for("done", rid=request.rid)  # P may have made all eight tokens before


def test_P_makes_way_and_goes_on_when_the_KV_is_late(pair, slow_link):
    """A prompt comes when the transfer would have ended, had it not been held."""
    late = Asked(pair, 9520, LONG, 1200, held=True, wait_for=2)
    queued = pair.hold.wait_for("queued", rid=late.rid)["at"]
    # P expects at least 0.8 of the new time by now, and gives a transfer up as stalled after twice what it expects
    time.sleep(max(0.0, queued + 1.1 * TRANSFER_S - time.monotonic()))
    prompt = Asked(pair, 9521, LONG, 8, wait_for=1)
    had = late.tokens
    late.stream.wait_for_tokens(had + 20, timeout=60)
    late.kv_arrives()
    record = late.is_right()
    assert record["resumes"] == 1
    assert record["boundary"] >= had + 20
    prompt.is_right()
