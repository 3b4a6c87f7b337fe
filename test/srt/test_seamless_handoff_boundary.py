"""What happens at the boundary itself. P's budget is 8 tokens, so with the transfer held the log ends at 8."""

import itertools

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff_requests import wait_until
from rig import client
from test_seamless_handoff import find_text, run_stack

register_cpu_ci(est_time=180, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

B = hs.SMALL_BUDGET
rids = (f"boundary-{n}" for n in itertools.count())


@pytest.fixture(scope="module", params=["overlap", "plain"])
def pair(request, oracle):
    with run_stack(request.param == "overlap", B) as running:
        running.oracle = oracle
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(pair):
    yield
    pair.hold.release()
    hs.assert_empty(pair)


def at_boundary(pair, ids, **sampling):
    """The answer to `ids` when P has logged all its budget before the KV arrives."""
    answer = hs.generate_held(pair, ids, tokens_first=B, rid=next(rids), **sampling)
    hs.same(answer, pair.oracle(ids, **sampling))
    return answer


def test_boundary_is_the_budget(pair):
    answer = at_boundary(pair, hs.prompt(2000, 130), max_new_tokens=30, ignore_eos=True)
    record = hs.handoff(answer)
    assert (record["outcome"], record["boundary"], record["replayed"]) == ("committed", B, B - 1)


def test_end_token_as_last_entry(pair):
    """EOS as t(b): relayed, so the request ends although the KV is still in flight."""
    ids, sampling = hs.ending_at(pair.oracle, B, seed=2100)
    answer = at_boundary(pair, ids, **sampling)
    assert len(answer.ids) == B and hs.handoff(answer)["outcome"] == "finished"


def test_end_token_as_first_own_token(pair):
    """EOS as t(b+1): made by D's first own decode step."""
    ids, sampling = hs.ending_at(pair.oracle, B + 1, seed=2200)
    answer = at_boundary(pair, ids, **sampling)
    assert len(answer.ids) == B + 1 and hs.handoff(answer)["outcome"] == "committed"


@pytest.mark.parametrize("length", [B - 1, B, B + 1, B + 2])
def test_length_limit_around_the_boundary(pair, length):
    ids = hs.prompt(2300 + length, 110)
    sampling = dict(max_new_tokens=length, ignore_eos=True)
    answer = hs.generate_held(pair, ids, tokens_first=min(B, length), rid=next(rids), **sampling)
    hs.same(answer, pair.oracle(ids, **sampling))
    assert hs.handoff(answer)["outcome"] == ("finished" if length <= B else "committed")


def test_stop_string_begins_before_and_ends_after(pair):
    ids, _, text = find_text(pair, seed=2400, start=B - 1, tokens=4)  # entries 7 to 10, boundary 8
    rid, before = next(rids), relayed(pair)
    pair.hold.request(rid)
    stream = client.start_generate(pair.url, ids, rid=rid, max_new_tokens=40, ignore_eos=True, stop=[text])
    # not what the client has: the tokens that could begin the stop string are held back, and those that came with them
    wait_until(lambda: relayed(pair) == before + B)
    pair.hold.release(rid)
    answer = stream.result()
    hs.same(answer, pair.oracle(ids, max_new_tokens=40, ignore_eos=True, stop=[text]))
    assert answer.finish_reason == {"type": "stop", "matched": text}
    assert hs.handoff(answer)["outcome"] == "committed" and len(answer.ids) > B


def relayed(pair) -> float:
    """Tokens that D has relayed so far, of all requests."""
    return hs.sample(pair.decode, "sglang:handoff_tokens_total", kind="relayed")


def test_character_split_over_the_boundary(pair):
    """Entries 8 and 9 are the bytes of one character: it must come out whole, once."""
    for seed in itertools.count(2500, 64):
        prompts = [hs.prompt(n, 20) for n in range(seed, seed + 64)]
        answers = pair.oracle.all(prompts, at_once=16, max_new_tokens=B + 2, ignore_eos=True)
        split = [p for p, a in zip(prompts, answers) if splits_at(a, B)]
        if split:
            break
        assert seed < 2500 + 64 * 30, "no prompt of 1,920 splits a character at the boundary"
    answer = at_boundary(pair, split[0], max_new_tokens=B + 6, ignore_eos=True)
    assert hs.handoff(answer)["boundary"] == B


def splits_at(answer: client.Answer, b: int) -> bool:
    """Entry b gives no text of its own, and entry b + 1 completes one character outside ASCII."""
    if not all(len(e.ids) == 1 for e in answer.events):
        return False
    before, after = answer.events[b - 1].text, answer.events[b].text
    return before == "" and len(after) == 1 and ord(after) > 127 and after != "\ufffd"


def test_disconnect_while_sealed(pair):
    """P has spent its budget and waits for D; nobody may generate."""
    rid = next(rids)
    pair.hold.request(rid)
    under_way = client.start_generate(pair.url, hs.prompt(2600, 150), max_new_tokens=100, rid=rid, ignore_eos=True)
    under_way.wait_for_tokens(B)
    assert len(under_way.answer.ids) == B
    under_way.disconnect()
    pair.hold.release(rid)


def test_many_at_the_boundary_at_once(pair):
    """Replay batches of many requests, all with the same number of entries."""
    prompts = [hs.prompt(2700 + n, 20 + 211 * n % 1500) for n in range(16)]
    sampling = dict(max_new_tokens=24, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    pair.hold.all()
    streams = [client.start_generate(pair.url, ids, rid=next(rids), **sampling) for ids in prompts]
    for under_way in streams:
        under_way.wait_for_tokens(B)
    pair.hold.release()
    for under_way, right in zip(streams, expected):
        answer = under_way.result()
        hs.same(answer, right)
        assert hs.handoff(answer)["boundary"] == B
