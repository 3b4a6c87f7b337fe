"""A bad network between real workers: the answer is right, or the error of today; both workers end empty and at work.

Control messages pass through the rig's proxy, which spoils them. In namespaces, where root may make them, single links
are cut; elsewhere those tests are skipped.
"""

import concurrent.futures
import itertools
import random
import time

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff_stack import SEAL_S, SILENCE_S
from rig import client, idle, network, stack
from rig.stack import Options

register_cpu_ci(est_time=150, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

# Beside faults of ours and a full link, whose short queue loses messages, nothing may be heard for a second.
LEASE_S = 2.0
BUDGET = 64
PAST_BUDGET = 100  # tokens of an answer that P alone can't end
ENV = hs.SHORT_TIMES | hs.BRIDGE_ALWAYS | {
    hs.BUDGET_VARIABLE: str(BUDGET),
    "SGLANG_DISAGGREGATION_HANDOFF_LEASE": str(LEASE_S),
    # Upstream's own ways back after a cut, sooner than by default.
    "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "1",
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": "3",
}
SLACK_S = 15  # for a loaded machine, on top of a documented deadline
# Upstream gives a worker up when two heartbeats in a row fail: an interval of 2 s and 2 to 3 s to answer, each.
HEARTBEAT_MIN_S, HEARTBEAT_MAX_S = 5, 10
SHORT_CUT_S, LONG_CUT_S = 0.5, LEASE_S + SEAL_S + SILENCE_S + 1
FAULTS = ("drop", "double", "delay", "reorder")
rids = (f"network-{n}" for n in itertools.count())
needs_links = pytest.mark.skipif(network.problem() is not None, reason=str(network.problem()))


@pytest.fixture(scope="module")
def pair(oracle):
    flags = dict(prefill_handoff=True, decode_handoff=True, with_faults=True)
    with stack.pair(Options(env=ENV), namespaces=network.problem() is None, **flags) as running:
        running.oracle = oracle
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(pair):
    """Both workers end empty, and the next 20 requests are right."""
    yield
    hs.nothing_is_left(pair)


def mixed_requests() -> list[tuple[list[int], int, int]]:
    """(prompt, answer's tokens, tokens that must have come before its KV may go). Half are not held: 0."""
    draw = random.Random(7)
    requests = []
    for n in range(20):
        held = n % 2
        length = draw.choice((3, 40, 150, 600))
        tokens = PAST_BUDGET if held else draw.randrange(1, 60)
        requests.append((hs.prompt(5000 + n, length), tokens, draw.randrange(2, 20) if held else 0))
    return requests


@pytest.mark.parametrize("chance", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("kinds", [*((kind,) for kind in FAULTS), FAULTS], ids="-".join)
def test_spoiled_messages_never_spoil_an_answer(pair, kinds, chance):
    """ONCE, PREFIX: control messages lost, repeated, late and out of order; every index comes once and is right."""
    requests = mixed_requests()
    expected = [pair.oracle(ids, max_new_tokens=tokens, ignore_eos=True) for ids, tokens, _ in requests]
    before = pair.control.counts()
    pair.set_link(40)
    pair.control.set(**dict.fromkeys(kinds, chance), seed=3)

    def ask(request) -> client.Answer:
        ids, tokens, first = request
        if not first:
            return client.generate(pair.url, ids, max_new_tokens=tokens, ignore_eos=True)
        return hs.generate_held(pair, ids, tokens_first=first, rid=next(rids), max_new_tokens=tokens, ignore_eos=True)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, requests))
    done = {what: count - before.get(what, 0) for what, count in pair.control.counts().items()}
    for (_, _, first), answer, right in zip(requests, answers, expected):
        hs.same(answer, right)
        if first:
            assert hs.handoff(answer)["outcome"] == "committed", hs.handoff(answer)
            assert hs.handoff(answer)["tokens_bridged"] >= first - 1
    assert all((done[kind] > 0) == (kind in kinds) for kind in FAULTS), done
    if chance >= 0.1:
        assert sum(done[kind] for kind in kinds) > chance * done["passed"] / 4, done
        assert ("reorder" not in kinds) or done["overtaken"] > 0


