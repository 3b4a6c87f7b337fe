"""Strangers at the control ports of real workers while requests bridge: late at worst, never wrong, nothing kept.

`handoff/test_control_port_fuzz.py` looks at every field for every kind of frame; this is the same on real processes.
"""

import itertools
import pathlib
import random
import re
import socket
import threading
import time

import pytest
import zmq
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff.control_port_fuzz import Frames
from rig import client, stack
from rig.stack import Options
from sglang.srt.disaggregation.handoff import messages as m

register_cpu_ci(est_time=60, suite="stage-b-test-cpu")
pytestmark = [pytest.mark.real, pytest.mark.alone]

BUDGET = 4000  # so that P still bridges when a test's attack is over
TOKENS = 600
ROUNDS, MOST_ROUNDS, FRAMES = 3, 12, 40_000  # a leak of LEAK bytes for each frame is seen
LEAK = 50
rids = (f"port-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def pair(oracle):
    options = Options(env=hs.BRIDGE_ALWAYS | {hs.BUDGET_VARIABLE: str(BUDGET)})
    with stack.pair(options, prefill_handoff=True, decode_handoff=True) as running:
        running.oracle = oracle
        running.prompts = [hs.prompt(5000 + n, 60 + 90 * n) for n in range(3)]
        running.right = running.oracle.all(running.prompts, at_once=3, max_new_tokens=TOKENS, ignore_eos=True)
        yield running


def control_port(server) -> str:
    """A worker says where its port is, for those who set up firewalls."""
    return re.search(r"Handoff control port: (tcp://\S+)", server.log.read_text())[1]


def schedulers(pair) -> list[pathlib.Path]:
    """/proc folders of both scheduler processes."""
    found = []
    for server in (pair.prefill, pair.decode):
        children = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        (pid,) = [c for c in children if b"scheduler" in pathlib.Path(f"/proc/{c}/cmdline").read_bytes()]
        found.append(pathlib.Path(f"/proc/{pid}"))
    return found


def figure(process: pathlib.Path, name: str) -> int:
    """A number of /proc/PID/status: RssAnon in kB, Threads."""
    return int(re.search(rf"{name}:\s+(\d+)", (process / "status").read_text())[1])


class Bridging:
    """Three requests whose transfers are held; at the end they must be right, and must have been taken over by D."""

    def __init__(self, pair):
        self.pair, self.rids = pair, [next(rids) for _ in range(3)]

    def __enter__(self):
        for rid in self.rids:
            self.pair.hold.request(rid)
        self.streams = [
            client.start_generate(self.pair.url, ids, rid=rid, max_new_tokens=TOKENS, ignore_eos=True)
            for ids, rid in zip(self.pair.prompts, self.rids)
        ]
        for stream in self.streams:
            stream.wait_for_tokens(3)
        return self

    def __exit__(self, kind, *_):
        self.pair.hold.release()
        if kind is not None:
            return
        for stream, right in zip(self.streams, self.pair.right):
            answer = stream.result()
            hs.same(answer, right)
            record = hs.handoff(answer)
            assert record["outcome"] in ("committed", "finished") and not record["alone"], record
        hs.assert_empty(self.pair)


class Strangers:
    """Many senders at one port. Leaving them cuts every connection."""

    def __init__(self, endpoint: str, number: int):
        self._context = zmq.Context()
        self.sockets = [self._context.socket(zmq.PUSH) for _ in range(number)]
        for sender in self.sockets:
            sender.set(zmq.SNDTIMEO, 20_000)
            sender.connect(endpoint)

    def __enter__(self):
        return self.sockets

    def __exit__(self, *_):
        self._context.destroy(linger=5000)


def fuzz(endpoint: str, seed: int, number: int) -> None:
    """Frames of every broken kind, none with a nonce that is in use; from eight senders."""
    frames = Frames(seed, m.FROM_DECODE + m.FROM_PREFILL, bytes(8))
    some = [frames.frame(frames.rng.randrange(1 << 40), frames.rng.randbytes(16)) for _ in range(5000)]
    with Strangers(endpoint, 8) as senders:
        for n, parts in zip(range(number), itertools.cycle(some)):
            senders[n % 8].send_multipart(parts)


def at_both(pair, attack, *args) -> None:
    """Run `attack` on both workers' ports at once."""
    failed = []

    def run(server):
        try:
            attack(control_port(server), *args)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(s,)) for s in (pair.prefill, pair.decode)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_broken_frames_change_nothing_and_leave_nothing(pair):
    """Answers are right, memory and threads are flat, and the logs have one line for each kind of fault."""
    processes, grown, threads = schedulers(pair), [], None
    for seed in range(MOST_ROUNDS):
        before = [figure(p, "RssAnon") for p in processes]
        with Bridging(pair):
            at_both(pair, fuzz, seed, FRAMES)
        grown.append([(figure(p, "RssAnon") - kb) * 1024 for p, kb in zip(processes, before)])
        threads = threads or [figure(p, "Threads") for p in processes]
        flat = [min(by_round) < FRAMES * LEAK / 2 for by_round in zip(*grown)]
        if seed + 1 >= ROUNDS and all(flat):
            break
    # What is made once comes in one round or another; what leaks comes in each, however many there are.
    assert all(flat), f"bytes grown on prefill and decode in each round of {FRAMES} frames: {grown}"
    assert [figure(p, "Threads") for p in processes] == threads
    for server in (pair.prefill, pair.decode):
        lines = re.findall(r"Handoff control message dropped \((\w+)\)", server.log.read_text())
        assert {"size", "version", "malformed", "unknown_session"} <= set(lines)
        assert len(lines) == len(set(lines))


def test_connections_that_say_nothing_or_nonsense(pair):
    """No ZMTP, half a greeting, a greeting and then silence: the port stays open for those who speak."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
    noise = random.Random(4).randbytes(300)
    openings = (b"", b"\xff", b"GET / HTTP/1.1\r\n\r\n", noise, greeting[:20], greeting, greeting + noise)
    with Bridging(pair):
        kept = []
        for server in (pair.prefill, pair.decode):
            host, port = control_port(server).removeprefix("tcp://").split(":")
            for n in range(100):
                connection = socket.create_connection((host, int(port)), timeout=10)
                connection.sendall(openings[n % len(openings)])
                if n % 3:
                    kept.append(connection)
                else:
                    connection.close()
        at_both(pair, fuzz, 3, 2000)
    for connection in kept:
        connection.close()


def flood(endpoint: str, frame: bytes, seconds: float) -> None:
    """As fast as eight senders can. One whom the worker hangs up on is not missed."""
    end = time.monotonic() + seconds
    with Strangers(endpoint, 8) as senders:
        while time.monotonic() < end:
            for sender in senders:
                try:
                    sender.send(frame, zmq.NOBLOCK)
                except zmq.Again:
                    time.sleep(0.001)


@pytest.mark.parametrize("kind", ["sound", "huge"])
def test_a_flood_does_not_stop_the_requests(pair, kind):
    """Sound messages of the largest size to no session; frames larger than any message."""
    append = m.encode(m.Append(1, bytes(16), 1, 1, [m.MAX_COUNT] * m.MAX_IDS_PER_APPEND, 0))
    with Bridging(pair) as bridging:
        seen = [len(s.answer.ids) for s in bridging.streams]
        at_both(pair, flood, append if kind == "sound" else bytes(4 << 20), 3.0)
        assert all(len(s.answer.ids) > n for s, n in zip(bridging.streams, seen))
        print(kind, [round(max(s.answer.gaps), 3) for s in bridging.streams])
