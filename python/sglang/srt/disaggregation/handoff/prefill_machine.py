"""P's side of one handoff.

    BRIDGING -> PAUSED: lease over, no KV slot, engine paused
    PAUSED -> BRIDGING: none of these any more
    BRIDGING, PAUSED -> SEALED: D asked, generation ended, or P makes way for prompts
    SEALED -> BRIDGING, PAUSED: Resume with a higher term, unless generation had ended
    BRIDGING, PAUSED, SEALED -> COMMITTED: D is the generator
    BRIDGING, PAUSED, SEALED -> FINISHED: the request ended on a relayed token
    BRIDGING, PAUSED, SEALED, FINISHED -> ABORTED: client, deadline or peer

P may generate in BRIDGING alone. Every method takes the time as an argument and
returns the messages to send; an event that doesn't fit the state changes nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import List, Optional

from .log import HandoffLog
from .messages import (
    MAX_IDS_PER_APPEND,
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
from .timing import Timing


class PrefillState(Enum):
    BRIDGING = "bridging"
    PAUSED = "paused"
    SEALED = "sealed"
    COMMITTED = "committed"
    FINISHED = "finished"
    ABORTED = "aborted"


OPEN_STATES = frozenset({PrefillState.BRIDGING, PrefillState.PAUSED})
TERMINAL_STATES = frozenset(
    {PrefillState.COMMITTED, PrefillState.FINISHED, PrefillState.ABORTED}
)
# Why a PAUSED machine waits. It bridges again when none is left.
HOLD_LEASE, HOLD_KV, HOLD_ENGINE = "lease", "kv", "engine"


class PrefillMachine:
    """The log's producer. One per accepted offer."""

    def __init__(
        self,
        *,
        room: int,
        nonce: bytes,
        endpoint: str,
        prompt_len: int,
        cached_tokens: int,
        fingerprint: bytes,
        budget: int,
        prefill_us: int,
        timing: Timing,
    ) -> None:
        """Args: ``prompt_len``, ``cached_tokens`` and ``budget`` (log length at most) in tokens,
        ``prefill_us`` in microseconds."""
        if budget < 1:
            raise ValueError(f"bridge budget must be at least 1 token, got {budget}")
        self.room, self.nonce, self.budget, self.timing = room, nonce, budget, timing
        self.log = HandoffLog()
        self.term = 1
        self.state = PrefillState.BRIDGING
        self.abort_reason: Optional[AbortReason] = None
        self.end_reason: Optional[EndReason] = None
        self.boundary: Optional[int] = None
        self.holds: set[str] = set()
        self._open = (
            endpoint,
            prompt_len,
            cached_tokens,
            fingerprint,
            budget,
            prefill_us,
        )
        self._acked = 0  # entries that D confirmed
        self._heard_stamp = 0  # µs, newest stamp of ours that D echoed
        self._opened = False
        self._seal_at: Optional[int] = None
        self._sent_at = 0.0  # when what D has not confirmed was sent, or D last confirmed more
        self._kv_lost = False
        # Since when the log has stood still; None while it is open and the KV may come.
        self._still_since: Optional[float] = None

    # ------------------------------------------------------------------ queries
    def may_generate(self, now: float) -> bool:
        """P may launch a decode step. The lease is looked at here too: the step after a
        long prefill chunk comes before the next ``tick``."""
        return self.state is PrefillState.BRIDGING and now < self.lease_end

    @property
    def done(self) -> bool:
        """Nothing is generated and nothing awaited any more: P may free the request."""
        return self.state in TERMINAL_STATES

    @property
    def lease_end(self) -> float:
        return self._heard_stamp / 1e6 + self.timing.lease

    def unanswered(self, now: float) -> bool:
        """D has not confirmed anything of this session, for a lease."""
        return not self._opened and not self.done and now >= self.lease_end

    # ------------------------------------------------------------------- events
    def start(
        self, now: float, first_token: int, end: Optional[EndReason] = None
    ) -> List[Message]:
        """The prompt forward has sampled t1; ``end`` says that it is also the last."""
        self._heard_stamp = _stamp(now)
        return [self._opening(), *self._extend(now, first_token, end)]

    def sampled(
        self, now: float, token: int, end: Optional[EndReason] = None
    ) -> List[Message]:
        """A decode step has sampled the next token. Dropped unless P may generate: a step
        launched before the seal may still return after it."""
        if self.state not in OPEN_STATES:
            return []
        return self._extend(now, token, end)

    def stop_after(self, now: float, in_flight: int) -> List[Message]:
        """P won't generate for a while, in which D will have the KV: close the log unasked once the ``in_flight``
        steps that are launched have ended. Once only: a D that resumes P has no room, or P was wrong about the KV."""
        if self.state is not PrefillState.BRIDGING or self.term > 1:
            return []
        self._seal_at = len(self.log) + in_flight
        return self._maybe_seal(now)

    def kv_failed(self, now: float) -> None:
        """The transfer has failed: D relays what P logs, and never takes over. Idempotent."""
        if not self._kv_lost:
            self._kv_lost, self._still_since = True, now

    def hold(self, why: str) -> None:
        """Stop generating until ``unhold(why)``."""
        self.holds.add(why)
        if self.state is PrefillState.BRIDGING:
            self.state = PrefillState.PAUSED

    def unhold(self, why: str) -> None:
        self.holds.discard(why)
        if self.state is PrefillState.PAUSED and not self.holds:
            self.state = PrefillState.BRIDGING

    def abort(self, now: float, reason: AbortReason) -> List[Message]:
        """P gives up. A request whose end is known may still be aborted here while its transfer goes on, which
        ends with it."""
        cuts = reason is AbortReason.CLIENT and self.abort_reason is not reason
        if self.state is PrefillState.COMMITTED or (self.done and not cuts):
            return []
        self.state, self.abort_reason = PrefillState.ABORTED, reason
        self._sent_at = now
        return [Abort(self.room, self.nonce, reason)]

    def tick(self, now: float) -> List[Message]:
        """Lease, resends, deadlines."""
        if self.done:
            return []
        if self._kv_lost and now - self._still_since >= self.timing.silence:
            return self.abort(now, AbortReason.TRANSFER)  # D waits for KV or tokens, and answers all the while
        if self.state is PrefillState.SEALED:
            if now - max(self._still_since, self._heard_stamp / 1e6) >= self.timing.commit:
                return self.abort(now, AbortReason.TIMEOUT)
        elif now >= self.lease_end:
            self.hold(HOLD_LEASE)
            if now - self.lease_end >= self.timing.silence:
                return self.abort(now, AbortReason.TIMEOUT)
        if self.state is PrefillState.PAUSED and self._kv_lost and HOLD_ENGINE in self.holds:
            return self.abort(now, AbortReason.TRANSFER)  # nobody would generate the rest
        if now - self._sent_at < self.timing.resend:
            return []
        return self._resend(now)

    def receive(self, now: float, message: Message) -> List[Message]:
        """A message of D with this room and nonce."""
        if self.done:
            # An Abort is never answered by one. D asks since ours was lost, or since it waits for the KV.
            if isinstance(message, Abort) or self.state is PrefillState.COMMITTED:
                return []
            if self._kv_lost:
                return [Abort(self.room, self.nonce, AbortReason.TRANSFER)]
            if self.state is PrefillState.ABORTED:
                return [Abort(self.room, self.nonce, self.abort_reason)]
            return []
        if isinstance(message, Ack):
            return self._on_ack(now, message)
        if isinstance(message, SealRequest):
            if message.term != self.term:
                return []  # of before a Resume
            if self.state is PrefillState.SEALED:
                return self._sealed_message(now)
            self._seal_at = max(message.at, len(self.log))
            return self._maybe_seal(now)
        if isinstance(message, Commit):
            return self._on_commit(message)
        if isinstance(message, Resume):
            return self._on_resume(now, message)
        if isinstance(message, Abort):
            done = message.reason is AbortReason.DONE
            self.state = PrefillState.FINISHED if done else PrefillState.ABORTED
            self.abort_reason = message.reason
        return []

    # ----------------------------------------------------------------- internals
    def _opening(self) -> Open:
        return Open(self.room, self.nonce, self.term, *self._open)

    def _extend(
        self, now: float, token: int, end: Optional[EndReason]
    ) -> List[Message]:
        start = len(self.log) + 1
        self.log.extend(start, (token,))
        if self._kv_lost:
            self._still_since = now
        if end is None and start >= self.budget:
            end = EndReason.BUDGET
        if self._acked == start - 1:
            # Else D may have missed an entry, and takes none of those that follow: new ones must not put
            # off that it is sent again.
            self._sent_at = now
        append = Append(
            self.room, self.nonce, self.term, start, [token], _stamp(now)
        )
        if end is not None:
            return [append, *self._close(now, end)]
        return [append, *self._maybe_seal(now)]

    def _maybe_seal(self, now: float) -> List[Message]:
        if self._seal_at is None or len(self.log) < self._seal_at:
            return []
        return self._close(now, EndReason.SEAL)

    def _close(self, now: float, reason: EndReason) -> List[Message]:
        self.log.close(len(self.log))
        self.state, self.end_reason = PrefillState.SEALED, reason
        self._still_since = now
        return self._sealed_message(now)

    def _sealed_message(self, now: float) -> List[Message]:
        self._sent_at = now
        return [
            Sealed(
                self.room,
                self.nonce,
                self.term,
                len(self.log),
                self.log.digest(),
                self.end_reason,
            )
        ]

    def _resend(self, now: float) -> List[Message]:
        out: List[Message] = [] if self._opened else [self._opening()]
        start = self._acked + 1
        ids = self.log.slice(start, start + MAX_IDS_PER_APPEND)
        out.append(Append(self.room, self.nonce, self.term, start, ids, _stamp(now)))
        self._sent_at = now
        if self.state is PrefillState.SEALED:
            out += self._sealed_message(now)
        return out

    def _on_ack(self, now: float, ack: Ack) -> List[Message]:
        if ack.received > len(self.log) or ack.stamp > _stamp(now):
            return []  # not an echo of anything sent
        self._opened = True
        if ack.received > self._acked:
            self._acked, self._sent_at = ack.received, now
        self._heard_stamp = max(self._heard_stamp, ack.stamp)
        if now < self.lease_end:
            self.unhold(HOLD_LEASE)
        return []

    def _on_commit(self, commit: Commit) -> List[Message]:
        # D alone decides where it takes over: at the seal, or, when P was silent, at what it had.
        if commit.boundary > len(self.log):
            return []
        self.state, self.boundary = PrefillState.COMMITTED, commit.boundary
        return []

    def _on_resume(self, now: float, resume: Resume) -> List[Message]:
        if resume.term <= self.term or resume.start > len(self.log) + 1:
            return []
        self.term, self._seal_at = resume.term, None
        # D may lack entries that the seal covered: they are sent again in the new term.
        self._opened, self._acked = True, max(self._acked, resume.start - 1)
        # No new lease: D can't know when this was read. Its Ack of what is sent now gives one.
        if self.end_reason is EndReason.SEAL:
            self.end_reason = None
            self.log.reopen()
            self._still_since = now if self._kv_lost else None
            self.state = PrefillState.PAUSED if self.holds else PrefillState.BRIDGING
        return self._resend(now)


def _stamp(now: float) -> int:
    return int(now * 1e6)
