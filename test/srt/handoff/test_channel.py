"""The control port over real sockets: whatever a stranger sends is counted, never obeyed, never felt."""

import logging
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress

import msgspec
import pytest
import zmq

from sglang.srt.disaggregation.handoff import channel as module
from sglang.srt.disaggregation.handoff.channel import HandoffChannel
from sglang.srt.disaggregation.handoff.messages import (
    FROM_DECODE,
    FROM_PREFILL,
    MAX_FRAME_BYTES,
    MAX_IDS_PER_APPEND,
    VERSION,
    Ack,
    Append,
    SealRequest,
    encode,
)

NONCE = bytes(16)
WAIT_S = 10.0
SOON_S = 0.3  # for what must not come


def ack(received=0):
    return Ack(1, NONCE, received, 0)


@contextmanager
def opened(accepts=FROM_DECODE, host="127.0.0.1", metrics=None):
    channel = HandoffChannel(host, accepts, metrics)
    try:
        yield channel
    finally:
        channel.close()


@pytest.fixture
def prefill():
    with opened(FROM_DECODE) as channel:
        yield channel


@pytest.fixture
def decode():
    with opened(FROM_PREFILL) as channel:
        yield channel


@pytest.fixture
def stranger(prefill):
    """A raw socket to P's port."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        socket.connect(prefill.endpoint)
        yield socket


def take(channel, number=1, seconds=WAIT_S):
    """``number`` messages, or those that came in ``seconds``."""
    got, end = [], time.monotonic() + seconds
    while len(got) < number and time.monotonic() < end:
        got += channel.receive()
        time.sleep(0.002)
    return got


def wait_for_drops(channel, number):
    end = time.monotonic() + WAIT_S
    got = []
    while sum(channel.dropped.values()) < number and time.monotonic() < end:
        got += channel.receive()
        time.sleep(0.002)
    assert got == []
    return dict(channel.dropped)


def still_works(prefill, decode):
    decode.send(prefill.endpoint, ack(77))
    assert take(prefill) == [ack(77)]


def test_messages_arrive_in_order(prefill, decode):
    sent = [ack(n) for n in range(50)]
    for message in sent:
        decode.send(prefill.endpoint, message)
    assert take(prefill, 50) == sent
    assert decode.sent == prefill.received == {"Ack": 50}
    assert not prefill.dropped and not decode.dropped


def test_both_ways(prefill, decode):
    append = Append(1, NONCE, 1, 1, list(range(MAX_IDS_PER_APPEND)), 5)
    prefill.send(decode.endpoint, append)
    decode.send(prefill.endpoint, ack())
    assert take(decode) == [append] and take(prefill) == [ack()]


def test_an_empty_channel_returns_at_once(prefill):
    start = time.perf_counter()
    for _ in range(200):
        assert list(prefill.receive()) == []
    assert time.perf_counter() - start < 1.0


def test_connecting_ahead_sends_nothing(prefill, decode):
    decode.connect(prefill.endpoint)
    decode.connect(prefill.endpoint)
    assert take(prefill, seconds=SOON_S) == []
    still_works(prefill, decode)


# ---------------------------------------------------------------------------- bad frames
def test_the_wrong_role_is_refused(prefill, decode):
    """A peer that claims to be P may not feed P."""
    decode.send(prefill.endpoint, Append(1, NONCE, 1, 1, [5], 0))
    prefill.send(decode.endpoint, SealRequest(1, NONCE, 1, 0))
    assert wait_for_drops(prefill, 1) == wait_for_drops(decode, 1) == {"role": 1}
    assert not prefill.received and not decode.received


@pytest.mark.parametrize(
    "frames, reason",
    [
        ([b""], "size"),
        ([b"\x01"], "size"),
        ([b"\x00" + encode(ack())[1:]], "version"),
        ([bytes((VERSION + 1,)) + encode(ack())[1:]], "version"),
        ([encode(ack())[:-1]], "malformed"),
        ([encode(ack()) + b"\x00"], "malformed"),
        ([b"\x01" + msgspec.msgpack.encode({"room": 1})], "malformed"),
        ([b"\x01\x96\x03\x01\xc4\x10" + NONCE + b"\x00\x00" + b"\x91" * 60_000], "malformed"),
        ([encode(ack()), encode(ack())], "size"),
        ([b""] * 100, "size"),
    ],
)
def test_a_bad_frame_is_counted_by_reason(prefill, stranger, decode, frames, reason):
    stranger.send_multipart(frames)
    assert wait_for_drops(prefill, 1) == {reason: 1}
    still_works(prefill, decode)


def test_a_reason_is_logged_once(prefill, stranger, caplog):
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        for _ in range(20):
            stranger.send(b"\x01noise")
        stranger.send(b"\x07other")
        wait_for_drops(prefill, 21)
    assert prefill.dropped == {"malformed": 20, "version": 1}
    assert [record.getMessage().split("(")[1].split(")")[0] for record in caplog.records] == ["malformed", "version"]


def test_a_frame_just_too_large_never_reaches_the_decoder(prefill, stranger, decode):
    """libzmq hangs up on the sender; the port lives on."""
    stranger.send(bytes(MAX_FRAME_BYTES + 1))
    assert take(prefill, seconds=SOON_S) == []
    assert not prefill.dropped
    still_works(prefill, decode)


HUGE = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.PUSH)
socket.linger = 0
socket.connect(sys.argv[1])
frame = bytes(8 << 20)
for _ in range(30):
    socket.send(frame)
    time.sleep(0.02)
"""


