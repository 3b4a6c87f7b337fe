"""200,000 frames on the real channel, table and machines: strangers' change nothing, a peer's break no invariant."""

import gc
import hashlib
import logging
import os
import threading
import time
import tracemalloc
from contextlib import contextmanager

import pytest
import zmq
from control_port_fuzz import VOCABULARY, Frames
from handoff_parts import D_EPOCH, FINGERPRINT, P_EPOCH, TIMING, decode_machine, everything, prefill_machine

from sglang.srt.disaggregation.handoff import channel as channel_module
from sglang.srt.disaggregation.handoff import messages as m
from sglang.srt.disaggregation.handoff.channel import HandoffChannel
from sglang.srt.disaggregation.handoff.decode_machine import REPLAY_STATES, DecodeState
from sglang.srt.disaggregation.handoff.prefill_machine import HOLD_ENGINE, HOLD_KV, HOLD_LEASE, OPEN_STATES
from sglang.srt.disaggregation.handoff.prefill_machine import TERMINAL_STATES as P_ENDS
from sglang.srt.disaggregation.handoff.prefill_machine import PrefillMachine, PrefillState
from sglang.srt.disaggregation.handoff.sessions import HandoffInput, Session, SessionTable

STRANGERS = 60_000  # frames for each role
PEERS = 40_000
MAX_NEW = 60
BATCH = 400
WAIT_S = 20.0
QUIET = (0, 0, 0, 0.01, 0.1)  # seconds between two looks of a scheduler
ROLES = {"prefill": m.FROM_DECODE, "decode": m.FROM_PREFILL}
REASONS = {"size", "version", "malformed", "role", "unknown_session", "room", "send_queue_full", "unreachable"}
LEAK = 50  # bytes a message that the memory tests must see


class Worker:
    """A role's channel and table, with the scheduler's part played by the test, and a raw socket to its port."""

    def __init__(self, role: str):
        self.accepts = ROLES[role]
        self.now = P_EPOCH if role == "prefill" else D_EPOCH
        self.channel = HandoffChannel("127.0.0.1", self.accepts)
        self.table = SessionTable(self.channel, TIMING, self.now)
        self.made = 0
        self._context = zmq.Context()
        self._sender = self._context.socket(zmq.PUSH)
        self._sender.linger = 0
        self._sender.connect(self.channel.endpoint)

    def close(self):
        self._context.destroy(linger=0)
        self.channel.close()

    def session(self, opened: bool = True) -> Session:
        """A new live session, that has heard of its peer if ``opened``."""
        self.made += 1
        names = dict(room=self.made, nonce=hashlib.blake2b(self.made.to_bytes(4, "big"), digest_size=16).digest())
        if self.accepts is m.FROM_DECODE:
            session = Session("req", prefill_machine(**names, budget=MAX_NEW), "tcp://127.0.0.1:1")
            session.machine.start(self.now, 5)
        else:
            session = Session("req", decode_machine(**names, max_new_tokens=MAX_NEW), None)
            if opened:
                session.machine.receive(self.now, m.Open(*names.values(), 1, "tcp://127.0.0.1:1", 5, 2, FINGERPRINT, 100, 0))
                session.peer = "tcp://127.0.0.1:1"
                session.machine.receive(self.now, m.Append(*names.values(), 1, 1, list(range(1, 9)), 0))
        self.table.add(session)
        return session

    def seen(self) -> int:
        """Frames that were received or refused at the door."""
        refused = (self.channel.dropped[reason] for reason in ("size", "version", "malformed", "role"))
        return sum(self.channel.received.values()) + sum(refused)

    def deliver(self, frames):
        """Send frames through the socket; yield each input of the table once its messages were handled."""
        goal = self.seen() + len(frames)
        for parts in frames:
            self._sender.send_multipart(parts)
        end = time.monotonic() + WAIT_S
        while self.seen() < goal:
            assert time.monotonic() < end, f"{goal - self.seen()} frames are neither received nor counted"
            for event in self.table.poll(self.now):
                self.table.handle(event)
                yield event


@contextmanager
def worker(role):
    running = Worker(role)
    try:
        yield running
    finally:
        running.close()


