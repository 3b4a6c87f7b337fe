"""The bad network for control messages: each fault does what it says, and a running proxy does it to real sockets."""

import time

import pytest
import zmq

from rig import ports
from rig.control_proxy import ControlProxy, Direction, Faults
from rig.process import Process

MESSAGES = [b"%d" % n for n in range(400)]
GAP_S = 0.01


def pass_all(**faults) -> tuple[list[tuple[float, bytes]], dict[str, int]]:
    """Send MESSAGES, one each GAP_S, and return [(time, message)] as they come out, and the counts."""
    direction, out = Direction("decode"), []
    direction.set(Faults(**faults))
    for n, frame in enumerate(MESSAGES):
        direction.take(n * GAP_S, frame)
        out += [(n * GAP_S, sent) for sent in direction.due(n * GAP_S)]
    end = len(MESSAGES) * GAP_S + 1
    out += [(end, sent) for sent in direction.due(end)]
    assert direction.next_at() is None
    return out, direction.counts


def frames(out) -> list[bytes]:
    return [frame for _, frame in out]


def test_without_faults_nothing_changes():
    out, counts = pass_all()
    assert out == [(n * GAP_S, frame) for n, frame in enumerate(MESSAGES)]
    assert counts.pop("passed") == len(MESSAGES) and not any(counts.values())


@pytest.mark.parametrize("chance", [0.01, 0.1, 0.5, 1.0])
def test_dropped_at_their_rate_and_the_rest_in_order(chance):
    out, counts = pass_all(drop=chance)
    assert counts["drop"] == len(MESSAGES) - len(out)
    assert 0 < counts["drop"] and abs(counts["drop"] / len(MESSAGES) - chance) < 0.08
    assert frames(out) == [frame for frame in MESSAGES if frame in frames(out)]


def test_doubled_come_twice():
    out, counts = pass_all(double=0.5)
    twice = [frame for frame in MESSAGES if frames(out).count(frame) == 2]
    assert len(twice) == counts["double"] > 100
    assert sorted(frames(out)) == sorted(MESSAGES + twice)


def test_delayed_keep_their_order_and_come_late():
    out, counts = pass_all(delay=0.1, seconds=0.3)
    assert frames(out) == MESSAGES and counts["overtaken"] == 0 and counts["delay"] > 20
    late = [at - n * GAP_S for n, (at, _) in enumerate(out)]
    assert 0.15 < max(late[:-40]) < 0.32


def test_reordered_are_overtaken_and_none_is_lost():
    out, counts = pass_all(reorder=0.1, seconds=0.3)
    assert sorted(frames(out)) == sorted(MESSAGES) and frames(out) != MESSAGES
    assert counts["overtaken"] > 20


def test_the_seed_decides():
    mixed = dict(drop=0.3, double=0.3, delay=0.3, reorder=0.3)
    assert pass_all(seed=1, **mixed) == pass_all(seed=1, **mixed) != pass_all(seed=2, **mixed)


def test_a_kind_of_fault_does_not_move_another():
    lost = [set(MESSAGES) - set(frames(pass_all(drop=0.2, **other)[0])) for other in ({}, {"double": 0.5, "delay": 0.5})]
    assert lost[0] == lost[1] != set()


@pytest.fixture
def running(tmp_path):
    """A proxy between sockets of the test: (proxy, {worker: its own PULL}, {worker: PUSH to it through the proxy})."""
    proxy = ControlProxy(tmp_path / "control", *(f"tcp://127.0.0.1:{ports.free_port()}" for _ in range(2)))
    process = Process("control", proxy.command(), tmp_path / "control.log")
    with zmq.Context() as context:
        own, to = {}, {}
        for worker in ("prefill", "decode"):
            own[worker], to[worker] = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            port = own[worker].bind_to_random_port("tcp://127.0.0.1")
            (proxy.directory / worker).write_text(f"tcp://127.0.0.1:{port}")
            to[worker].connect(proxy.env(worker)["RIG_CONTROL_ADVERTISE"])
        yield proxy, own, to
        process.stop()
        context.destroy(linger=0)


def receive(socket, count: int) -> list[bytes]:
    """What comes, up to `count` messages."""
    out = []
    while len(out) < count and socket.poll(10_000):
        out.append(socket.recv())
    return out


def test_running_proxy_passes_both_ways_and_changes_at_once(running):
    proxy, own, to = running
    for worker in ("prefill", "decode"):
        for frame in MESSAGES:
            to[worker].send(frame)
        assert receive(own[worker], len(MESSAGES)) == MESSAGES
    proxy.set(drop=1.0)
    to["decode"].send(b"lost")
    deadline = time.monotonic() + 10
    while not proxy.counts()["drop"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    proxy.set()
    to["decode"].send(b"passed")
    assert receive(own["decode"], 1) == [b"passed"]
    assert proxy.counts()["drop"] == 1
