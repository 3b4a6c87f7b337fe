"""The road of messages to their machines: FENCED by nonce and room, one tick for all, late answers."""

import pytest
from handoff_parts import D_ENDPOINT, FINGERPRINT, NONCE, P_ENDPOINT, ROOM, TIMING
from handoff_parts import decode_machine, everything, kinds, prefill_machine

from sglang.srt.disaggregation.handoff import sessions
from sglang.srt.disaggregation.handoff.decode_machine import DecodeState
from sglang.srt.disaggregation.handoff.messages import (
    Abort,
    AbortReason,
    Ack,
    Append,
    Commit,
    Open,
    SealRequest,
)
from sglang.srt.disaggregation.handoff.prefill_machine import PrefillState
from sglang.srt.disaggregation.handoff.sessions import HandoffInput, Session, SessionTable

T0 = 1000.0
OTHER = b"another request."
OPEN = Open(ROOM, NONCE, 1, P_ENDPOINT, 5, 2, FINGERPRINT, 100, 0)


class Channel:
    """The network's end, as a list."""

    def __init__(self):
        self.arrived, self.sent, self.dropped = [], [], []

    def receive(self):
        arrived, self.arrived = self.arrived, []
        yield from arrived

    def send(self, endpoint, message):
        self.sent.append((endpoint, message))

    def drop(self, reason, detail=""):
        self.dropped.append(reason)


@pytest.fixture
def table():
    return SessionTable(Channel(), TIMING, T0)


def on_prefill(table, nonce=NONCE, room=ROOM):
    session = Session("req", prefill_machine(nonce=nonce, room=room), D_ENDPOINT)
    table.add(session)
    session.machine.start(T0, 1)
    return session


def on_decode(table):
    session = Session("req", decode_machine(), None)
    table.add(session)
    return session


def handle(table, *messages, now=T0):
    table.handle(HandoffInput(now, list(messages)))


# ---------------------------------------------------------------------------- intake
def test_nothing_to_do_is_no_input(table):
    assert table.poll(T0 + 99) == []


def test_messages_make_an_input_at_any_time(table):
    ack = Ack(ROOM, NONCE, 1, 0)
    table.channel.arrived = [ack]
    assert table.poll(T0) == [HandoffInput(T0, [ack])]
    assert table.poll(T0) == []


def test_a_tick_is_due_only_while_someone_lives(table):
    session = on_prefill(table)
    assert table.poll(T0) == [HandoffInput(T0, [])]
    handle(table)
    assert table.poll(T0 + TIMING.resend / 2 - 0.01) == []
    assert table.poll(T0 + TIMING.resend / 2) != []
    table.retire(session)
    assert table.poll(T0 + 99) == []


def test_one_tick_however_many_inputs(table):
    on_prefill(table)
    handle(table, now=T0 + TIMING.resend)
    sent = len(table.channel.sent)
    assert sent
    for _ in range(5):
        handle(table, now=T0 + TIMING.resend)
    assert len(table.channel.sent) == sent


def test_a_long_stall_is_one_tick_with_the_true_time(table):
    session = on_prefill(table)
    handle(table, now=T0 + TIMING.lease + 1)
    assert session.machine.state is PrefillState.PAUSED
    assert table.now == T0 + TIMING.lease + 1


def test_time_does_not_go_back(table):
    handle(table, now=T0 + 5)
    handle(table, now=T0 + 4)
    assert table.now == T0 + 5


# ---------------------------------------------------------------------------- fences
def test_a_message_meets_its_own_session(table):
    first, second = on_prefill(table), on_prefill(table, OTHER, room=8)
    before = everything(first.machine)
    handle(table, SealRequest(8, OTHER, 1, 0))
    assert second.machine.state is PrefillState.SEALED
    assert everything(first.machine) == before