def of_a_session(parts, nonces) -> bool:
    """Whether a frame may be a session's own: it's whole, of this version, and its nonce is in it."""
    return len(parts) == 1 and parts[0][:1] == bytes((m.VERSION,)) and any(nonce in parts[0] for nonce in nonces)


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ------------------------------------------------------------------------------------------ strangers
class Leaks(HandoffChannel):
    """The mutant that the memory tests must catch."""

    kept = []

    def drop(self, reason, detail=""):
        self.kept.append(bytes(LEAK - 33))
        super().drop(reason, detail)


def strangers_frames(running: Worker, seed: int, number: int):
    """Frames of which none is a session's own, but half name a live session's room or nonce."""
    frames = Frames(seed, m.FROM_DECODE + m.FROM_PREFILL, FINGERPRINT)
    live = [(s.machine.room, s.machine.nonce) for s in running.table]
    nonces = [nonce for _, nonce in live]
    batch = []
    for _ in range(number):
        room, nonce = frames.rng.choice(live)
        parts = frames.frame(room, nonce)
        while of_a_session(parts, nonces) and not other_room(parts, dict((n, r) for r, n in live)):
            parts = frames.frame(room, nonce)
        batch.append(parts)
    return batch


def other_room(parts, rooms) -> bool:
    """Whether a frame is a sound message with a live nonce and not its room."""
    try:
        message = m.decode(parts[0])
    except m.FrameError:
        return False
    return message.nonce in rooms and rooms[message.nonce] != message.room


def states_of_every_kind(running: Worker):
    """Sessions in as many states as a few calls reach."""
    now, sessions = running.now, [running.session(opened=n > 0) for n in range(8)]
    machines = [s.machine for s in sessions]
    if running.accepts is m.FROM_DECODE:
        machines[1].hold(HOLD_KV)
        machines[2].receive(now, m.SealRequest(machines[2].room, machines[2].nonce, 1, 0))
        machines[3].receive(now, m.Commit(machines[3].room, machines[3].nonce, 1))
        machines[4].abort(now, m.AbortReason.CLIENT)
    else:
        for machine in machines[2:]:
            machine.take_relay()
            machine.kv_arrived(now)
        machines[3].round_started(4)
        machines[4].receive(now, m.Sealed(machines[4].room, machines[4].nonce, 1, 30, bytes(8), m.EndReason.LENGTH))
        machines[5].finished(now)
        machines[6].round_started(7), machines[6].round_done(now), machines[6].room_ahead(now, True)
    running.table.retire(sessions[7])
    return sessions


