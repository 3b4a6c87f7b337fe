"""The requests of one worker that take part in a handoff, and the road of messages to their machines."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Union

import msgspec

from .channel import HandoffChannel
from .deadlines import facts, fired
from .decode_machine import DecodeMachine
from .messages import Message, Open
from .prefill_machine import PrefillMachine
from .record import RequestRecord
from .timing import Timing
from .verify import ReplayVerification

# Ended sessions kept to answer a peer whose last message from here was lost.
MAX_ENDED = 1024


class HandoffInput(msgspec.Struct):
    """What attention TP rank 0 read from its clock and its channel; every rank acts on this alone."""

    now: float  # seconds, monotonic clock of rank 0
    messages: List[Message]


@dataclass
class Session:
    """One request. ``request`` is the scheduler's: a Req on P, a DecodeRequest on D."""

    request: Any
    machine: Union[PrefillMachine, DecodeMachine]
    peer: Optional[str]  # the other side's endpoint; D learns it from Open
    heard_at: float = -inf  # seconds, when its last message was read
    in_flight: int = 0  # forwards launched for this request whose result is not seen
    worth: int = 0  # P: tokens that a bridge must give, as D's offer says
    transfer_ended: Optional[float] = None  # P: perf_counter seconds
    kv_sent: bool = False  # P: the transfer has succeeded
    kv_seen: bool = False  # D: the prompt KV was there at an earlier look
    aborted_here: bool = False  # the client or the operator asked this worker
    stalled_since: Optional[float] = None  # D: no KV slot for a replay round since then
    relayed_at: float = 0.0  # D: when tokens came last
    counterpart: str = ""  # the other worker, as /server_info names it
    record: Optional[RequestRecord] = None  # for people, never for decisions
    verification: Optional[ReplayVerification] = None  # D: the same, when it was asked for


class SessionTable:
    """Live sessions by nonce. Owned by the scheduler thread."""

    def __init__(self, channel: HandoffChannel, timing: Timing, now: float) -> None:
        self.channel, self.timing = channel, timing
        self.now = now  # seconds, from the newest HandoffInput
        self._read_at = now  # seconds, when the channel was read last
        self._live: Dict[bytes, Session] = {}
        self._ended: OrderedDict[bytes, Session] = OrderedDict()
        self._next_tick = now
        self.clock_wanted = False  # something waits for the time at the next iteration
        self.on_deadline: Optional[Callable[[Session, str], None]] = None  # told of each that fires

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def knows(self, nonce: bytes) -> bool:
        """Whether a session of this nonce lives, or is remembered."""
        return nonce in self._live or nonce in self._ended

    def is_silent(self, peer: str) -> bool:
        """P: a session with ``peer`` has had no answer for a lease, and none of the others had one since:
        ``peer`` doesn't hear this worker, or this worker not ``peer``."""
        # Not as of now: after a long forward an answer may lie unread.
        if not any(s.peer == peer and s.machine.unanswered(self._read_at) for s in self):
            return False
        known = (*self._live.values(), *self._ended.values())
        return all(self._read_at - s.heard_at >= self.timing.lease for s in known if s.peer == peer)

    def add(self, session: Session) -> None:
        nonce = session.machine.nonce
        if self.knows(nonce):
            raise ValueError("handoff nonce used twice")
        self._live[nonce] = session

    def retire(self, session: Session) -> None:
        """The scheduler has no more work for this session; late messages still get an answer."""
        if self._live.pop(session.machine.nonce, None) is None:
            return
        session.request = None
        self._ended[session.machine.nonce] = session
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def poll(self, now: float) -> List[HandoffInput]:
        """One input if messages have come or a tick is due, else none. Rank 0 only."""
        messages = list(self.channel.receive())
        due = self.clock_wanted or (bool(self._live) and now >= self._next_tick)
        return [HandoffInput(now, messages)] if messages or due else []

    def handle(self, event: HandoffInput) -> None:
        """Give each message to its machine, then let the machines see the time."""
        self.now = max(self.now, event.now)
        self._read_at = event.now
        for message in event.messages:
            session = self._live.get(message.nonce) or self._ended.get(message.nonce)
            if session is None:
                self.channel.drop("unknown_session", type(message).__name__)
            elif session.machine.room != message.room:
                self.channel.drop("room", type(message).__name__)
            else:
                replies = session.machine.receive(self.now, message)
                session.heard_at = self.now
                # The machine believed an Open before its endpoint is used.
                if isinstance(message, Open) and session.peer is None:
                    session.peer = message.endpoint
                self.send(session, replies)
        if self.now >= self._next_tick:
            self._next_tick = self.now + self.timing.resend / 2
            for session in self:
                before = facts(session.machine)
                self.send(session, session.machine.tick(self.now))
                deadline = fired(before, session.machine)
                if deadline is not None and self.on_deadline is not None:
                    self.on_deadline(session, deadline)

    def send(self, session: Session, messages: Iterable[Message]) -> None:
        for message in messages:
            if session.peer is not None:
                self.channel.send(session.peer, message)
