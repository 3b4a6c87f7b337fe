"""Failures of the real system: rows of the protocol's failure table, each ending with the survivors empty and at work."""

import itertools
import threading
import time

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff_stack import COMMIT_S, LEASE_S, SEAL_S, SILENCE_S
from rig import client, idle, stack
from rig.stack import Options

register_cpu_ci(est_time=400, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

BUDGET = 64
ENV = hs.SHORT_TIMES | hs.BRIDGE_ALWAYS | {hs.BUDGET_VARIABLE: str(BUDGET)}
rids = (f"failure-{n}" for n in itertools.count())


def short_times(**options):
    return stack.pair(Options(env=ENV), prefill_handoff=True, decode_handoff=True, **options)


@pytest.fixture(scope="module")
def pair(oracle):
    with short_times() as running:
        running.oracle = oracle
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """Both workers end empty, and the next 20 requests are right."""
    yield
    if "pair" in request.fixturenames:
        hs.nothing_is_left(request.getfixturevalue("pair"))


def bridging(pair, ids, tokens=5, **sampling):
    """A request whose transfer is held and of which `tokens` tokens have come: (stream, rid)."""
    rid = next(rids)
    return hs.bridging(pair, ids, rid=rid, tokens=tokens, **sampling), rid


def ends_in_error(stream) -> None:
    """The client is told."""
    assert hs.ended_in_error(answer := stream.result(timeout=60)), answer.finish_reason


def test_transfer_fails_and_prefill_goes_on(pair):
    """KV transfer fails before commit: P goes on, D relays to the end."""
    ids = hs.prompt(4100, 100)
    stream, rid = bridging(pair, ids, max_new_tokens=BUDGET - 1)
    pair.hold.fail(rid)
    answer = stream.result()
    hs.same(answer, pair.oracle(ids, max_new_tokens=BUDGET - 1, ignore_eos=True))
    assert hs.handoff(answer)["outcome"] == "finished"


def test_transfer_fails_and_the_budget_is_spent(pair):
    """... past the policy limit, today's error, and not later than the silence timeout."""
    stream, rid = bridging(pair, hs.prompt(4101, 100), tokens=BUDGET, max_new_tokens=300)
    failed_at = time.monotonic()
    pair.hold.fail(rid)
    ends_in_error(stream)
    assert len(stream.answer.ids) == BUDGET
    assert time.monotonic() - failed_at < SILENCE_S + 10


def test_transfer_stalls_longer_than_every_timeout(pair):
    """P, sealed by its budget, gives up waiting for D; D takes over from its own entries when the KV comes."""
    ids = hs.prompt(4102, 120)
    stream, rid = bridging(pair, ids, tokens=BUDGET, max_new_tokens=100)
    time.sleep(COMMIT_S + SILENCE_S + 1)
    assert len(stream.answer.ids) == BUDGET  # nobody generates while the log is closed
    pair.hold.release(rid)
    answer = stream.result()
    hs.same(answer, pair.oracle(ids, max_new_tokens=100, ignore_eos=True))
    assert hs.handoff(answer)["outcome"] == "committed" and hs.handoff(answer)["boundary"] == BUDGET


@pytest.mark.parametrize("seconds", [0.4, LEASE_S + SEAL_S + 1])
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_worker_frozen_while_bridging(pair, side, seconds):
    """SIGSTOP, shorter and longer than lease and seal timeout: late, never wrong."""
    ids = hs.prompt(4110 + int(10 * seconds), 150)
    stream, rid = bridging(pair, ids, max_new_tokens=150)
    process = getattr(pair, side).process
    process.freeze()
    threading.Timer(seconds, process.thaw).start()
    time.sleep(seconds + 0.5)
    pair.hold.release(rid)
    hs.same(stream.result(), pair.oracle(ids, max_new_tokens=150, ignore_eos=True))


def test_abort_all_while_bridging(pair):
    """/abort_request of everything on D: the client's stream ends as the unified server's does, P is told."""
    prompts, sampling = [hs.prompt(4120 + n, 80) for n in range(3)], dict(max_new_tokens=500, ignore_eos=True)
    right = client.start_generate(pair.oracle.server.url, prompts[0], **sampling)
    right.wait_for_tokens(5)
    client.command(pair.oracle.server.url, "abort_request", abort_all=True)
    reason = right.result(timeout=60).finish_reason
    assert reason["type"] == "abort"
    streams = [bridging(pair, ids, max_new_tokens=500)[0] for ids in prompts]
    client.command(pair.decode.url, "abort_request", abort_all=True)
    for stream, ids in zip(streams, prompts):
        answer = stream.result(timeout=60)
        assert answer.finish_reason == reason
        assert 5 <= len(answer.ids) <= BUDGET
        assert answer.ids == pair.oracle(ids, max_new_tokens=BUDGET, ignore_eos=True).ids[: len(answer.ids)]


def test_prefill_killed_before_the_kv_has_arrived():
    """Error to the client within upstream's heartbeat; D is empty and can be flushed."""
    with short_times() as pair:
        stream, _ = bridging(pair, hs.prompt(4200, 100), max_new_tokens=300)
        pair.prefill.process.kill()
        killed_at = time.monotonic()
        ends_in_error(stream)
        assert time.monotonic() - killed_at < 30
        idle.wait_idle(pair.decode.url, timeout=40)


def test_decode_killed():
    """The client's connection is gone; P stops bridging and frees after its timeouts."""
    with short_times() as pair:
        stream, rid = bridging(pair, hs.prompt(4201, 100), max_new_tokens=300)
        pair.decode.process.kill()
        with pytest.raises(client.RequestFailed):
            stream.result(timeout=60)
        pair.hold.release(rid)
        idle.wait_idle(pair.prefill.url, timeout=LEASE_S + SILENCE_S + COMMIT_S + 30)


def test_prefill_killed_after_the_kv_has_arrived(oracle):
    """D takes over alone from the entries it has. One running slot keeps the second request from committing."""
    with short_times(decode_args=("--max-running-requests", "1")) as pair:
        first = client.start_generate(pair.url, hs.prompt(4202, 60), max_new_tokens=2000, ignore_eos=True)
        first.wait_for_tokens(BUDGET + 10)
        ids = hs.prompt(4203, 100)
        second = client.start_generate(pair.url, ids, rid="second", max_new_tokens=100, ignore_eos=True)
        pair.hold.wait_for("done", rid="second")
        # D has read that the KV is here once it relays what P logged after it had said so
        second.wait_for_tokens(len(second.answer.ids) + 10)
        pair.prefill.process.kill()
        first.disconnect()
        answer = second.result(timeout=60)
        hs.same(answer, oracle(ids, max_new_tokens=100, ignore_eos=True))
        idle.wait_idle(pair.decode.url, timeout=40)
