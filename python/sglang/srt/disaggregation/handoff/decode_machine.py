"""D's side of one handoff.

    OFFERED -> RELAYING: P's Open
    RELAYING -> REPLAYING: the prompt KV is here
    RELAYING -> RELAY_ONLY: the KV transfer has failed, P goes on
    REPLAYING -> SEALING: one more round would catch up, and D has room to go on
    RELAYING, REPLAYING, SEALING -> DRAINING: the log's end is known, and the KV is here
    DRAINING -> OWNER: all but the last entry are replayed
    SEALING, DRAINING -> REPLAYING: no room after all, or a round has failed, P resumes
    RELAYING, REPLAYING, SEALING, DRAINING, RELAY_ONLY -> FINISHED: a relayed token ended the request
    OFFERED, RELAYING, REPLAYING, SEALING, DRAINING, RELAY_ONLY -> ABORTED: client, deadline or peer

D is the only writer to the client, so a lost, late or repeated message can delay a
token, never double or drop one. Entry t(b) need not be replayed: it is the input of D's
first own decode step. A method returns the messages to send and takes the time as an
argument; an event that doesn't fit the state changes nothing.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import List, Optional, Tuple

from .log import HandoffLog, LogConflict, LogGap
from .messages import (
    MAX_COUNT,
    Abort,
    AbortReason,
    Ack,
    Append,
    Commit,
    EndReason,
    Message,
    Open,
    Resume,
    Sealed,
    SealRequest,
)
from .pace import SEAL_LAG, SealNow
from .timing import Timing


class DecodeState(Enum):
    OFFERED = "offered"
    RELAYING = "relaying"
    REPLAYING = "replaying"
    SEALING = "sealing"
    DRAINING = "draining"
    OWNER = "owner"
    RELAY_ONLY = "relay_only"
    FINISHED = "finished"
    ABORTED = "aborted"


LISTENING_STATES = frozenset(
    {
        DecodeState.RELAYING,
        DecodeState.REPLAYING,
        DecodeState.SEALING,
        DecodeState.DRAINING,
        DecodeState.RELAY_ONLY,
    }
)
REPLAY_STATES = frozenset(
    {DecodeState.REPLAYING, DecodeState.SEALING, DecodeState.DRAINING}
)
TERMINAL_STATES = frozenset(
    {DecodeState.OWNER, DecodeState.FINISHED, DecodeState.ABORTED}
)


class DecodeMachine:
    """The log's consumer. One per offer."""

    def __init__(
        self,
        *,
        room: int,
        nonce: bytes,
        prompt_len: int,
        fingerprint: bytes,
        vocab_size: int,
        timing: Timing,
        max_new_tokens: int = MAX_COUNT,
        seal_lag: int = SEAL_LAG,
        pace: Optional[SealNow] = None,
        max_rounds_before_seal: int = 4,
        max_rounds_in_flight: int = 2,
    ) -> None:
        """Args:
        prompt_len: tokens.
        max_new_tokens: of the request; no log is let grow longer, whatever budget P's Open states.
        seal_lag: entries that may be left to replay when P is sealed, in tokens.
        pace: says when P is asked to stop, and how many entries ahead. By default at once, at ``seal_lag``.
        max_rounds_before_seal: ask for it after so many replay rounds in any case, since a
            live producer appends during every round.
        max_rounds_in_flight: launched before the first one's KV is known to be written.
        """
        self.room, self.nonce, self.timing = room, nonce, timing
        self.prompt_len, self.fingerprint, self.vocab_size = (
            prompt_len,
            fingerprint,
            vocab_size,
        )
        self.seal_lag, self.max_rounds_before_seal = seal_lag, max_rounds_before_seal
        self.max_rounds_in_flight = max_rounds_in_flight
        self.pace = pace or SealNow(seal_lag)
        self.max_log = max_new_tokens  # tokens; P's budget too, from its Open on
        self.log = HandoffLog()
        self.state = DecodeState.OFFERED
        self.term = 0
        self.peer_endpoint: Optional[str] = None
        self.cached_tokens = 0
        self.prefill_us = 0
        self.relayed = 0  # entries given to the client
        self.replayed = 0  # entries whose KV is rebuilt
        self.rounds = 0
        self.alone = False  # took over without a seal
        self.kv_here = False
        self.abort_reason: Optional[AbortReason] = None
        self.end_reason: Optional[EndReason] = None
        self.rejected: Counter[str] = Counter()
        self._rounds_to: Tuple[int, ...] = ()  # ends of the replay rounds in flight
        self._heard_at = 0.0
        self._grown_at = 0.0  # of a log that D only relays
        self._asked_at: Optional[float] = None
        self._asked_length = 0  # at which P is asked to stop; 0: at once
        self._sent_at = 0.0
        self._echoed_at = 0.0  # when P's lease was last renewed
        self._sealed: Optional[Sealed] = None
        self._room = False  # until the caller has looked
        self._resuming = False  # P has not answered in the new term
        self._aborted_on_p_at: Optional[float] = None

    # ------------------------------------------------------------------ queries
    @property
    def done(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def boundary(self) -> Optional[int]:
        """Length b at which the log ended, in tokens; D's own first token is b + 1."""
        return self.log.closed_at

    @property
    def lag(self) -> int:
        """Entries that a takeover here would still have to replay: all but the last one."""
        return max(0, len(self.log) - 1 - self.replayed)

    @property
    def replay_in_flight(self) -> bool:
        return bool(self._rounds_to)

    @property
    def launched(self) -> int:
        """Entries whose KV is rebuilt, or will be by the rounds in flight."""
        return self._rounds_to[-1] if self._rounds_to else self.replayed

    def hopeless(self, now: float) -> bool:
        """Nobody will generate the rest: the request must end in an error.

        Either D gave up after tokens were relayed, or it has no prompt KV and P has ended
        its log or logs nothing more, or the request was aborted on P.
        """
        if self.kv_lost(now):
            return self.state is not DecodeState.FINISHED
        if self.state is DecodeState.ABORTED:
            return self.relayed > 0
        if self.state is not DecodeState.RELAY_ONLY:
            return False
        ended = self.log.complete and self.relayed == len(self.log) and not self._sealed_unasked
        return ended or now - min(self._heard_at, self._grown_at) >= self.timing.silence

    def kv_lost(self, now: float) -> bool:
        """The request was aborted on P, and its transfer with it, or P has given the transfer up, of which D is not
        told otherwise. KV that was on its way before is here by the silence timeout."""
        at = self._aborted_on_p_at
        return at is not None and now - at >= self.timing.silence

    # ------------------------------------------------------------ what to do next
    def take_relay(self) -> List[int]:
        """Entries that the client has not seen, each returned exactly once, in order."""
        if self.state not in LISTENING_STATES:
            return []
        start, self.relayed = self.relayed + 1, len(self.log)
        return self.log.slice(start, self.relayed + 1)

    def replay_range(self, limit: int) -> Optional[Tuple[int, int]]:
        """The next round as (first, last) entry, at most ``limit`` tokens, or None.

        Only relayed entries are replayed: the caller rebuilds KV from the request's output.
        """
        if self.state not in REPLAY_STATES or len(self._rounds_to) >= self.max_rounds_in_flight:
            return None
        last = self._replay_to()
        if last <= self.launched or limit < 1:
            return None
        return self.launched + 1, min(last, self.launched + limit)

    # ------------------------------------------------------------------- events
    def kv_arrived(self, now: float) -> List[Message]:
        """The prompt KV is complete. Idempotent."""
        self._aborted_on_p_at = None
        if self.kv_here or self.done:
            return []
        self.kv_here = True
        if self.state is DecodeState.OFFERED:
            # Waiting for P would now cost more than it gains.
            return self.abort(now, AbortReason.NOT_OPENED)
        if self.state is DecodeState.RELAYING:
            self.state = DecodeState.REPLAYING
        return self._advance(now)

    def room_ahead(self, now: float, room: bool) -> List[Message]:
        """Whether D could replay the rest and run the request at once. The seal is not asked
        for until it can: nobody would generate while the request waits."""
        if self.done:
            return []
        self._room = room
        if not room and self.kv_here and self._sealed_unasked:
            return self.resume(now)
        return self._advance(now)

    def kv_failed(self, now: float) -> bool:
        """The prompt KV will not arrive. True if P goes on and D keeps relaying."""
        if self.state is DecodeState.RELAY_ONLY:
            return True
        if self.state not in LISTENING_STATES or self.kv_here:
            return False
        self.state, self._grown_at = DecodeState.RELAY_ONLY, now
        return True

    def round_started(self, last: int) -> None:
        """A replay round up to entry ``last`` is launched."""
        full = len(self._rounds_to) >= self.max_rounds_in_flight
        if full or not self.launched < last <= max(self._replay_to(), len(self.log) - 1):
            raise ValueError(f"replay round to {last}: launched to {self.launched}, log {len(self.log)}")
        self._rounds_to += (last,)

    def round_done(self, now: float) -> List[Message]:
        """The oldest round in flight has written its KV."""
        if not self._rounds_to:
            raise ValueError("no replay round in flight")
        self.replayed, *left = self._rounds_to
        self._rounds_to = tuple(left)
        self.rounds += 1
        # What P logged meanwhile may lie unread, and P would be asked to stop at a length long passed.
        self._room = False
        return self._advance(now)

    def round_failed(self) -> None:
        """The oldest round in flight wrote no KV, so those after it wrote none of use. They may be tried
        again, or the caller resumes P."""
        if not self._rounds_to:
            raise ValueError("no replay round in flight")
        self._rounds_to = ()

    def finished(self, now: float) -> List[Message]:
        """A relayed token has ended the request, by D's stop rules."""
        if self.done:
            return []
        self.state = DecodeState.FINISHED
        self._sent_at = now
        return [Abort(self.room, self.nonce, AbortReason.DONE)]

    def abort(self, now: float, reason: AbortReason) -> List[Message]:
        """D gives up the handoff, or the request."""
        if self.done:
            return []
        self.state, self.abort_reason = DecodeState.ABORTED, reason
        self._sent_at = now
        return [Abort(self.room, self.nonce, reason)]

    def resume(self, now: float) -> List[Message]:
        """D can't take over yet: P generates again, in a new term, until D has room for the rest.
        No message, and nothing changed, when P has not been stopped or has stopped for good, or a
        round is in flight."""
        before_kv = self.state in (DecodeState.RELAYING, DecodeState.RELAY_ONLY)
        if not before_kv and self.state not in (DecodeState.SEALING, DecodeState.DRAINING):
            return []
        if before_kv and not self._sealed_unasked:
            return []
        if self.alone or self.replay_in_flight:
            return []
        if self._sealed is not None and self._sealed.reason is not EndReason.SEAL:
            return []
        self.term += 1
        self.log.reopen()
        self._sealed = self.end_reason = self._asked_at = None
        self._asked_length = 0
        if not before_kv:
            self.state = DecodeState.REPLAYING
        self._resuming, self._room = True, False
        return self._resume_message(now)

    def tick(self, now: float) -> List[Message]:
        """Resends, and the way out when P is silent."""
        if self.state in (DecodeState.RELAYING, DecodeState.FINISHED) and not self.kv_here and not self._resuming:
            return self._ask_after_p(now)
        if self.done or self.state is DecodeState.OFFERED:
            return []
        if self._p_has_stopped(now):
            return self._take_over_alone(now)
        if self.state is DecodeState.DRAINING:
            return self._advance(now)
        if now - self._sent_at < self.timing.resend:
            return []
        if self.state is DecodeState.SEALING:
            self._asked_length = 0  # P does not get that far
            return self._ask_seal(now)
        if self._resuming:
            return self._resume_message(now)
        return []

    def receive(self, now: float, message: Message) -> List[Message]:
        """A message of P with this room and nonce."""
        if self.state is DecodeState.OWNER:
            if isinstance(message, Abort):
                return []
            return [Commit(self.room, self.nonce, self.boundary)]
        if isinstance(message, Abort):
            return self._on_abort(now, message)
        if self.done:
            return [Abort(self.room, self.nonce, self.abort_reason or AbortReason.DONE)]
        if self.alone:
            return []  # what P logged after its lease is not part of the answer
        if isinstance(message, Open):
            return self._on_open(now, message)
        if self.state is DecodeState.OFFERED:
            return self._reject("before_open")
        if not isinstance(message, (Append, Sealed)):
            return self._reject("unexpected")
        if message.term != self.term:
            return self._reject("term")
        self._heard_at, self._resuming = now, False
        if isinstance(message, Append):
            return self._on_append(now, message)
        return self._on_sealed(now, message)

    # ----------------------------------------------------------------- internals
    def _reject(self, reason: str) -> List[Message]:
        self.rejected[reason] += 1
        return []

    def _on_open(self, now: float, message: Open) -> List[Message]:
        if self.state is not DecodeState.OFFERED:
            return []
        if (
            message.fingerprint != self.fingerprint
            or message.prompt_len != self.prompt_len
            or message.cached_tokens > self.prompt_len
        ):
            return self.abort(now, AbortReason.CONFIG)
        self.state, self.term = DecodeState.RELAYING, message.term
        self.peer_endpoint, self.cached_tokens = message.endpoint, message.cached_tokens
        self.prefill_us = message.prefill_us
        self.max_log = min(self.max_log, message.budget)
        self._heard_at = self._echoed_at = now
        return []

    def _on_append(self, now: float, message: Append) -> List[Message]:
        # What lies beyond the limit is left out: with it a peer could fill this worker's memory. Where
        # D's limit is lower than P's, the request ends here before it is missed.
        ids = message.ids[: max(0, self.max_log + 1 - message.start)]
        if len(ids) < len(message.ids):
            self._reject("too_long")
        if any(token >= self.vocab_size for token in ids):
            return self._reject("vocabulary")
        before = len(self.log)
        try:
            self.log.extend(message.start, ids)
        except LogGap:
            self._reject("gap")
        except LogConflict:
            self._reject("conflict")
            return self.abort(now, AbortReason.CONFLICT)
        if len(self.log) > before:
            self._grown_at = now
            self.pace.appended(now, len(self.log) - before)
        return [*self._ack(now, message.stamp), *self._advance(now)]

    def _on_sealed(self, now: float, message: Sealed) -> List[Message]:
        if self.log.closed_at is not None:
            # P is back from what it has stopped for, and the KV is not here after all.
            return self.resume(now) if self._sealed_unasked and not self.kv_here else []
        if message.length < len(self.log):
            return self.abort(now, AbortReason.CONFLICT)
        self._sealed = message
        if message.reason is EndReason.SEAL and self._asked_length:
            self.pace.sealed(message.length - self._asked_length)
        self.log.close(message.length)
        return self._advance(now)

    def _on_abort(self, now: float, message: Abort) -> List[Message]:
        """P has stopped and frees: D lives on what it has, once the KV is here. Never answered by an Abort."""
        ends_transfer = message.reason in (AbortReason.CLIENT, AbortReason.TRANSFER)
        if ends_transfer and not self.kv_here and self._aborted_on_p_at is None:
            self._aborted_on_p_at = now
        if self.done or self.alone:
            return []
        self.end_reason, self._resuming = None, False
        if self.state is DecodeState.OFFERED or not len(self.log):
            self.state, self.abort_reason = DecodeState.ABORTED, message.reason
            return []
        return self._take_over_alone(now)

    def _ack(self, now: float, stamp: int) -> List[Message]:
        # Past the seal deadline P must run out of its lease, so that D may take over alone.
        if self._asked_at is not None and now - self._asked_at >= self.timing.seal:
            if self.state is DecodeState.SEALING:
                return []
        self._echoed_at = now
        return [Ack(self.room, self.nonce, len(self.log), stamp)]

    def _ask_seal(self, now: float) -> List[Message]:
        self._sent_at = now
        return [SealRequest(self.room, self.nonce, self.term, self._asked_length)]

    def _ask_after_p(self, now: float) -> List[Message]:
        """P may have given the request up, and its transfer with it, and its Abort been lost. An Ack without a
        stamp renews no lease, and a P that has ended says so."""
        if now - max(self._heard_at, self._sent_at) < self.timing.silence:
            return []
        self._sent_at = now
        return [Ack(self.room, self.nonce, len(self.log), 0)]

    def _resume_message(self, now: float) -> List[Message]:
        self._sent_at = now
        return [Resume(self.room, self.nonce, self.term, len(self.log) + 1)]

    def _replay_to(self) -> int:
        """The entry up to which a round begun now may go, 0 for none yet."""
        here = min(self.relayed, len(self.log))
        if self.log.complete:
            return here - 1
        if self.state is DecodeState.SEALING and self._asked_length:
            # P stops one entry after these: while it makes that, D replays them all.
            before = self._asked_length - 1
            # Without a lag to fill there is nothing gained by one round instead of several.
            return min(here, before) if here >= before or not self.seal_lag else 0
        # Close to the seal one round does it all: a round begun now would only delay it.
        return 0 if self._unlaunched <= self.seal_lag else here - 1

    @property
    def _unlaunched(self) -> int:
        """Entries that a takeover here would still have to launch rounds for."""
        return max(0, len(self.log) - 1 - self.launched)

    @property
    def _sealed_unasked(self) -> bool:
        """P has stopped of itself and would go on: D takes over only where it can run the request at once."""
        return (
            not self.alone
            and self._sealed is not None
            and self._sealed.reason is EndReason.SEAL
            and self._asked_at is None
        )

    def _p_has_stopped(self, now: float) -> bool:
        """P can't generate any more, and what is missing will not come.

        Before the seal: its lease is over, last renewed at ``_echoed_at`` at the latest.
        After it: P has stopped by its own word.
        """
        if self.state in (DecodeState.REPLAYING, DecodeState.SEALING):
            return now - self._echoed_at >= self.timing.lease + self.timing.margin
        if self.state is DecodeState.DRAINING and not self.log.complete:
            return now - self._heard_at >= self.timing.seal
        return False

    def _take_over_alone(self, now: float) -> List[Message]:
        self.alone, self._resuming = True, False
        self.log.close_here()
        if not len(self.log):
            self.state, self.abort_reason = DecodeState.ABORTED, AbortReason.TIMEOUT
            return [Abort(self.room, self.nonce, AbortReason.TIMEOUT)]
        return self._advance(now)

    def _advance(self, now: float) -> List[Message]:
        if self.state in (DecodeState.REPLAYING, DecodeState.SEALING) or (
            self.state is DecodeState.RELAYING and self.kv_here
        ):
            if self.log.closed_at is not None:
                self.state = DecodeState.DRAINING
            elif (
                self.state is DecodeState.REPLAYING
                and self._room
                and not self._resuming
                and (self.pace.asks_in_flight or not self.replay_in_flight)
            ):
                ahead = self.pace.seal_ahead(self._unlaunched)
                if ahead is None and self.rounds >= self.max_rounds_before_seal:
                    ahead = 0
                if ahead is not None:
                    self.state, self._asked_at = DecodeState.SEALING, now
                    self._asked_length = len(self.log) + ahead if ahead else 0
                    return self._ask_seal(now)
        if self.state is DecodeState.DRAINING and self.log.complete:
            if self._sealed is not None and not self.alone:
                if self._sealed.digest != self.log.digest():
                    return self.abort(now, AbortReason.CONFLICT)
                self.end_reason = self._sealed.reason
            # A log of one entry needs no replay, but the client has to see it all the same.
            replayed, relayed = self.replayed + 1 >= len(self.log), self.relayed == len(self.log)
            if replayed and relayed and not self.replay_in_flight and (self._room or not self._sealed_unasked):
                self.state = DecodeState.OWNER
                self._sent_at = now
                return [Commit(self.room, self.nonce, len(self.log))]
        return []