def test_a_prefill_worker_that_is_not_heard_does_not_keep_requests_for_nothing(pair):
    """No message arrives: a firewall, or D's list of peers. After a lease P takes no more offers, until those sessions end."""
    ids, sampling = hs.prompt(5120, 150), dict(max_new_tokens=12, ignore_eos=True)
    right = pair.oracle(ids, **sampling)
    before = hs.server_info(pair.prefill)["outcomes"].get("ordinary/peer_silent", 0)
    pair.control.set(drop=1.0)
    assert client.generate(pair.url, ids, **sampling).ids == right.ids
    time.sleep(LEASE_S + 0.5)
    assert client.generate(pair.url, ids, **sampling).ids == right.ids
    assert hs.server_info(pair.prefill)["outcomes"].get("ordinary/peer_silent", 0) == before + 1
    pair.control.set()
    hs.assert_empty(pair)
    pair.set_link(40)  # or the KV may be there before P's first word
    answer = client.generate(pair.url, hs.prompt(5121, 600), **sampling)
    assert hs.handoff(answer)["outcome"] in ("committed", "finished"), "P tries again"


def test_transfers_stall_and_resume(pair):
    """Transfers under way stop, go on one by one, all stop again, and go on: late, never wrong."""
    requests = [(hs.prompt(5130 + n, 100 + 50 * n), dict(max_new_tokens=40 + 12 * n, ignore_eos=True)) for n in range(6)]
    names = [next(rids) for _ in requests]
    right = [pair.oracle(ids, **sampling) for ids, sampling in requests]
    pair.set_link(40)
    for rid in names:
        pair.hold.request(rid)
    streams = [client.start_generate(pair.url, ids, rid=rid, **s) for rid, (ids, s) in zip(names, requests)]
    for stream in streams:
        stream.wait_for_tokens(3, timeout=60)
    order = random.Random(1).sample(names, len(names))
    for rid in order[:3]:
        pair.hold.release(rid)
        time.sleep(0.1)
    pair.hold.all()
    for rid in order[3:]:
        pair.hold.release(rid)
        time.sleep(0.1)
    time.sleep(LEASE_S)
    pair.hold.release()
    for stream, expected in zip(streams, right):
        hs.same(stream.result(timeout=60), expected)
    outcomes = [hs.handoff(stream.answer)["outcome"] for stream in streams]
    assert set(outcomes) <= {"committed", "finished"} and outcomes.count("committed") >= 2, outcomes


def bridging(pair, seed: int, max_new_tokens: int = PAST_BUDGET):
    """A request that bridges while its transfer is held: (stream, rid, the right answer)."""
    ids, rid = hs.prompt(seed, 120), next(rids)
    right = pair.oracle(ids, max_new_tokens=max_new_tokens, ignore_eos=True)
    return hs.bridging(pair, ids, rid=rid, max_new_tokens=max_new_tokens), rid, right


def heal_control(pair, worker: str) -> None:
    """End the cut of the control channel. Requests are handed off again soon after, however long the cut was: the
    workers don't wait for TCP's next try."""
    pair.network.heal(worker, "control")
    end = time.monotonic() + SLACK_S
    for seed in itertools.count(5150):
        answer = client.generate(pair.url, hs.prompt(seed, 600), max_new_tokens=12, ignore_eos=True)
        if hs.handoff(answer)["outcome"] != "ordinary":
            return
        assert time.monotonic() < end, hs.handoff(answer)


def alone_unless_sealed(answer: client.Answer) -> bool:
    """D took over by itself, if P's own end, by its budget, had not reached it before."""
    return hs.handoff(answer)["alone"] or hs.handoff(answer)["boundary"] == BUDGET


@needs_links
@pytest.mark.parametrize("seconds", [SHORT_CUT_S, LONG_CUT_S])
@pytest.mark.parametrize("worker", ["prefill", "decode"])
def test_control_channel_cut(pair, worker, seconds):
    """Control channel lost, KV arrives: D takes over, alone if the cut outlives the lease; P times out and frees.

    One request's KV comes during the cut, one's after it, and a third is sent during it.
    """
    new_ids = hs.prompt(5102, 120)
    new_right = pair.oracle(new_ids, max_new_tokens=PAST_BUDGET, ignore_eos=True)
    after, after_rid, after_right = bridging(pair, 5101)
    during, during_rid, during_right = bridging(pair, 5100)  # last, so that P is still far from its budget
    long = seconds == LONG_CUT_S
    pair.network.cut(worker, "control")
    try:
        cut_at = time.monotonic()
        pair.hold.release(during_rid)
        new = client.start_generate(pair.url, new_ids, max_new_tokens=PAST_BUDGET, ignore_eos=True)
        if long:
            answer = during.result(timeout=LEASE_S + SEAL_S + SLACK_S)
            assert alone_unless_sealed(answer)
            # the ordinary path needs no control channel
            assert hs.handoff(new.result(timeout=SLACK_S))["reason"] == "not_opened"
        time.sleep(max(0, cut_at + seconds - time.monotonic()))
    finally:
        heal_control(pair, worker)
    pair.hold.release(after_rid)
    hs.same(during.result(), during_right)
    hs.same(after.result(), after_right)
    hs.same(new.result(), new_right)
    assert hs.handoff(after.answer)["outcome"] == "committed"
    if long:
        assert alone_unless_sealed(after.answer)  # P gave it up during the cut


