"""A decode worker: relays, replays, takes over, decodes.

The decisions are those of scheduler_handoff_decode_mixin.py. Decode steps of a steady batch are
not events: the loop is looked into at the step's end at which something has come.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil
from typing import Deque, Dict, List, Optional, Tuple

from . import invariants
from .core import (
    SEAL_LAG,
    AbortReason,
    DecodeMachine,
    DecodeState,
    LateSeals,
    LinearCost,
    ReplayWorth,
    SealAhead,
    Session,
    messages,
)
from .link import FAILED, SUCCESS
from .prefill_worker import FINGERPRINT
from .worker import Worker
from .workload import HANDOFF, VOCABULARY, Request

MAX_REPLAY_TOKENS = 2048
DECODE_SHARE = 0.02  # the product's default


class DecodeWorker(Worker):
    role, accepts = "d", messages.FROM_PREFILL

    def _begin(self) -> None:
        super()._begin()
        self._prealloc: Deque[Request] = deque()
        self._promised = 0  # rows that requests here will still take
        self._transfers: Dict[int, Request] = {}
        self._draining: Dict[int, Request] = {}  # ended, but KV is still written
        self._aborts: List[Request] = []
        self._stalled: Dict[int, float] = {}
        self._round: Optional[List[Session]] = None
        self._round_began = (0, 0.0)  # tokens, when
        self._replay_cost, self._late_seals = LinearCost(), LateSeals()
        self._worth = ReplayWorth(self._replay_cost, DECODE_SHARE)
        self._replayed_last = False
        self._full_until = 0.0
        self._pass_at: Optional[float] = None
        # the running batch: (step at which it ends, id, request, its first input)
        self._running: List[Tuple[int, int, Request, int]] = []
        self._batch = self._context = 0
        self._fresh: List[Request] = []  # no own token yet
        self._steps, self._anchor, self._step = 0, 0.0, 0.0

    # -------------------------------------------------------------- a request's way in
    def submit(self, request: Request) -> None:
        self._prealloc.append(request)
        self.wake()

    def abort(self, request: Request) -> None:
        """The client has gone away."""
        if request.outcome is None and not request.d_done:
            self._aborts.append(request)
            self.wake()

    def fill(self, seconds: float) -> None:
        """A fault: the pool looks full to replay rounds."""
        self._full_until = self.clock.now + seconds
        self.clock.after(seconds, self.wake)

    def restart(self) -> None:
        """Kill -9 and a new process: every client of this worker gets an error."""
        mine = [*self._prealloc, *self._transfers.values(), *self._draining.values()]
        mine += [entry[2] for entry in self._running if entry[2].outcome is None]
        self.channel.close()
        for request in mine:
            request.d_session = None
            if request.outcome is None:
                self.world.answer(request, "error")
            self.world.fail_transfer(request)
            self._end(request)
        self._begin()

    def _admit(self) -> None:
        while self._prealloc:
            request = self._prealloc[0]
            need = request.prompt + request.length
            if self.slots.free - self._promised < need:
                return
            self._prealloc.popleft()
            self.slots.take(request, request.prompt)
            self._promised += request.length
            request.d_rows = request.prompt
            self._transfers[request.id] = request
            if request.mode == HANDOFF:
                self._offer(request)
            self.world.send_metadata(request)

    def _offer(self, request: Request) -> None:
        request.nonce = self.world.nonce()
        machine = DecodeMachine(
            room=request.room, nonce=request.nonce, prompt_len=request.prompt,
            fingerprint=FINGERPRINT, vocab_size=VOCABULARY, timing=self.world.timing,
            pace=SealAhead(SEAL_LAG, self._replay_cost, self._late_seals),
        )  # fmt: skip
        request.d_session = Session(request, machine, None)
        self.table.add(request.d_session)
        request.offer = self.channel.endpoint
        spare = 2 * self.slots.free >= self.slots.size and 2 * self._batch <= self.world.max_running
        request.worth = self._worth.tokens(self.clock.now, self._batch, spare)

    # ------------------------------------------------------------------ scheduler loop
    def wake(self) -> None:
        if self._round is not None:
            return  # the loop waits for its result
        now = at = self.clock.now
        if self._batch and now > self._anchor:
            # At the end of the step that runs; an instant before it is that end, by rounding.
            at = max(now, self._anchor + ceil((now - self._anchor) / self._step - 1e-6) * self._step)
        if self._pass_at is None or at < self._pass_at:
            self._pass_at = at
            self.clock.at(at, self._pass, self.epoch, at)

    def _pass(self, epoch: int, at: float) -> None:
        if epoch != self.epoch or at != self._pass_at:
            return
        self._pass_at = None
        if self._round is not None:
            return  # asked for in the turn that launched the round
        self._settle()
        self._hear()
        self._take_aborts()
        self._relay()
        self._admit()
        for request in tuple(self._transfers.values()):
            self._look_at_transfer(request)
        for request in tuple(self._draining.values()):
            if not request.transfer.writing:
                del self._draining[request.id]
                self._free(request)
        if not self._launch_replay():
            self._decode()
        self._sleep()

    # ------------------------------------------------------------------ running batch
    def _settle(self) -> None:
        """Account for the decode steps that have ended by now."""
        since = self.clock.now - self._anchor
        # A first request may join in the turn that launches a round: no step has begun then.
        if not self._batch or since <= 0:
            return
        done = int(since / self._step + 1e-3)
        if done <= 0:
            return
        for request in self._fresh:
            first = self._anchor + (request.joined + 1 - self._steps) * self._step
            request.gap = first - request.last_at
            request.largest = max(request.largest, request.gap)
        self._fresh.clear()
        self._worth.step_launched(self._steps, self._anchor, True)
        self._worth.step_launched(self._steps + 1, self._anchor + self._step, False)
        self._steps += done
        self._anchor += done * self._step
        while self._running and self._running[0][0] <= self._steps:
            _, _, request, basis = heapq.heappop(self._running)
            if request.outcome is None:
                self._leave_batch(request)
                invariants.own_tokens(request, basis, request.length - request.seen, self.clock.now)
                self.world.answer(request, "finished")
                self._free(request)
                self._again = True

    def _join_batch(self, request: Request, basis: int) -> None:
        """PREBUILT: ``basis``, the last token the client has seen, is the first input."""
        left = request.length - request.seen
        self.slots.take(request, left)
        self._promised -= left
        request.d_rows += left
        request.joined = self._steps
        self._batch += 1
        self._context += request.prompt + request.length
        self._fresh.append(request)
        heapq.heappush(self._running, (self._steps + left, request.id, request, basis))

    def _leave_batch(self, request: Request) -> None:
        self._batch -= 1
        self._context -= request.prompt + request.length
        if request in self._fresh:
            self._fresh.remove(request)

    def _decode(self) -> None:
        """Go on with decode steps until something comes."""
        if not self._batch:
            return
        self._anchor = self.clock.now
        self._step = self.world.costs.decode(self._batch, self._context)
        end = self._anchor + (self._running[0][0] - self._steps) * self._step
        self._pass_at = end
        self.clock.at(end, self._pass, self.epoch, end)

    # -------------------------------------------------------------------------- relay
    def _relay(self) -> None:
        for session in self.table:
            machine, request = session.machine, session.request
            start = machine.relayed + 1
            if len(machine.log) < start:
                continue
            tokens = machine.take_relay()
            if not tokens or request.outcome is not None:
                continue
            session.relayed_at = self.table.now
            if request.last_at is not None:
                request.largest = max(request.largest, self.clock.now - request.last_at)
            if request.p_session is not None:
                invariants.prefix(request)
            invariants.seen(request, start, tokens, self.clock.now)
            if request.seen == request.length:
                self.world.answer(request, "finished")
                self.world.count["finished on a relayed token"] += 1
                self.table.send(session, machine.finished(self.table.now))

    # ------------------------------------------------------------------------- replay
    def _launch_replay(self) -> bool:
        if self._replayed_last and self._batch:
            self._replayed_last = False
            return False
        room = min(MAX_REPLAY_TOKENS, self._kv_room())
        sessions, parts = [], []
        for session in self.table:
            # The first look is for speed: nothing is replayed before the KV is here.
            if not session.machine.kv_here or session.machine.replay_range(MAX_REPLAY_TOKENS) is None:
                continue
            span = session.machine.replay_range(room)
            if span is None:
                self._wait_for_slots(session)
                continue
            first, last = span
            request, tokens = session.request, last - first + 1
            if request.d_rows != request.prompt + first - 1:
                raise invariants.Violation(f"KV: replay from {first} of {request}, rows {request.d_rows}")
            room -= tokens
            session.machine.round_started(last)
            session.in_flight += 1
            session.stalled_since = None
            self.slots.take(request, tokens)
            self._promised -= tokens
            request.d_rows += tokens
            parts.append((tokens, request.d_rows))
            sessions.append(session)
        self._replayed_last = bool(sessions)
        if not sessions:
            return False
        self.world.count["replay rounds"] += 1
        self._round, self._round_began = sessions, (sum(tokens for tokens, _ in parts), self.clock.now)
        self.clock.after(self.world.costs.replay(parts), self._round_done, self.epoch)
        return True

    def _wait_for_slots(self, session: Session) -> None:
        now = self.table.now
        if session.stalled_since is None:
            session.stalled_since = now
        if now - session.stalled_since < self.world.timing.seal:
            return
        resumed = session.machine.resume(now)
        if resumed:
            session.stalled_since = None
            self.world.count["resumed"] += 1
            self.table.send(session, resumed)
        elif self._waits_in_vain(session):
            self.world.count["no slot"] += 1
            self.table.send(session, session.machine.abort(now, AbortReason.NO_SLOT))
            for other in self.table:
                other.stalled_since = None
        else:
            return
        self._again = True

    def _waits_in_vain(self, session: Session) -> bool:
        if self._batch:
            return False
        if session.machine.boundary is not None and all(
            r.d_session is not None and r.d_session.stalled_since is not None
            for r in self._transfers.values()
        ):
            return True
        moved_at = max(session.stalled_since, session.relayed_at)
        return self.table.now - moved_at >= self.world.timing.silence

    def _round_done(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        sessions, self._round = self._round, None
        tokens, began = self._round_began
        self._replay_cost.took(tokens, self.clock.now - began)
        self._worth.round_took(self.clock.now, self.clock.now - began, self._batch)
        self._anchor = self.clock.now  # running requests stood still meanwhile
        for session in sessions:
            session.in_flight -= 1
            self.table.send(session, session.machine.round_done(self.table.now))
        self._pass_at = self.clock.now
        self._pass(epoch, self._pass_at)

    # ------------------------------------------------------------ a request's way out
    def _look_at_transfer(self, request: Request) -> None:
        state, session = request.transfer.d_state, request.d_session
        if state is FAILED:
            if session is not None and self._outlives_failure(request, session):
                return
            if request.outcome is None:
                self.world.answer(request, "error")
            self._leave_transfers(request)
        elif state is SUCCESS:
            if session is None:
                if self._has_place():
                    self._commit_ordinary(request, "pd")
            else:
                self._look_at_handoff(request, session)

    def _look_at_handoff(self, request: Request, session: Session) -> None:
        machine, now = session.machine, self.table.now
        if machine.state is DecodeState.OFFERED and not session.kv_seen:
            session.kv_seen = self._again = True
            return
        before, free = machine.state, self._room_ahead(machine)
        if not free and before is DecodeState.REPLAYING:
            self.world.count["seal put off, no place"] += 1
        if not machine.kv_here and not machine.done and len(machine.log):
            # The metadata's t1 is the log's.
            if machine.log.slice(1, 2) != [request.token(1)]:
                raise invariants.Violation(f"ONCE: t1 of {request}'s log is another's")
        self.table.send(
            session,
            [*machine.kv_arrived(now), *machine.room_ahead(now, free)],
        )
        self._again |= machine.state is not before
        if session.in_flight:
            return
        if machine.hopeless(now):
            self.world.nics[request.p].cancel(request.transfer)
            self._again = True
        elif not machine.done:
            return
        elif machine.state is DecodeState.OWNER:
            if self._has_place():
                self._commit(request, session)
        elif machine.state is DecodeState.ABORTED:
            if not self._has_place():
                return
            self._detach(request, session)
            self._commit_ordinary(request, machine.abort_reason.name.lower())
        else:
            self._detach(request, session)
            self._leave_transfers(request)

    def _outlives_failure(self, request: Request, session: Session) -> bool:
        if session.in_flight:
            return True
        machine, now = session.machine, self.table.now
        if not machine.done and machine.kv_failed(now) and not machine.hopeless(now):
            return True
        self.table.send(session, machine.abort(now, AbortReason.TRANSFER))
        if request.outcome is None:
            self.world.count[f"failed: {machine.abort_reason.name.lower()}"] += 1
        self._detach(request, session)
        return False

    def _kv_room(self) -> int:
        free = self.slots.free if self.clock.now >= self._full_until else 0
        return free - self._batch

    def _has_place(self) -> bool:
        """Whether one more may run. t1 of an ordinary request waits for that too."""
        return self._batch < self.world.max_running or not self.world.waits_for_place

    def _room_ahead(self, machine: DecodeMachine) -> bool:
        if self._kv_room() < machine.lag + machine.seal_lag:
            return False
        ending = sum(
            s.machine.state in (DecodeState.SEALING, DecodeState.DRAINING) for s in self.table
        )
        return self._batch + ending < self.world.max_running

    def _commit(self, request: Request, session: Session) -> None:
        machine = session.machine
        # P may have ended sooner than it was asked to, with its last entry replayed already.
        over = max(0, request.d_rows - (request.prompt + machine.boundary - 1))
        self.slots.give_back(request, over)
        request.d_rows, self._promised = request.d_rows - over, self._promised + over
        self.world.count["rows replayed in vain"] += over
        invariants.taken_over(request, machine.boundary, self.world.p_may_generate(request))
        count = self.world.count
        count["committed"] += 1
        count["committed alone"] += machine.alone
        request.boundary = machine.boundary
        basis = machine.log.slice(machine.boundary, machine.boundary + 1)[0]
        self._detach(request, session)
        del self._transfers[request.id]
        self._join_batch(request, basis)

    def _commit_ordinary(self, request: Request, reason: str) -> None:
        """t1 comes with the KV's metadata."""
        self.world.count[f"ordinary: {reason}"] += 1
        del self._transfers[request.id]
        invariants.seen(request, 1, (request.token(1),), self.clock.now)
        request.boundary = 1
        if request.length == 1:
            self.world.answer(request, "finished")
            self._free(request)
        else:
            self._join_batch(request, request.token(1))

    def _take_aborts(self) -> None:
        aborts, self._aborts = self._aborts, []
        for request in aborts:
            if request.outcome is not None or request.d_done:
                continue
            session = request.d_session
            if session is not None:
                self.table.send(session, session.machine.abort(self.table.now, AbortReason.CLIENT))
            self.world.answer(request, "aborted")
            if request in self._prealloc:
                self._prealloc.remove(request)
                self.world.fail_transfer(request)
                self._end(request)
            elif request.id in self._transfers:
                self.world.nics[request.p].cancel(request.transfer)
            else:
                self._leave_batch(request)
                self._running = [e for e in self._running if e[2] is not request]
                heapq.heapify(self._running)
                self._free(request)

    def _detach(self, request: Request, session: Session) -> None:
        request.d_session = None
        self.table.retire(session)
        self._again = True

    def _leave_transfers(self, request: Request) -> None:
        del self._transfers[request.id]
        if request.transfer.writing:
            self._draining[request.id] = request
        else:
            self._free(request)

    def _free(self, request: Request) -> None:
        self._promised -= request.length - (request.d_rows - request.prompt)
        self.slots.release(request)
        self._end(request)

    def _end(self, request: Request) -> None:
        if request.d_done:
            raise invariants.Violation(f"FREED-ONCE: D ends {request} twice")
        request.d_done = True
        self.world.ended(request)

    def check_idle(self) -> None:
        """Nothing is left on this worker."""
        self.slots.check_empty()
        if self._promised:
            raise invariants.Violation(f"FREED-ONCE: {self.host} has {self._promised} rows promised")
        if len(self.table) or self._prealloc or self._transfers or self._draining or self._batch:
            raise invariants.Violation(f"TERMINATES: {self.host} is not idle")
