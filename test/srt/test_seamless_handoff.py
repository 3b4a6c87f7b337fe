"""Seamless handoff on real workers: one prefill worker, one decode worker, a real router, Mooncake over TCP.

Every answer is compared with the unified server's, token for token, in float32.
"""

import itertools
import re
import time

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from rig import client, stack
from rig.stack import Options

register_cpu_ci(est_time=600, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

# Tiny Qwen3 has 2 KiB of KV per token: 1,000 tokens take 0.4 s at this rate.
LINK_MBIT = 40
rids = (f"handoff-{n}" for n in itertools.count())


def run_stack(overlap: bool, budget: int):
    options = Options(overlap=overlap, args=("--enable-metrics",), env=hs.BRIDGE_ALWAYS | {hs.BUDGET_VARIABLE: str(budget)})
    return stack.pair(options, prefill_handoff=True, decode_handoff=True)


@pytest.fixture(scope="module", params=["overlap", "plain"])
def pair(request, oracle):
    """Default settings but for the admission, under the overlap loop and the plain one."""
    with run_stack(request.param == "overlap", hs.BUDGET) as running:
        running.oracle = oracle
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """Every test ends with both workers empty, whatever it did (FREED-ONCE)."""
    yield
    running = request.getfixturevalue("pair")
    running.hold.release()
    running.set_link(None)
    hs.assert_empty(running)


# ------------------------------------------------------------------------------------------ equality
# 50 lengths from 1 to 6,000 tokens; those above 2,048 are prefilled in chunks.
LENGTHS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2048, 2049, 2584, 4181, 6000]
LENGTHS += [7 * n + 4 for n in range(1, 21)] + [500, 800, 1100, 1500, 1900, 2300, 3000, 3900, 5000]
assert len(LENGTHS) == 50