def test_huge_frames_cost_no_memory(prefill, decode):
    """From another process, whose own copies don't count here."""
    before = resident_bytes()
    with subprocess.Popen([sys.executable, "-c", HUGE, prefill.endpoint]) as stranger:
        while stranger.poll() is None:
            assert list(prefill.receive()) == []
            time.sleep(0.01)
    assert resident_bytes() - before < 24 << 20  # three of thirty
    assert not prefill.received
    still_works(prefill, decode)


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_noise_is_counted_to_the_last_frame(prefill, stranger, decode):
    rng = random.Random(5)
    sound = encode(Append(1, NONCE, 1, 1, [1, 2, 3], 0))
    for number in range(5000):
        frame = bytearray(sound if number % 2 else rng.randbytes(rng.randrange(2, 80)))
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        stranger.send(frame)
        if number % 100 == 99:
            list(prefill.receive())  # a mutation may hit upon a sound message
    end = time.monotonic() + WAIT_S
    seen = 0
    while seen < 5000 and time.monotonic() < end:
        list(prefill.receive())
        seen = sum(prefill.dropped.values()) + sum(prefill.received.values())
    assert seen == 5000 and set(prefill.dropped) <= {"size", "version", "malformed", "role"}
    still_works(prefill, decode)


# ---------------------------------------------------------------------------- bounds
def test_a_peer_that_does_not_read_costs_a_bounded_queue(decode):
    """Nobody listens there: the queue fills, then messages are dropped, and nothing blocks."""
    with zmq.Context() as context, context.socket(zmq.PULL) as nobody:
        port = nobody.bind_to_random_port("tcp://127.0.0.1")
        nobody.unbind(f"tcp://127.0.0.1:{port}")
        start = time.perf_counter()
        for n in range(module.SEND_HIGH_WATER_MARK + 100):
            decode.send(f"tcp://127.0.0.1:{port}", ack(n))
        assert time.perf_counter() - start < 5.0
    assert decode.dropped == {"send_queue_full": 100}
    assert decode.sent == {"Ack": module.SEND_HIGH_WATER_MARK}


def test_a_flood_is_taken_in_pieces(prefill, decode):
    """One call must not keep the scheduler from its batch."""
    for n in range(module.MAX_FRAMES_PER_POLL * 2):
        decode.send(prefill.endpoint, ack(n))
        while decode.dropped:
            pytest.fail("the flood was too fast for this test")
        if n % 200 == 0:
            time.sleep(0.01)
    time.sleep(SOON_S)
    assert len(list(prefill.receive())) == module.MAX_FRAMES_PER_POLL
    rest = take(prefill, module.MAX_FRAMES_PER_POLL)
    assert rest[-1] == ack(module.MAX_FRAMES_PER_POLL * 2 - 1)


def test_peers_are_bounded_and_the_oldest_goes(prefill, decode, monkeypatch):
    monkeypatch.setattr(module, "MAX_PEERS", 3)
    for port in range(20001, 20011):
        decode.send(f"tcp://127.0.0.1:{port}", ack())
        decode.connect(prefill.endpoint)
    assert len(decode._peers) == 3
    still_works(prefill, decode)


@pytest.mark.parametrize(
    "endpoint, refused",
    [
        ("nonsense", True),
        ("tcp://:", True),
        # libzmq takes these, and tries in the background to make sense of them
        ("tcp://127.0.0.1:99999", False),
        ("tcp://[::1:5", False),
        ("tcp://no.such.host.invalid:80", False),
    ],
)
def test_an_endpoint_that_is_none_is_counted_and_leaks_nothing(endpoint, refused):
    """Offers and Opens name endpoints, so a stranger may choose them."""
    with opened() as channel:
        files = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            channel.send(endpoint, ack())
            channel.connect(endpoint)
        end = time.monotonic() + WAIT_S  # libzmq closes in the background
        while len(os.listdir("/proc/self/fd")) > files + 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= files + 2
        assert channel.dropped["unreachable"] == (100 if refused else 0)
    # And close() has returned: no socket was left open in its context.


