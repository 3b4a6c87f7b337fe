"""A real pair on hosts of its own, behind mini_lb."""

import pytest

from rig import client, idle, network, stack
from rig.hold import Hold

pytestmark = [pytest.mark.real, pytest.mark.skipif(network.problem() is not None, reason=str(network.problem()))]


@pytest.fixture(scope="module")
def pair():
    with stack.pair(namespaces=True, link_mbit=40, router="mini_lb") as running:
        yield running


def _transfer_seconds(hold: Hold, rid: str) -> float:
    """Seconds from the hand-over of the request's first chunk to the end of its transfer."""
    return hold.wait_for("done", rid=rid)["at"] - hold.wait_for("queued", rid=rid)["at"]


def test_link_is_shaped_and_opened_live(pair):
    prompt = [i % 500 + 3 for i in range(2000)]
    client.generate(pair.url, prompt, max_new_tokens=4, ignore_eos=True, rid="slow")
    pair.set_link(None)
    client.generate(pair.url, prompt[::-1], max_new_tokens=4, ignore_eos=True, rid="fast")
    slow, fast = (_transfer_seconds(pair.hold, rid) for rid in ("slow", "fast"))
    # 2,000 tokens of 2 KiB are 0.8 s at 40 Mbit/s
    assert slow > 0.8 and fast < slow / 2


def test_chat_request_is_held_by_its_id(pair):
    pair.hold.request("chat")
    held = client.start_chat(pair.url, "hello", max_tokens=4, rid="chat")
    pair.hold.wait_for("held", rid="chat")
    pair.hold.release("chat")
    assert held.result().finish_reason is not None
    for server in (pair.prefill, pair.decode):
        idle.wait_idle(server.url)
