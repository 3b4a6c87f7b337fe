"""A prefill worker: prompts in chunks, bridge steps between them, slots until D has taken over.

The decisions are those of scheduler_handoff_prefill_mixin.py; prompts run one at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Optional, Tuple

from . import invariants
from .core import HOLD_KV, OPEN_STATES, EndReason, PrefillMachine, PrefillState, Session, admission, messages
from .link import SUCCESS
from .worker import Worker
from .workload import UNIFIED, Request

FINGERPRINT = b"same-cfg"


class PrefillWorker(Worker):
    role, accepts = "p", messages.FROM_DECODE

    def _begin(self) -> None:
        super()._begin()
        self._bootstrap: Dict[int, Request] = {}
        self._waiting: Deque[Request] = deque()
        self._chunked: Optional[Request] = None
        self._inflight: Dict[int, Request] = {}
        # (request, tokens) is a chunk; (None, sessions) a bridge step
        self._launched: Deque[Tuple[Optional[Request], object, float]] = deque()
        self._last_was_chunk = False
        self._asleep = True
        self.bridges = admission.BridgeAdmission(self.world.limits)

    # -------------------------------------------------------------- a request's way in
    def submit(self, request: Request) -> None:
        """The router's copy of the request. It waits for D's transfer metadata."""
        self._bootstrap[request.id] = request
        request.p_came_at = self.clock.now
        if request.ready or request.mode == UNIFIED:
            self._bootstrapped(request)

    def metadata(self, request: Request) -> None:
        """D's slots, and its offer if it made one."""
        request.ready = True
        if request.id in self._bootstrap:
            self._bootstrapped(request)

    def _bootstrapped(self, request: Request) -> None:
        del self._bootstrap[request.id]
        # in a forward the loop sees it when that has ended
        self.bridges.bootstrap_took(self.clock.now - request.p_came_at, at_most=bool(self._launched))
        self._waiting.append(request)
        self.wake()

    def drop(self, request: Request) -> None:
        """The router has closed P's HTTP request. After t1 P no longer hears of that."""
        if request.p_done or request.p_held:
            return
        request.cancelled = True
        if self._bootstrap.pop(request.id, None):
            self._end(request)
        else:
            self.wake()

    def restart(self) -> None:
        """Kill -9 and a new process."""
        mine = [*self._bootstrap.values(), *self._waiting, *self._inflight.values()]
        mine += [r for r, _, _ in self._launched if r is not None]
        mine += [self._chunked] if self._chunked is not None else []
        self.channel.close()
        for request in {r.id: r for r in mine}.values():
            request.p_session = None
            if request.transfer is not None:
                self.world.nics[self.number].fail(request.transfer, self.world.rates.detect)
            if request.mode == UNIFIED:
                self.world.answer(request, "error")
            self._end(request)
        self._begin()

    # ------------------------------------------------------------------ scheduler loop
    def wake(self) -> None:
        # While a forward runs the loop waits for its result.
        if not self._launched and self._asleep:
            self._asleep = False
            self.clock.at(self.clock.now, self._pass, self.epoch)

    def _pass(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        self._asleep = True
        self._hear()
        self._release()
        while len(self._launched) < self.world.pipeline:
            batch = self._next_batch()
            if batch is None:
                break
            self._launched.append(batch)
            if len(self._launched) == 1:
                self.clock.after(batch[2], self._result, self.epoch)
        self._sleep()

    def _result(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        request, what, seconds = self._launched.popleft()
        if request is None:
            self.bridges.step_took(seconds)
            self._bridge_result(what)
        else:
            self.bridges.prompts_took(what, seconds)
            self._chunk_result(request, what)
        if self._launched:
            self.clock.after(self._launched[0][2], self._result, self.epoch)
        self._pass(epoch)

    def _next_batch(self):
        if self._last_was_chunk:
            # At most one bridge step between two prefill batches.
            self._last_was_chunk = False
            batch = self._next_bridge(between_prompts=True)
            if batch is not None:
                return batch
        return self._next_chunk() or self._next_bridge()

    def _next_chunk(self):
        request = self._chunked
        while request is None:
            if not self._waiting:
                return None
            request = self._waiting[0]
            if request.cancelled:
                self._end(self._waiting.popleft())
            elif not self.slots.take(request, request.prompt):
                return None
            else:
                self._waiting.popleft()
                break
            request = None
        tokens = min(self.world.costs.chunk, request.prompt - request.computed)
        time = self.world.costs.prefill(request.computed, tokens)
        request.computed += tokens
        self._chunked = request if request.computed < request.prompt else None
        self._last_was_chunk = True
        self._make_way_for(tokens)
        return request, tokens, time

    def _make_way_for(self, tokens: int) -> None:
        if not self.bridges.limits.weighs:
            return
        now = self.table.now = self.local()
        for session in self.table:
            sent, machine = session.request.transfer.p_state is SUCCESS, session.machine
            if self.bridges.makes_way(now, machine.nonce, sent, tokens):
                # with a step in flight the log is closed, and that said, when its result is here
                self.world.count["made way for a prompt"] += machine.state is PrefillState.BRIDGING and machine.term == 1
                self.table.send(session, machine.stop_after(now, session.in_flight))

    def _chunk_result(self, request: Request, tokens: int) -> None:
        request.p_rows += tokens
        last = request.p_rows == request.prompt
        if request.cancelled:
            if self._chunked is request:
                self._chunked = None
            if request.computed == request.p_rows:  # no other chunk of it is launched
                self.world.fail_transfer(request)
                self._inflight[request.id] = request
                request.p_held = True
            return
        if request.mode == UNIFIED:
            if last:
                self.world.unified_answer(request)
                self.slots.release(request)
                self._end(request)
            return
        if last:
            request.p_held = True
            request.p_rows = 0  # from here on: bridge rows
            if request.offer is not None:
                self._start_bridge(request)
            self._inflight[request.id] = request
        self.world.send_kv(request, tokens, last)

    # ------------------------------------------------------------------------- bridge
    def _start_bridge(self, request: Request) -> None:
        self.table.now = self.local()
        machine = PrefillMachine(
            room=request.room, nonce=request.nonce, endpoint=self.channel.endpoint,
            prompt_len=request.prompt, cached_tokens=0, fingerprint=FINGERPRINT,
            budget=min(self._bridge_tokens(request), request.length), timing=self.world.timing,
            prefill_us=int((self.clock.now - request.arrival) * 1e6),
        )  # fmt: skip
        session = Session(request, machine, request.offer)
        self.table.add(session)
        request.p_session = session
        first = request.token(1)
        self.table.send(session, machine.start(self.table.now, first, self._end_of(request, 1)))

    def _bridge_tokens(self, request: Request) -> int:
        chunk = self.world.costs.chunk
        self.bridges.transfers.begins(self.table.now, request.nonce, (request.prompt - 1) % chunk + 1)
        refusal = self._why_not_bridge(request)
        if refusal == admission.ADMITTED:
            return self.bridges.limits.tokens
        self.world.count["not bridged: " + refusal] += 1
        return 1

    def _why_not_bridge(self, request: Request) -> str:
        waiting = sum(r.prompt for r in self._waiting)
        # Launched already, when the result of this request's last chunk is read.
        waiting += sum(tokens for r, tokens, _ in self._launched if r is not None)
        if self._chunked is not None:
            waiting += self._chunked.prompt - self._chunked.computed
        bridging = sum(s.machine.state in OPEN_STATES and s.request is not request for s in self.table)
        coming = [(r.prompt, self.clock.now - r.p_came_at) for r in self._bootstrap.values()]
        return self.bridges.refusal(self.table.now, request.nonce, waiting, bridging, request.worth, coming)

    def _reconsider_bridges(self) -> None:
        self.table.now = self.local()
        for session in self.table:
            machine = session.machine
            if machine.state is not PrefillState.BRIDGING or machine.term > 1 or len(machine.log) + session.in_flight > 1:
                continue
            refusal = self._why_not_bridge(session.request)
            if refusal != admission.ADMITTED:
                self.world.count["not bridged: " + refusal] += 1
                self.table.send(session, machine.stop_after(self.table.now, 0))

    @staticmethod
    def _end_of(request: Request, index: int) -> Optional[EndReason]:
        return request.end if index == request.length else None

    def _next_bridge(self, between_prompts: bool = False):
        self._reconsider_bridges()
        sessions = [s for s in self.table if self._wants_step(s)]
        prompts_wait = between_prompts and bool(self._waiting or self._chunked)
        if not sessions or not self.bridges.may_step(self.local(), prompts_wait):
            return None
        for number, session in enumerate(sessions):
            if number < self.slots.free:
                session.machine.unhold(HOLD_KV)
            else:
                session.machine.hold(HOLD_KV)
                self.world.count["bridge paused, no rows"] += 1
        sessions = [s for s in sessions if s.machine.may_generate(self.table.now)]
        if not sessions:
            return None
        context = 0
        for session in sessions:
            request = session.request
            invariants.p_generates(request)
            self.slots.take(request, 1)
            request.p_rows += 1
            session.in_flight += 1
            context += request.prompt + request.p_rows
        self.world.count["bridge steps"] += 1
        return None, sessions, self.world.costs.decode(len(sessions), context)

    def _wants_step(self, session: Session) -> bool:
        machine = session.machine
        if machine.state is PrefillState.PAUSED:
            if machine.holds != {HOLD_KV}:
                return False
        elif not machine.may_generate(self.table.now):
            return False
        if len(machine.log) + session.in_flight >= machine.budget:
            return False
        # After Resume the row may hold KV of steps that the seal discarded.
        request, rows = session.request, len(machine.log) - 1
        if request.p_rows == rows + session.in_flight:
            return True
        if session.in_flight:
            return False
        self.slots.give_back(request, request.p_rows - rows)
        request.p_rows = rows
        return True

    def _bridge_result(self, sessions: List[Session]) -> None:
        self.table.now = self.local()
        for session in sessions:
            session.in_flight -= 1
            request, log = session.request, session.machine.log
            token = request.next_token(log.slice(len(log), len(log) + 1)[0])
            end = self._end_of(request, len(log) + 1)
            self.table.send(session, session.machine.sampled(self.table.now, token, end))

    # ------------------------------------------------------------ a request's way out
    def _release(self) -> None:
        for request in tuple(self._inflight.values()):
            transfer, session = request.transfer, request.p_session
            if transfer.p_state is None or transfer.writing:
                if session is not None:
                    self.bridges.transfers.goes_on(self.local(), session.machine.nonce)
                continue
            if session is not None:
                self.bridges.transfers.ends(self.local(), session.machine.nonce, transfer.p_state is SUCCESS)
                if session.in_flight or not session.machine.done:
                    continue
                if request.p_rows:
                    self.slots.give_back(request, request.p_rows)
                self.table.retire(session)
            del self._inflight[request.id]
            self.slots.release(request)
            self._end(request)

    def _end(self, request: Request) -> None:
        if request.p_done:
            raise invariants.Violation(f"FREED-ONCE: P ends {request} twice")
        request.p_done = True
        self.world.ended(request)

    def check_idle(self) -> None:
        """Nothing is left on this worker."""
        self.slots.check_empty()
        if len(self.table) or self._bootstrap or self._waiting or self._inflight or self._launched:
            raise invariants.Violation(f"TERMINATES: {self.host} is not idle")