@pytest.mark.parametrize("at_once, stream", [(1, True), (4, False), (16, True)])
def test_equal_to_unified(pair, at_once, stream):
    prompts = [hs.prompt(n, length) for n, length in enumerate(LENGTHS)]
    sampling = dict(max_new_tokens=20, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    pair.set_link(LINK_MBIT)
    answers = client.generate_all(pair.url, prompts, at_once=at_once, stream=stream, **sampling)
    for answer, right in zip(answers, expected):
        hs.same(answer, right)
    outcomes = [hs.handoff(a)["outcome"] for a in answers]
    assert set(outcomes) <= {"committed", "finished", "ordinary"}
    # Ordinary only where the KV was there before P's first word: short prompts.
    assert sum(o != "ordinary" for o in outcomes) >= 40, outcomes
    bridged = [a for a in answers if hs.handoff(a).get("tokens_bridged", 0) > 0]
    assert len(bridged) >= 15, [hs.handoff(a) for a in answers]


@pytest.mark.parametrize("stream", [True, False])
def test_chat_completions_equal_to_unified(pair, stream):
    for n in range(6):
        text = " ".join(f"word{n}{i}" for i in range(1 + 60 * n))
        right = client.chat(pair.oracle.server.url, text, max_tokens=40, stream=False, ignore_eos=True)
        pair.set_link(LINK_MBIT)
        answer = client.chat(pair.url, text, max_tokens=40, stream=stream, ignore_eos=True)
        pair.set_link(None)
        assert (answer.text, answer.finish_reason) == (right.text, right.finish_reason)


def test_prefix_cache_hit_on_prefill(pair):
    ids = hs.prompt(900, 700)
    right = pair.oracle(ids, max_new_tokens=12, ignore_eos=True)
    for attempt in range(3):
        answer = hs.generate_held(pair, ids, tokens_first=4, rid=next(rids), max_new_tokens=12, ignore_eos=True)
        assert answer.ids == right.ids
        # the last token of a prompt is always computed
        assert answer.meta_info["cached_tokens"] == (0 if attempt == 0 else 699)


# -------------------------------------------------------------------------------------------- handoff
def test_client_receives_tokens_before_the_transfer_is_over(pair):
    ids = hs.prompt(1000, 300)
    # long enough for a slow machine not to end on P
    answer = hs.generate_held(pair, ids, tokens_first=30, rid=next(rids), max_new_tokens=400, ignore_eos=True)
    hs.same(answer, pair.oracle(ids, max_new_tokens=400, ignore_eos=True))
    record = hs.handoff(answer)
    assert record["outcome"] == "committed" and not record["alone"]
    assert record["tokens_bridged"] >= 29 and record["boundary"] == record["tokens_bridged"] + 1
    assert record["replayed"] == record["boundary"] - 1 == sum(tokens for _, _, tokens in record["rounds"])
    at = record["at_ms"]
    assert at["opened"] <= at["first_relay"] < at["kv_arrived"] <= at["sealing"] <= at["draining"] <= at["committed"]


def test_no_empty_event_at_the_switch(pair):
    answer = hs.generate_held(pair, hs.prompt(1001, 200), tokens_first=5, rid=next(rids), max_new_tokens=300, ignore_eos=True)
    assert hs.handoff(answer)["outcome"] == "committed"
    assert all(event.ids for event in answer.events)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_outputs(pair, length, held):
    ids, sampling = hs.prompt(1100 + length, 150), dict(max_new_tokens=length, ignore_eos=True)
    if held:
        answer = hs.generate_held(pair, ids, tokens_first=length, rid=next(rids), **sampling)
        assert hs.handoff(answer)["outcome"] == "finished"
    else:
        answer = client.generate(pair.url, ids, **sampling)
    hs.same(answer, pair.oracle(ids, **sampling))


@pytest.mark.parametrize("index", [1, 2, 6])
def test_end_token_on_a_relayed_token(pair, index):
    """The end token is entry `index` of the log, made by P while the KV is in flight."""
    ids, sampling = hs.ending_at(pair.oracle, index, seed=1200)
    answer = hs.generate_held(pair, ids, tokens_first=index, rid=next(rids), **sampling)
    hs.same(answer, pair.oracle(ids, **sampling))
    assert len(answer.ids) == index and answer.finish_reason["type"] == "stop"
    assert hs.handoff(answer)["outcome"] == "finished"


def test_stop_string_on_relayed_tokens(pair):
    ids, at, text = find_text(pair, seed=1300, start=3, tokens=2)
    answer = hs.generate_held(pair, ids, tokens_first=1, rid=next(rids), max_new_tokens=40, ignore_eos=True, stop=[text])
    hs.same(answer, pair.oracle(ids, max_new_tokens=40, ignore_eos=True, stop=[text]))
    assert answer.finish_reason == {"type": "stop", "matched": text}


def find_text(pair, seed: int, start: int, tokens: int):
    """A prompt whose answer's entries from `start` on are plain text that comes nowhere before: (prompt, start, text)."""
    for n in itertools.count(seed):
        ids = hs.prompt(n, 90)
        events = pair.oracle(ids, max_new_tokens=start + tokens + 4, ignore_eos=True).events
        pieces = [e.text for e in events if e.ids]
        before, text = "".join(pieces[: start - 1]), "".join(pieces[start - 1 : start - 1 + tokens])
        found = re.fullmatch(r"[!-~]{2,}", text) and text not in "".join(pieces[: start + tokens - 2])
        # nothing before it may be held back as its possible beginning
        if found and text[0] not in before and all(len(e.ids) == 1 for e in events):
            return ids, start, text


# ---------------------------------------------------------------------------------- aborts and limits
def test_disconnect_before_the_first_token(pair):
    stream = client.start_generate(pair.url, hs.prompt(1400, 6000), max_new_tokens=50, rid=next(rids), ignore_eos=True)
    time.sleep(0.1)  # in the middle of the prompt
    stream.disconnect()
    hs.assert_empty(pair)


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_while_bridging(pair, stream):
    rid = next(rids)
    pair.hold.request(rid)
    under_way = client.start_generate(pair.url, hs.prompt(1401, 200), max_new_tokens=400, rid=rid, stream=stream, ignore_eos=True)
    if stream:
        under_way.wait_for_tokens(5)
    else:
        pair.hold.wait_for("held", rid=rid)
        time.sleep(0.3)
    under_way.disconnect()
    pair.hold.release(rid)
    hs.assert_empty(pair)


def test_disconnect_after_the_commit(pair):
    rid = next(rids)
    pair.hold.request(rid)
    under_way = client.start_generate(pair.url, hs.prompt(1402, 200), max_new_tokens=5000, rid=rid, ignore_eos=True)
    seen = len(under_way.wait_for_tokens(5).ids)
    pair.hold.release(rid)
    pair.hold.wait_for("done", rid=rid)
    under_way.wait_for_tokens(seen + 300)
    under_way.disconnect()
    hs.assert_empty(pair)


def test_abort_storm_among_others(pair):
    """32 at once, every third goes away at another moment; the rest is right."""
    pair.set_link(LINK_MBIT)
    prompts = [hs.prompt(1500 + n, 10 + 97 * n % 2500) for n in range(32)]
    sampling = dict(max_new_tokens=60, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    streams = [client.start_generate(pair.url, ids, rid=next(rids), **sampling) for ids in prompts]
    for n, under_way in enumerate(streams):
        if n % 3 == 0:
            time.sleep(0.05)
            under_way.disconnect()
    for n, (under_way, right) in enumerate(zip(streams, expected)):
        if n % 3:
            hs.same(under_way.result(), right)


def test_ordinary_path_is_counted_by_reason(pair):
    ids = hs.prompt(1600, 100)
    cases = {
        "not_greedy": dict(temperature=0.7),
        "penalties": dict(frequency_penalty=0.5),
        "min_new_tokens": dict(min_new_tokens=3),
        "grammar": dict(regex="[ab]{4}"),
    }
    start_d, start_p = hs.counters(pair.decode), hs.counters(pair.prefill)
    for reason, sampling in cases.items():
        answer = client.generate(pair.url, ids, max_new_tokens=6, **sampling)
        assert hs.handoff(answer) == {"outcome": "ordinary", "reason": reason}
        if reason != "not_greedy":
            assert answer.ids == pair.oracle(ids, max_new_tokens=6, **sampling).ids
    hs.assert_empty(pair)
    for server, start in ((pair.decode, start_d), (pair.prefill, start_p)):
        now = hs.counters(server)
        for reason in cases:
            assert now["ordinary", reason] == start.get(("ordinary", reason), 0) + 1


def test_logprobs_take_the_ordinary_path(pair):
    body = {"input_ids": hs.prompt(1601, 50), "return_logprob": True, "sampling_params": {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}}
    answer = client.Stream(pair.url, "/generate", body).result()
    right = client.Stream(pair.oracle.server.url, "/generate", body).result()
    assert hs.handoff(answer) == {"outcome": "ordinary", "reason": "logprobs"}
    assert answer.ids == right.ids
    assert len(answer.meta_info["output_token_logprobs"]) == 5
