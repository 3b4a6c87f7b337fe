"""One real pair behind a real router: the rig's own smoke test, without the handoff."""

import time

import pytest

from rig import client, idle, stack

pytestmark = pytest.mark.real

PROMPT = list(range(10, 210))


@pytest.fixture(scope="module")
def pair():
    with stack.pair(with_unified=True) as running:
        yield running


def test_pair_equals_unified(pair):
    for prompt in ([5], PROMPT, PROMPT):  # the second time from the prefix cache
        apart = client.generate(pair.url, prompt, max_new_tokens=12, ignore_eos=True)
        alone = client.generate(pair.unified.url, prompt, max_new_tokens=12, ignore_eos=True)
        assert apart.ids == alone.ids and apart.text == alone.text and len(apart.ids) == 12
        assert [i for event in apart.events for i in event.ids] == apart.ids


def test_chat_equals_unified_streamed_or_not(pair):
    streamed = client.chat(pair.url, "hello", max_tokens=12)
    whole = client.chat(pair.unified.url, "hello", max_tokens=12, stream=False)
    assert streamed.text == whole.text and streamed.finish_reason == whole.finish_reason


def test_held_request_waits_and_others_go_on(pair):
    pair.hold.request("held")
    held = client.start_generate(pair.url, PROMPT, max_new_tokens=4, rid="held", ignore_eos=True)
    pair.hold.wait_for("held", rid="held")
    client.generate(pair.url, PROMPT[:50], max_new_tokens=4, ignore_eos=True)
    assert held.answer.ended_at is None
    pair.hold.release("held")
    assert len(held.result().ids) == 4
    assert pair.hold.wait_for("done", rid="held")["ok"]


def test_hold_all_stops_bytes_not_the_scheduler(pair):
    pair.hold.all()
    held = [client.start_generate(pair.url, PROMPT, max_new_tokens=4, rid=rid, ignore_eos=True) for rid in ("one", "two")]
    for rid in ("one", "two"):  # the scheduler goes on to the second one
        pair.hold.wait_for("queued", rid=rid)
    assert not any(stream.answer.events for stream in held)
    pair.hold.release()
    assert [len(stream.result().ids) for stream in held] == [4, 4]


def test_slow_link_costs_its_time(pair):
    # 2,000 tokens of 2 KiB are 1.6 s at 20 Mbit/s
    pair.set_link(20)
    start = time.monotonic()
    client.generate(pair.url, [i % 500 + 3 for i in range(2000)], max_new_tokens=1, ignore_eos=True)
    pair.set_link(None)
    assert time.monotonic() - start > 1.6


def test_disconnect_frees_everything(pair):
    stream = client.start_generate(pair.url, PROMPT, max_new_tokens=5000, ignore_eos=True)
    stream.wait_for_tokens(5)
    stream.disconnect()
    for server in (pair.prefill, pair.decode):
        idle.wait_idle(server.url)


def test_idle_check_reports_what_is_busy(pair):
    stream = client.start_generate(pair.unified.url, PROMPT, max_new_tokens=5000, ignore_eos=True)
    stream.wait_for_tokens(1)
    with pytest.raises(idle.NotIdle, match="num_running_reqs"):
        idle.wait_idle(pair.unified.url, timeout=1)
    stream.disconnect()
    idle.wait_idle(pair.unified.url)