@pytest.mark.parametrize(
    "message, reason",
    [
        (SealRequest(ROOM, OTHER, 1, 0), "unknown_session"),
        (Commit(ROOM, bytes(16), 1), "unknown_session"),
        (SealRequest(ROOM + 1, NONCE, 1, 0), "room"),
        (Abort(ROOM + 1, NONCE, AbortReason.CLIENT), "room"),
    ],
)
def test_FENCED_another_nonce_or_room_is_counted_and_changes_nothing(table, message, reason):
    session = on_prefill(table)
    before = everything(session.machine)
    table._next_tick = T0 + 1
    handle(table, message)
    assert table.channel.dropped == [reason] and table.channel.sent == []
    assert everything(session.machine) == before


def test_FENCED_the_room_used_again_is_another_session(table):
    """A late message of the first request does not touch the second, of the same room."""
    table.retire(on_prefill(table))
    second = on_prefill(table, OTHER)
    before = everything(second.machine)
    table._next_tick = T0 + 1
    handle(table, Commit(ROOM, NONCE, 1), SealRequest(ROOM, NONCE, 1, 0))
    assert everything(second.machine) == before


def test_FENCED_a_restarted_worker_knows_nobody(table):
    """A new process has an empty table: what was said to the old one meets no session."""
    handle(table, Commit(ROOM, NONCE, 1), Ack(ROOM, NONCE, 1, 0))
    assert table.channel.dropped == ["unknown_session"] * 2 and len(table) == 0


def test_a_nonce_is_used_once(table):
    session = on_prefill(table)
    with pytest.raises(ValueError, match="nonce used twice"):
        on_prefill(table)
    table.retire(session)
    with pytest.raises(ValueError, match="nonce used twice"):
        on_prefill(table)


# ---------------------------------------------------------------------------- peers
def test_replies_go_to_the_peer(table):
    on_prefill(table)
    handle(table, SealRequest(ROOM, NONCE, 1, 0))
    assert [(end, type(m).__name__) for end, m in table.channel.sent] == [(D_ENDPOINT, "Sealed")]


def test_D_learns_where_P_is_from_the_open(table):
    session = on_decode(table)
    table.send(session, [Abort(ROOM, NONCE, AbortReason.CLIENT)])
    assert table.channel.sent == [], "nobody to say it to yet"
    handle(table, OPEN, Append(ROOM, NONCE, 1, 1, [5], 3))
    assert session.peer == P_ENDPOINT
    assert table.channel.sent == [(P_ENDPOINT, Ack(ROOM, NONCE, 1, 3))]


def test_a_second_open_does_not_move_the_peer(table):
    session = on_decode(table)
    handle(table, OPEN, Open(ROOM, NONCE, 1, "tcp://10.9.9.9:99", 5, 2, FINGERPRINT, 100, 0))
    assert session.peer == P_ENDPOINT


def test_a_P_of_another_model_is_told(table):
    on_decode(table)
    handle(table, Open(ROOM, NONCE, 1, P_ENDPOINT, 5, 2, b"another!", 100, 0))
    assert table.channel.sent == [(P_ENDPOINT, Abort(ROOM, NONCE, AbortReason.CONFIG))]


# ---------------------------------------------------------------------------- ended sessions
def test_a_retired_session_lets_its_request_go(table):
    session = on_prefill(table)
    table.retire(session)
    assert session.request is None and len(table) == 0 and list(table) == []
    table.retire(session)
    assert len(table) == 0


def test_a_late_open_is_told_that_D_went_its_own_way(table):
    """The KV was faster: D has the request on the ordinary path, and P must stop bridging."""
    session = on_decode(table)
    session.machine.kv_arrived(T0)
    table.retire(session)
    handle(table, OPEN)
    assert table.channel.sent == [(P_ENDPOINT, Abort(ROOM, NONCE, AbortReason.NOT_OPENED))]