# ---------------------------------------------------------------------------- a dead connection
def shake_hands(endpoint):
    """A TCP connection that has greeted ``endpoint`` as libzmq's PUSH does (ZMTP 3.0, no security)."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    connection = socket.create_connection((host, int(port)), WAIT_S)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + (4).to_bytes(4, "big") + b"PUSH"
    connection.sendall(b"\x04" + bytes([len(ready)]) + ready)
    answer = b""
    while b"READY" not in answer:
        got = connection.recv(200)
        assert got, "it hung up"
        answer += got
    return connection


def test_a_peer_that_fills_the_queue_and_hangs_up_ends_nothing(prefill, decode):
    """With libzmq's heartbeats the process was aborted when the next one was due."""
    connection, frames, left = shake_hands(prefill.endpoint), 100 * (b"\x00\xc8" + bytes(200)), b""
    connection.settimeout(SOON_S)
    with suppress(TimeoutError):  # nothing more is taken
        while True:
            left = left or frames
            left = left[connection.send(left) :]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0" + bytes(4))
    connection.close()  # with a reset
    time.sleep(3)
    end = time.monotonic() + WAIT_S
    while sum(prefill.dropped.values()) < module.RECEIVE_HIGH_WATER_MARK:
        assert list(prefill.receive()) == [] and time.monotonic() < end
    list(prefill.receive())
    still_works(prefill, decode)


def tcp_connections():
    """This process's connected TCP sockets, as copies."""
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # listdir's own
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(fd)))


def test_the_kernel_gives_dead_connections_up_on_both_ends(prefill, decode):
    """What it does then is shown where links can be cut: test_seamless_handoff_network.py."""
    still_works(prefill, decode)
    ports, seen = {int(each.endpoint.rsplit(":", 1)[1]) for each in (prefill, decode)}, 0
    for each in tcp_connections():
        with closing(each), suppress(OSError):
            if each.family == socket.AF_INET and ports & {each.getpeername()[1], each.getsockname()[1]}:
                assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == module.DEAD_AFTER_MS
                assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == module.KEEPALIVE_S
                seen += 1
    assert seen == 2


# ---------------------------------------------------------------------------- addresses
def test_two_workers_on_one_host_have_their_own_ports():
    with opened() as first, opened() as second:
        assert first.endpoint != second.endpoint
        assert first.endpoint.startswith("tcp://127.0.0.1:")


def test_the_port_is_bound_to_the_given_host_only():
    with opened(host="127.0.0.2") as channel, opened() as sender:
        port = channel.endpoint.rsplit(":", 1)[1]
        sender.send(f"tcp://127.0.0.1:{port}", ack())
        assert take(channel, seconds=SOON_S) == []
        sender.send(channel.endpoint, ack())
        assert take(channel) == [ack()]


def ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.mark.skipif(not ipv6(), reason="no IPv6 loopback here")
def test_ipv6():
    with opened(host="::1") as channel, opened() as sender:
        assert channel.endpoint.startswith("tcp://[::1]:")
        sender.send(channel.endpoint, ack())
        assert take(channel) == [ack()]


ALLOWLIST = """
import os, time
from sglang.srt.disaggregation.handoff.channel import HandoffChannel
from sglang.srt.disaggregation.handoff.messages import FROM_DECODE, Ack

def arrives(allowed, seconds):
    os.environ["SGLANG_ZMQ_ALLOWED_PEERS"] = allowed
    channel = HandoffChannel("127.0.0.1", FROM_DECODE)
    sender = HandoffChannel("127.0.0.1", FROM_DECODE)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sender.send(channel.endpoint, Ack(1, bytes(16), 0, 0))
        time.sleep(0.02)
        if list(channel.receive()):
            return True
    return False

print(arrives("127.0.0.1", 20), arrives("10.1.2.3", 2), flush=True)
os._exit(0)  # the authenticator's thread is upstream's and does not end by itself
"""


def test_the_operators_list_of_peers_is_obeyed():
    """Upstream's SGLANG_ZMQ_ALLOWED_PEERS covers this port as well."""
    run = [sys.executable, "-c", ALLOWLIST]
    result = subprocess.run(run, capture_output=True, text=True, timeout=200)
    assert result.stdout.endswith("True False\n"), result.stderr[-2000:]


def test_close_gives_the_port_back():
    with opened() as channel:
        endpoint = channel.endpoint
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(endpoint)


def test_no_port_is_an_error_at_start():
    with pytest.raises(zmq.ZMQError):
        HandoffChannel("203.0.113.7", FROM_DECODE)


class Metrics:
    """Remembers what it was told."""

    def __init__(self):
        self.messages, self.drops = [], []

    def message(self, direction, kind):
        self.messages.append((direction, kind))

    def dropped(self, reason):
        self.drops.append(reason)


def test_metrics_are_told_of_each_message_and_each_drop():
    """Every drop, though only the first of a reason is logged."""
    metrics = Metrics()
    with opened(metrics=metrics) as channel:
        channel.send(channel.endpoint, ack())
        channel.send(channel.endpoint, Append(1, NONCE, 1, 1, [5], 0))  # not for this role
        assert take(channel) == [ack()]
        for _ in range(2):
            channel.drop("room", "of another request")
        channel.send("tcp://[no address", ack())
        take(channel, seconds=SOON_S)
    assert sorted(metrics.messages) == [("received", "Ack"), ("sent", "Ack"), ("sent", "Append")]
    assert sorted(metrics.drops) == ["role", "room", "room", "unreachable"]