@needs_links
def test_prefill_frees_while_the_control_channel_is_cut(pair):
    """Sealed or bridging, P hears no more of D and frees by itself, before anything is healed."""
    streams = [bridging(pair, 5110 + n) for n in range(3)]
    pair.network.cut("decode", "control")
    try:
        pair.hold.release()
        idle.wait_idle(pair.prefill.url, timeout=LEASE_S + SILENCE_S + SLACK_S)
        for stream, _, right in streams:
            hs.same(stream.result(timeout=SLACK_S), right)
    finally:
        heal_control(pair, "decode")


@needs_links
@pytest.mark.parametrize("seconds", [SHORT_CUT_S, SILENCE_S + 1, None], ids=["short", "silence", "given-up"])
def test_kv_link_cut(pair, seconds):
    """The workers reach each other over the control channel alone. What P can end comes while the link is cut; the rest
    after it, or, when upstream's heartbeat has given the prefill worker up (seconds None), as the error of today."""
    can_end, _, can_end_right = bridging(pair, 5120, max_new_tokens=BUDGET // 2)
    needs_kv, _, needs_kv_right = bridging(pair, 5121)
    moving_ids, new_ids = hs.prompt(5122, 1000), hs.prompt(5123, 100)
    sampling = dict(max_new_tokens=20, ignore_eos=True)
    rights = [pair.oracle(ids, **sampling) for ids in (moving_ids, new_ids)]
    pair.set_link(10)
    moving = client.start_generate(pair.url, moving_ids, **sampling)  # 2 MB: longer than a second under way
    moving.wait_for_tokens(1, timeout=60)
    pair.network.cut("prefill", "decode")
    try:
        cut_at = time.monotonic()
        pair.hold.release()
        new = client.start_generate(pair.url, new_ids, **sampling)
        hs.same(can_end.result(timeout=SLACK_S), can_end_right)
        assert hs.handoff(can_end.answer)["outcome"] == "finished"
        needs_kv.wait_for_tokens(BUDGET, timeout=SLACK_S)
        if seconds is None:
            assert hs.ended_in_error(needs_kv.result(timeout=HEARTBEAT_MAX_S + SILENCE_S + SLACK_S))
            assert needs_kv.answer.ids == needs_kv_right.ids[:BUDGET]
        else:
            time.sleep(max(0, cut_at + seconds - time.monotonic()))
    finally:
        pair.network.heal("prefill", "decode")
    pair.set_link(None)
    may_fail = time.monotonic() - cut_at > HEARTBEAT_MIN_S
    for stream, right in ((needs_kv, needs_kv_right), *zip((moving, new), rights)):
        answer = stream.result(timeout=HEARTBEAT_MAX_S + SILENCE_S + SLACK_S)
        if not (may_fail and hs.ended_in_error(answer)):
            hs.same(answer, right)


@pytest.mark.parametrize("chance", [0.003, 0.2])
def test_looks_at_transfers_that_fail_at_random(pair, chance):
    """Upstream's own fault injection on both workers: every answer is right, or ends in an error that the client is told
    after a right beginning; none hangs. Workers look at each transfer many times, so that 0.2 lets hardly any through."""
    requests = [(hs.prompt(5140 + n, 40 + 5 * n), 20 + n) for n in range(40)]
    expected = [pair.oracle(ids, max_new_tokens=tokens, ignore_eos=True) for ids, tokens in requests]
    pair.set_link(20)
    pair.fail_polls(chance)

    def ask(request) -> tuple[client.Answer, bool]:
        """The answer, and whether it's a whole one."""
        stream = client.start_generate(pair.url, request[0], max_new_tokens=request[1], ignore_eos=True)
        try:
            answer = stream.result(timeout=60)
        except client.RequestFailed:
            return stream.answer, False
        return answer, not hs.ended_in_error(answer)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, requests))
    for (answer, whole), right in zip(answers, expected):
        if whole:
            hs.same(answer, right)
        else:
            assert answer.ids == right.ids[: len(answer.ids)]
    whole = [answer for answer, whole in answers if whole]
    assert len(whole) < len(requests), "nothing has failed"
    if chance < 0.1:
        assert any(hs.handoff(answer)["outcome"] != "ordinary" for answer in whole)
