"""Real workers short of running slots and KV slots: a request waits, goes back to P or is retracted, and is right."""

import re
import time

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff_requests import Asked, wait_until
from rig import idle, stack
from rig.stack import Options

register_cpu_ci(est_time=120, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

BUDGET = 128
P_SLOTS, D_SLOTS, D_RUNNING = 1320, 1200, 2
RESERVE = 8  # KV slots that D keeps for each request when it admits another
FREE = 20  # KV slots left when D's pool is called full: fewer than a replay wants


@pytest.fixture(scope="module")
def pair(oracle):
    with stack.pair(
        Options(env=hs.SHORT_TIMES | hs.BRIDGE_ALWAYS | {hs.BUDGET_VARIABLE: str(BUDGET)} | hs.PACE.env()),
        prefill_handoff=True,
        decode_handoff=True,
        prefill_args=("--max-total-tokens", str(P_SLOTS)),
        decode_args=(
            *("--max-total-tokens", str(D_SLOTS), "--max-running-requests", str(D_RUNNING)),
            *("--num-reserved-decode-tokens", str(RESERVE)),
        ),
    ) as running:
        running.oracle = oracle
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(pair):
    """Both workers end empty, and the next 20 requests are right."""
    yield
    hs.nothing_is_left(pair)


def fill_decode(pair, seed: int, used: int) -> Asked:
    """Take all but `FREE` KV slots of D beside `used` ones, by a prompt whose transfer is held, beside one other."""
    # an answer of one token takes the ordinary path
    filler = Asked(pair, seed, D_SLOTS - used - FREE, 1, held=True)
    wait_until(lambda: idle.loads(pair.decode.url)["disaggregation"]["decode_transfer_queue_reqs"] >= 2)
    return filler


def test_no_running_slot_on_decode(pair):
    """Requests whose KV has come wait while P bridges, and commit when there is a slot."""
    running = [Asked(pair, 6000 + n, 20, 250) for n in range(D_RUNNING)]
    wait_until(lambda: idle.loads(pair.decode.url)["num_running_reqs"] == D_RUNNING)
    waiting = [Asked(pair, 6010 + n, 40 + 10 * n, BUDGET + 20, held=True, wait_for=1) for n in range(3)]
    for request in waiting:
        request.kv_arrives()
    records = [request.is_right() for request in waiting]
    assert [record["outcome"] for record in records] == ["committed"] * 3
    for request in running:
        request.is_right()
    slot_free_at = min(request.stream.answer.ended_at for request in running)
    assert pair.hold.wait_for("done", rid=waiting[0].rid)["at"] < slot_free_at
    for request, record in zip(waiting, records):
        events = request.stream.answer.events
        own = next(e.at for e in events if e.data["meta_info"]["completion_tokens"] > record["boundary"])
        assert own > slot_free_at - 0.5  # the two clients' threads are not that late


def test_prefill_pool_full_while_bridging(pair):
    """Bridges hold when P has no slot left, and go on when one of them is over; a prompt gets its slots; all are right."""
    lengths = (300, 340, 340)
    bridging = [Asked(pair, 6100 + n, length, 120, held=True) for n, length in enumerate(lengths)]
    wait_until(lambda: idle.loads(pair.prefill.url)["num_used_tokens"] > P_SLOTS - len(lengths))
    assert sum(request.tokens for request in bridging) <= P_SLOTS - sum(lengths) + len(lengths)  # a t1 needs no slot
    prompt = Asked(pair, 6110, 60, 8, held=True)
    wait_until(lambda: idle.loads(pair.prefill.url)["queues"]["waiting"] == 1)
    bridging[0].kv_arrives()
    prompt.stream.wait_for_tokens(1, timeout=60)
    pair.hold.release()
    for request in [*bridging, prompt]:
        assert request.is_right()["outcome"] in ("committed", "finished")


def test_both_pools_full(pair):
    """Nobody can go on: past the silence timeout one request ends in an error, and its slots let the others go on."""
    bridging = [Asked(pair, 6150 + n, length, 120, held=True) for n, length in enumerate((60, 489, 489))]
    wait_until(lambda: idle.loads(pair.prefill.url)["num_used_tokens"] > P_SLOTS - 3)
    # P has no room to compute this one, and D keeps slots for it that the replays want
    prompt = Asked(pair, 6160, 125, 8)
    wait_until(lambda: idle.loads(pair.prefill.url)["queues"]["waiting"] == 1)
    pair.hold.release()
    failed = [request.ended_early() for request in [*bridging, prompt]]
    assert 1 <= sum(failed) < len(bridging) and not failed[-1]


def test_transfers_fail_while_the_prefill_pool_is_full(pair):
    """P has no slot for another token, and D no KV: past the silence timeout clients are told, and P's slots are free again."""
    bridging = [Asked(pair, 6180 + n, length, 120, held=True) for n, length in enumerate((60, 489, 489))]
    wait_until(lambda: idle.loads(pair.prefill.url)["num_used_tokens"] == P_SLOTS)
    for request in bridging:
        pair.hold.fail(request.rid)
    assert any([request.ended_early() for request in bridging])
    Asked(pair, 6190, 125, 8).is_right()


@pytest.mark.parametrize("tokens", [BUDGET - 4, BUDGET + 30])
def test_decode_pool_full_at_replay(pair, tokens):
    """D gives the request back to P, which goes on: to the end, or to its budget, and then D takes over when it has room."""
    request = Asked(pair, 6200 + tokens, 100, tokens, held=True, wait_for=30)
    filler = fill_decode(pair, 6210, used=100)
    request.kv_arrives()
    if tokens < BUDGET:
        assert request.is_right()["outcome"] == "finished"
        filler.kv_arrives()
    else:
        request.stream.wait_for_tokens(BUDGET, timeout=60)
        time.sleep(hs.SEAL_S + hs.LEASE_S)
        assert request.runs and request.tokens == BUDGET
        filler.kv_arrives()
        assert request.is_right()["outcome"] == "committed"
    filler.is_right()


def test_decode_pool_full_and_prefill_has_ended_its_log(pair):
    """P's budget is spent before the KV comes: D waits for slots and takes over."""
    request = Asked(pair, 6300, 100, BUDGET + 30, held=True, wait_for=BUDGET)
    filler = fill_decode(pair, 6301, used=100)
    request.kv_arrives()
    time.sleep(2 * hs.SEAL_S)
    assert request.runs and request.tokens == BUDGET
    filler.kv_arrives()
    assert request.is_right()["outcome"] == "committed"
    filler.is_right()


def test_decode_pool_full_for_a_moment(pair):
    """Room comes before the seal timeout: D goes on with the replay."""
    request = Asked(pair, 6310, 100, BUDGET + 30, held=True, wait_for=30)
    filler = fill_decode(pair, 6311, used=100)
    request.kv_arrives()
    filler.kv_arrives()
    request.is_right()
    filler.is_right()


def test_a_replay_leaves_the_running_request_its_slots(pair):
    """Upstream admits a request only if a running one can still end when all others are retracted. A request whose
    KV is replayed can't be: with the slots it would take, the running one would be aborted."""
    running = Asked(pair, 6400, 20, 300)
    request = Asked(pair, 6401, 100, BUDGET + 20, held=True, wait_for=BUDGET)
    filler = fill_decode(pair, 6402, used=320 + 100)
    # FREE slots more are left than the running request needs until its end, and the replay wants more
    running.stream.wait_for_tokens(205, timeout=60)
    request.kv_arrives()
    for one in (running, request):
        one.is_right()
    filler.kv_arrives()
    filler.is_right()


def test_retraction_before_and_after_the_commit(pair):
    """The pool runs full: D retracts a request that it took over, while another waits with its KV, partly replayed."""
    before = retracted(pair)
    # together well over D's slots, also when one of the two is some tokens ahead of the other and ends first
    running = [Asked(pair, 6500 + n, 20, 500, held=True, wait_for=1) for n in range(D_RUNNING)]
    for request in running:
        request.kv_arrives()
        request.stream.wait_for_tokens(10, timeout=60)
    waiting = Asked(pair, 6510, 250, BUDGET + 30, held=True, wait_for=20)
    waiting.kv_arrives()
    records = [request.is_right() for request in [*running, waiting]]
    assert [record["outcome"] for record in records] == ["committed"] * 3
    assert retracted(pair) > before


def test_what_waits_for_a_place_does_not_wait_for_what_was_retracted(oracle):
    """A retracted request comes back when there are slots, and these are those of four requests whose KV is here and whose
    clients have had tokens, at D's usual reserve for each. They take the places that are free, and end."""
    slots, reserve, answer = 1200, 128, 600
    few = ("--max-total-tokens", str(slots), "--max-running-requests", str(D_RUNNING), "--num-reserved-decode-tokens", str(reserve))
    env = hs.BRIDGE_ALWAYS | {hs.BUDGET_VARIABLE: str(BUDGET)}  # a P that is slow to answer is not to be given up
    with stack.pair(Options(env=env), prefill_handoff=True, decode_handoff=True, decode_args=few) as pair:
        pair.oracle = oracle
        running = [Asked(pair, 6600 + n, 20, answer) for n in range(D_RUNNING)]
        wait_until(lambda: idle.loads(pair.decode.url)["num_running_reqs"] == D_RUNNING)
        waiting = [Asked(pair, 6610 + n, 50, BUDGET + 70) for n in range(4)]
        for requests in (waiting, running):
            oracle.all([one.ids for one in requests], at_once=4, **requests[0].sampling)
        for request in [*running, *waiting]:
            request.is_right()
        before, _, retraction = pair.decode.log.read_text().partition("Retract requests")
        assert retraction and int(re.findall(r"#transfer-req: (\d+)", before)[-1]) > 0, "requests whose KV is here, when one was retracted"
        hs.assert_empty(pair)


def retracted(pair) -> int:
    """How often D has said that it retracts."""
    return pair.decode.log.read_text().count("KV cache pool is full. Retract requests")