def test_a_lost_commit_is_said_again_by_an_ended_session(table):
    session = on_decode(table)
    handle(table, OPEN, Append(ROOM, NONCE, 1, 1, [5], 3))
    session.machine.take_relay()
    session.machine.kv_arrived(T0)
    session.machine.receive(T0, Abort(ROOM, NONCE, AbortReason.TIMEOUT))
    assert session.machine.state is DecodeState.OWNER
    table.retire(session)
    table.channel.sent.clear()
    handle(table, Append(ROOM, NONCE, 1, 2, [6], 4))
    assert table.channel.sent == [(P_ENDPOINT, Commit(ROOM, NONCE, 1))]


def test_an_ended_session_has_no_ticks(table):
    session = on_prefill(table)
    table.retire(session)
    before = everything(session.machine)
    handle(table, now=T0 + 999)
    assert everything(session.machine) == before


def test_ended_sessions_are_forgotten_oldest_first(table, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_ENDED", 3)
    nonces = [bytes([n]) * 16 for n in range(5)]
    for nonce in nonces:
        session = on_prefill(table, nonce)
        session.machine.abort(T0, AbortReason.CLIENT)
        table.retire(session)
    for nonce in nonces:
        handle(table, SealRequest(ROOM, nonce, 1, 0))
    assert table.channel.dropped == ["unknown_session"] * 2
    assert kinds(m for _, m in table.channel.sent) == ["Abort"] * 3


def test_a_session_may_retire_while_all_are_walked(table):
    """The scheduler retires what it finds ended in the same loop."""
    for n in range(4):
        on_prefill(table, bytes([n]) * 16)
    for session in table:
        table.retire(session)
    assert len(table) == 0


# --------------------------------------------------------------------------- deadlines
def test_the_caller_is_told_of_each_deadline_with_its_session(table):
    fired, session = [], on_prefill(table)
    table.on_deadline = lambda *told: fired.append(told)
    handle(table, now=T0 + TIMING.lease - 0.1)
    assert fired == []
    handle(table, now=T0 + TIMING.lease + 1)
    handle(table, now=T0 + TIMING.lease + 2)
    assert fired == [(session, "lease")]


def test_nobody_need_listen_to_deadlines(table):
    on_prefill(table)
    handle(table, now=T0 + TIMING.lease + TIMING.silence)


# ---------------------------------------------------------------------------- a peer that doesn't answer
def test_a_peer_is_silent_when_a_lease_has_brought_no_answer(table):
    assert not table.is_silent(D_ENDPOINT)
    on_prefill(table)
    handle(table, now=T0 + TIMING.lease - 0.1)
    assert not table.is_silent(D_ENDPOINT)
    handle(table, now=T0 + TIMING.lease)
    assert table.is_silent(D_ENDPOINT) and not table.is_silent("tcp://another:1")


@pytest.mark.parametrize("ended", [False, True])
def test_a_peer_that_answers_another_request_is_not_silent_for_a_lease(table, ended):
    """On a network that loses messages one session may have no answer for long."""
    on_prefill(table)
    other = on_prefill(table, nonce=OTHER)
    if ended:
        table.retire(other)
    at = T0 + TIMING.lease / 2
    handle(table, Ack(ROOM, OTHER, 1, int(T0 * 1e6)), now=at)
    handle(table, now=T0 + TIMING.lease)
    assert not table.is_silent(D_ENDPOINT)
    handle(table, now=at + TIMING.lease)
    assert table.is_silent(D_ENDPOINT)


def test_a_peer_is_not_silent_for_what_lies_unread(table):
    """Nothing is read during a forward, which may take longer than a lease."""
    on_prefill(table)
    handle(table, now=T0)
    table.now = T0 + 2 * TIMING.lease
    assert not table.is_silent(D_ENDPOINT)


def test_a_session_that_has_ended_says_nothing_of_its_peer(table):
    session = on_prefill(table)
    handle(table, Abort(ROOM, NONCE, AbortReason.NOT_OPENED), now=T0)
    handle(table, now=T0 + 2 * TIMING.lease)
    assert session.machine.done and not table.is_silent(D_ENDPOINT)