@pytest.mark.parametrize("role", ROLES)
def test_FENCED_strangers_change_nothing(role, caplog):
    """Every field of every machine is as before, every frame is counted, nothing is answered, and memory is flat."""
    with worker(role) as running, caplog.at_level(logging.WARNING):
        sessions = states_of_every_kind(running)
        running.table.handle(HandoffInput(running.now, []))  # the tick; none is due later, time stands still
        before, sent = [everything(s.machine) for s in sessions], sum(running.channel.sent.values())
        threads, resident = threading.active_count(), None
        for seed in range(STRANGERS // BATCH):
            for _ in running.deliver(strangers_frames(running, seed, BATCH)):
                pass
            assert [everything(s.machine) for s in sessions] == before, f"seed {seed}"
            if seed == STRANGERS // BATCH // 3:
                gc.collect()
                resident = resident_bytes()
        gc.collect()
        assert resident_bytes() - resident < STRANGERS * 2 // 3 * LEAK
        assert sum(running.channel.sent.values()) == sent
        counts = running.channel.dropped
        assert set(counts) <= REASONS and running.seen() == STRANGERS
        assert sum(counts.values()) == STRANGERS  # each for one reason
        assert min(counts[r] for r in ("size", "version", "malformed", "role", "unknown_session", "room")) > STRANGERS / 200
        assert threading.active_count() == threads
        assert len(caplog.records) == len(counts)  # one line for each reason, whatever the number


def growth(running: Worker, seed: int, number: int) -> float:
    """Bytes of Python memory that a frame leaves behind. Two rounds before, for what is made once."""
    for warm in range(2):
        for _ in running.deliver(strangers_frames(running, seed + warm, BATCH)):
            pass
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        for n in range(number // BATCH):
            for _ in running.deliver(strangers_frames(running, seed + 2 + n, BATCH)):
                pass
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - start) / number
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("leaks", [False, True])
def test_no_frame_leaves_memory_behind(role, leaks, monkeypatch):
    with worker(role) as running:
        running.session()
        running.table.handle(HandoffInput(running.now, []))
        if leaks:  # the test's own test
            monkeypatch.setattr(Leaks, "kept", [])
            running.channel.__class__ = Leaks
        assert (growth(running, 10_000, 10 * BATCH) > LEAK / 2) == leaks


# ---------------------------------------------------------------------------------------------- peers
def assert_sound(running: Worker, monkeypatch):
    """Whatever a machine says can be read by the other side; and it says little."""
    said = []

    def send(endpoint, message):
        assert m.decode(m.encode(message)) == message
        said.append(message)

    monkeypatch.setattr(running.channel, "send", send)
    return said


def test_a_hostile_P_breaks_no_invariant_of_D(monkeypatch):
    """Messages with the right nonce act, but within bounds; D's scheduler is played at random."""
    with worker("decode") as running:
        said = assert_sound(running, monkeypatch)
        frames, states, ends = Frames(7, m.FROM_PREFILL, FINGERPRINT), set(), set()
        rng, clients, logged, terms = frames.rng, {}, {}, {}
        handled = 0
        while handled < PEERS:
            while len(running.table) < 12:
                session = running.session(opened=rng.random() < 0.7)
                clients[session.machine.nonce], logged[session.machine.nonce] = [], {(i, i) for i in range(1, 9)}
            batch = [parts for s in running.table for parts in peers_frames(frames, s.machine)]
            rng.shuffle(batch)
            for parts in batch:
                note_logged(parts, logged)
            handled += len(batch)
            said.clear()
            for event in running.deliver(batch):
                pass
            assert len(said) <= 3 * len(batch) + 5 * len(running.table)
            running.now += rng.choice(QUIET * 20 + (TIMING.seal, TIMING.lease))
            running.table.handle(HandoffInput(running.now, []))
            for session in running.table:
                machine, client = session.machine, clients[session.machine.nonce]
                client += machine.take_relay()
                play_decode(running, session, rng)
                check_decode(machine, client, logged[machine.nonce], terms)
                states.add(machine.state)
                if machine.done and rng.random() < 0.5:
                    ends.add((machine.state, machine.abort_reason))
                    running.table.retire(session)
                    del clients[machine.nonce]
        assert states == set(DecodeState)
        assert running.made > PEERS / 400 and len(ends) > 5
        assert set(running.channel.dropped) <= REASONS


def peers_frames(frames: Frames, machine):
    """Of the session's peer, so with its room and nonce. Every second peer is tame, so that sessions also get far."""
    rng, names = frames.rng, (machine.room, machine.nonce)
    if machine.nonce[-1] % 2 and rng.random() < 0.98:
        return [] if rng.random() < 0.3 else [[m.encode(tame_message(frames, machine))]]
    return [
        frames.frame(*names) if rng.random() < 0.3 else [m.encode(frames.sound(*names, term=machine.term))]
        for _ in range(rng.randrange(40))
    ]


def tame_message(frames: Frames, machine) -> m.Message:
    """What a sound peer might say next, or say again."""
    rng, names, length = frames.rng, (machine.room, machine.nonce), len(machine.log)
    if isinstance(machine, PrefillMachine):
        ack = m.Ack(*names, rng.randrange(length + 1), rng.choice((0, machine._heard_stamp)))
        seal = m.SealRequest(*names, machine.term, rng.randrange(2 * length))
        resume = m.Resume(*names, machine.term + 1, rng.randrange(1, length + 2))
        return rng.choices((ack, seal, resume, m.Commit(*names, length)), (90, 5, 4, 2))[0]
    if machine.state is DecodeState.OFFERED:
        return m.Open(*names, 1, "tcp://127.0.0.1:1", 5, 2, FINGERPRINT, 100, 0)
    start = rng.randrange(1, length + 2)
    ids = machine.log.slice(start, length + 1) + frames.ids()[:3]
    sealed = m.Sealed(*names, machine.term, max(1, length), machine.log.digest(), rng.choice(list(m.EndReason)))
    return sealed if rng.random() < 0.05 else m.Append(*names, machine.term, start, ids, 0)


def note_logged(parts, logged):
    """(index, id) of every entry that a peer has ever claimed."""
    try:
        message = m.decode(parts[0])
    except m.FrameError:
        return
    if isinstance(message, m.Append) and message.nonce in logged:
        logged[message.nonce] |= {(message.start + n, token) for n, token in enumerate(message.ids)}


def play_decode(running: Worker, session: Session, rng):
    """One random thing that D's scheduler may do."""
    machine, now = session.machine, running.now
    send = lambda messages: running.table.send(session, messages)
    if machine.replay_in_flight and rng.random() < 0.5:
        send(machine.round_done(now)) if rng.random() < 0.9 else machine.round_failed()
    match rng.randrange(12):
        case 0 | 1:
            send(machine.kv_arrived(now))
        case 2 | 3 | 4:
            if (span := machine.replay_range(rng.randrange(1, 50))) is not None:
                machine.round_started(span[1])
        case 5 | 6:
            send(machine.room_ahead(now, rng.random() < 0.8))
        case 7 if rng.random() < 0.1:
            machine.kv_failed(now)
        case 8 if rng.random() < 0.2:
            send(machine.resume(now))
        case 9 if rng.random() < 0.02:
            send(machine.abort(now, m.AbortReason.CLIENT))
        case 10 if machine.relayed >= MAX_NEW:
            send(machine.finished(now))
    machine.hopeless(now)


def check_decode(machine, client, logged, terms):
    assert client == machine.log.slice(1, machine.relayed + 1)  # each once, in order, none taken back
    assert set(enumerate(client, 1)) <= logged
    assert all(0 <= token < VOCABULARY for token in client)
    assert 0 <= machine.replayed <= machine.relayed <= len(machine.log) <= MAX_NEW
    assert machine.cached_tokens <= machine.prompt_len
    assert machine.term >= terms.get(machine.nonce, 0)
    terms[machine.nonce] = machine.term
    assert min(machine.rejected.values(), default=1) > 0 and machine.rounds >= 0 and len(machine.rejected) < 10
    if machine.state is DecodeState.OWNER:
        assert machine.replayed + 1 == machine.relayed == len(machine.log) == machine.boundary
    if machine.state in REPLAY_STATES:
        assert machine.kv_here


def test_a_hostile_D_breaks_no_invariant_of_P(monkeypatch):
    with worker("prefill") as running:
        said = assert_sound(running, monkeypatch)
        frames, states, ends = Frames(8, m.FROM_DECODE, FINGERPRINT), set(), set()
        rng, sampled, before = frames.rng, {}, {}
        handled = 0
        while handled < PEERS:
            while len(running.table) < 12:
                session = running.session()
                sampled[session.machine.nonce] = [5]
            batch = [parts for s in running.table for parts in peers_frames(frames, s.machine)]
            rng.shuffle(batch)
            handled += len(batch)
            said.clear()
            for event in running.deliver(batch):
                pass
            # A Resume is answered with what D may lack, so with one Append of the whole log at most.
            assert len(said) <= 3 * len(batch) + 5 * len(running.table)
            running.now += rng.choice(QUIET * 20 + (TIMING.resend, TIMING.lease))
            running.table.handle(HandoffInput(running.now, []))
            for session in running.table:
                machine, tokens = session.machine, sampled[session.machine.nonce]
                play_prefill(running, session, rng, tokens)
                check_prefill(machine, running.now, tokens, before)
                states.add(machine.state)
                if machine.done and rng.random() < 0.5:
                    ends.add((machine.state, machine.abort_reason))
                    running.table.retire(session)
        assert states == set(PrefillState)
        assert running.made > PEERS / 400 and len(ends) > 5


def play_prefill(running: Worker, session: Session, rng, tokens):
    machine, now = session.machine, running.now
    if machine.may_generate(now) and rng.random() < 0.7:
        token, end = rng.randrange(VOCABULARY), m.EndReason.TOKEN if rng.random() < 0.02 else None
        tokens.append(token)
        running.table.send(session, machine.sampled(now, token, end))
    match rng.randrange(8):
        case 0:
            machine.hold(rng.choice((HOLD_KV, HOLD_ENGINE)))
        case 1 | 2:
            machine.unhold(rng.choice((HOLD_KV, HOLD_ENGINE)))
        case 3 if rng.random() < 0.02:
            running.table.send(session, machine.abort(now, m.AbortReason.CLIENT))


def check_prefill(machine, now, tokens, before):
    assert machine.log.slice(1, len(machine.log) + 1) == tokens  # nobody but P writes into P's log
    assert len(machine.log) <= MAX_NEW
    assert machine.boundary is None or 1 <= machine.boundary <= len(machine.log)
    assert machine.holds <= {HOLD_LEASE, HOLD_KV, HOLD_ENGINE}
    assert machine.lease_end <= now + TIMING.lease + 1e-6  # nobody grants P more than a lease from now
    assert machine.state in OPEN_STATES or not machine.may_generate(now)
    assert machine.log.closed_at in (None, len(machine.log))
    term, state = before.get(machine.nonce, (0, None))
    own_abort = (state, machine.state, machine.abort_reason) == (PrefillState.FINISHED, PrefillState.ABORTED, m.AbortReason.CLIENT)
    assert machine.term >= term and (state not in P_ENDS or machine.state is state or own_abort)
    before[machine.nonce] = machine.term, machine.state


# ---------------------------------------------------------------------------------------- bounds on D
def test_a_peer_cannot_make_D_keep_more_than_was_asked_for():
    """Neither a huge budget in Open nor endless appends: the log ends at max_new_tokens."""
    machine = decode_machine(max_new_tokens=MAX_NEW)
    names = machine.room, machine.nonce
    machine.receive(D_EPOCH, m.Open(*names, 1, "tcp://127.0.0.1:1", 5, 2, FINGERPRINT, m.MAX_COUNT, 0))
    for n in range(200):
        machine.receive(D_EPOCH, m.Append(*names, 1, len(machine.log) + 1, [n] * 50, 0))
    assert len(machine.log) == MAX_NEW and machine.rejected["too_long"] == 199 and machine.rejected["gap"] == 0
    assert machine.take_relay() == [0] * 50 + [1] * 10


def test_a_peer_keeps_to_its_own_budget():
    machine = decode_machine(max_new_tokens=MAX_NEW)
    names = machine.room, machine.nonce
    machine.receive(D_EPOCH, m.Open(*names, 1, "tcp://127.0.0.1:1", 5, 2, FINGERPRINT, 7, 0))
    machine.receive(D_EPOCH, m.Append(*names, 1, 1, [4] * 50, 0))
    assert machine.take_relay() == [4] * 7
    assert machine.receive(D_EPOCH, m.Append(*names, 1, 8, [4], 0)) == [m.Ack(*names, 7, 0)]


def test_more_cached_tokens_than_the_prompt_has_are_refused():
    """The number goes to the client and into the metrics."""
    machine = decode_machine()
    names = machine.room, machine.nonce
    assert machine.receive(D_EPOCH, m.Open(*names, 1, "tcp://127.0.0.1:1", 5, 6, FINGERPRINT, 7, 0)) == [
        m.Abort(*names, m.AbortReason.CONFIG)
    ]


def test_opens_do_not_make_D_open_sockets_without_limit(monkeypatch):
    """One peer a session, the first; MAX_PEERS in all, whatever is named."""
    monkeypatch.setattr(channel_module, "MAX_PEERS", 16)
    with worker("decode") as running:
        files = len(os.listdir("/proc/self/fd"))
        for n in range(120):
            machine = running.session(opened=False).machine
            opens = [
                m.Open(machine.room, machine.nonce, 1, f"tcp://127.0.0.1:{20_000 + 50 * n + k}", 5, 2, FINGERPRINT, 9, 0)
                for k in range(50)
            ]
            append = m.Append(machine.room, machine.nonce, 1, 1, [5], 0)
            running.table.handle(HandoffInput(running.now, [*opens, append]))
        assert list(running.channel._peers) == [f"tcp://127.0.0.1:{20_000 + 50 * n}" for n in range(104, 120)]
        end = time.monotonic() + WAIT_S  # libzmq closes in the background
        while len(os.listdir("/proc/self/fd")) > files + 3 * 16 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= files + 3 * 16
