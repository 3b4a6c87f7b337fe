"""One run: workers, network, faults and workload on one clock, from one seed."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, Optional

from . import invariants
from .core import Timing, admission
from .costs import Costs, Network
from .decode_worker import DecodeWorker
from .events import Clock
from .faults import NO_FAULTS, FaultRates, Faults
from .link import Control, Nic, Transfer
from .prefill_worker import PrefillWorker
from .workload import UNIFIED, Request, Workload


@dataclass(frozen=True)
class Setup:
    """Attributes:
    prefills, decodes: how many workers of each kind (xPyD).
    p_rows, d_rows: KV slots of one worker, in tokens.
    max_running: requests in one decode batch.
    waits_for_place: whether those whose KV is there wait until fewer run. Else they may make the batch larger, and
        bridged requests find no place more often: the fault run wants that.
    max_bridge: the product's bridge budget, in tokens.
    max_bridges, share: the product's limits on bridging, see admission.Limits.
    admits: whether P looks at these, at the prompts that wait and at D's load, as the product does. Else it
        bridges every request, and takes a step after every chunk of a prompt.
    pipeline: forwards of a prefill worker launched at most: two with SGLang's overlap loop, one with its plain one.
    patience: a request that is still on a worker so long after its arrival never ends (s).
    """

    costs: Costs
    network: Network
    workload: Workload
    rates: FaultRates = NO_FAULTS
    timing: Timing = Timing()
    prefills: int = 1
    decodes: int = 1
    p_rows: int = 400_000
    d_rows: int = 400_000
    max_running: int = 256
    waits_for_place: bool = False
    max_bridge: int = 512
    max_bridges: int = 32
    share: float = 0.02
    admits: bool = True
    pipeline: int = 2
    patience: float = 600.0
    seed: int = 0


class World:
    """Owns everything. ``run`` lets it happen and returns when nothing is left to happen."""

    def __init__(self, setup: Setup, on_end: Optional[Callable[[Request], None]] = None) -> None:
        self.costs, self.network, self.timing = setup.costs, setup.network, setup.timing
        self.waits_for_place, self.pipeline = setup.waits_for_place, setup.pipeline
        self.max_running, self.rates = setup.max_running, setup.rates
        self.limits = admission.Limits(setup.max_bridge, setup.max_bridges, setup.share, setup.admits)
        self.clock, self.rng = Clock(), random.Random(setup.seed)
        self.faults = Faults(setup.rates, random.Random(setup.seed ^ 0x5EED))
        self.control = Control(self.clock, setup.network, self.faults)
        self.nics = [Nic(self.clock, setup.network) for _ in range(setup.prefills)]
        self.p = [PrefillWorker(self, i, setup.p_rows) for i in range(setup.prefills)]
        self.d = [DecodeWorker(self, i, setup.d_rows) for i in range(setup.decodes)]
        self.count: Counter[str] = Counter()
        self.ttft, self.gap, self.life = array("d"), array("d"), array("d")  # seconds
        self.live: Dict[int, Request] = {}
        self.done, self.ended_at = 0, 0.0
        self._requests, self._at_once = setup.workload.requests, setup.workload.at_once
        self._arriving, self._patience = True, setup.patience
        self._on_end = on_end
        self._arrivals = setup.workload.arrivals(
            random.Random(setup.seed ^ 0xA11), setup.prefills, setup.decodes
        )

    def run(self, progress: Optional[Callable[[World], None]] = None, every: int = 20_000) -> None:
        """Raises:
        Violation: an invariant does not hold.
        """
        for _ in range(self._at_once or 1):
            self._arrive_next(self._arrivals)
        self._plan_faults()
        shown = 0
        while self.clock.step():
            if progress is not None and self.done >= shown + every:
                shown += every
                progress(self)
        for request in self.live.values():
            invariants.ended_well(request)
        for worker in (*self.p, *self.d):
            worker.check_idle()
        if self.done != self._requests:
            raise invariants.Violation(f"TERMINATES: {self.done} of {self._requests} requests ended")

    # --------------------------------------------------------------- what comes from outside
    def _arrive_next(self, arrivals: Iterator[Request]) -> None:
        request = next(arrivals, None)
        if request is None:
            self._arriving = False  # and the faults end too: finitely many
            if self.live:
                self.clock.after(self._patience, self._check_patience)
        else:
            if self._at_once:
                request.arrival = self.clock.now
            self.clock.at(request.arrival, self._arrive, request)

    def _check_patience(self) -> None:
        oldest = next(iter(self.live.values()), None)
        if oldest is not None and self.clock.now - oldest.arrival >= self._patience:
            t, sides = oldest.transfer, (oldest.p_session, oldest.d_session)
            states = [s and (s.machine.state.name, s.machine.done, s.in_flight) for s in sides]
            raise invariants.Violation(
                f"TERMINATES: {oldest} is still here, outcome {oldest.outcome}, freed on P {oldest.p_done}, on D "
                f"{oldest.d_done}; P and D (state, done, in flight) {states}; KV "
                f"{t and (t.p_state, t.d_state, t.writing)}"
            )

    def _arrive(self, request: Request) -> None:
        self._check_patience()
        self.live[request.id] = request
        p, d = self.p[request.p], self.d[request.d]
        if request.mode == UNIFIED:
            request.d_done = True
        else:
            request.transfer = Transfer(lambda: self.p[request.p].wake(), lambda: self.d[request.d].wake())
            d.submit(request)
            if self.faults.chance("abort"):
                # Anywhere in the request's life: its prompt takes most of it.
                self.clock.after(self.faults.rng.expovariate(1 / 0.3), d.abort, request)
        p.submit(request)
        if not self._at_once:
            self._arrive_next(self._arrivals)

    def _plan_faults(self) -> None:
        for worker in self.p:
            self._repeat("p_restart", worker.restart)
        for worker in self.d:
            self._repeat("d_restart", worker.restart)
            self._repeat("full", lambda w=worker: w.fill(self.faults.rng.expovariate(1 / self.rates.full_mean)))
        for p in self.p:
            for d in self.d:
                self._repeat("silence", lambda p=p, d=d: self.faults.silence(self.clock.now, p.host, d.host))

    def _repeat(self, name: str, what: Callable[[], None], again: bool = False) -> None:
        if not self._arriving:
            return
        if again:
            if name != "silence":
                self.faults.count[name] += 1
            what()
        wait = self.faults.next(name)
        if wait is not None:
            self.clock.after(wait, self._repeat, name, what, True)

    # --------------------------------------------------------------- between the workers
    def nonce(self) -> bytes:
        return self.rng.getrandbits(128).to_bytes(16, "little")

    def send_metadata(self, request: Request) -> None:
        """D to P, on the KV sockets: these are not in the faults' reach."""
        self.clock.after(self.network.control, lambda: self.p[request.p].metadata(request))

    def send_kv(self, request: Request, tokens: int, last: bool) -> None:
        if last and self.faults.chance("kv_failure"):
            # Somewhere on the last chunk's way; D learns it with P.
            delay = self.faults.rng.random() * tokens * self.costs.model.kv_token_bytes / self.network.kv_rate
            self.clock.after(delay, self.fail_transfer, request)
        stall = 0.0
        if last and self.faults.chance("kv_stall"):
            stall = self.faults.rng.expovariate(1 / self.rates.kv_stall_mean)
        size = tokens * self.costs.model.kv_token_bytes
        self.nics[request.p].send(request.transfer, size, last, stall)

    def fail_transfer(self, request: Request) -> None:
        if request.transfer is not None:
            self.nics[request.p].fail(request.transfer, self.network.kv_latency)

    def p_may_generate(self, request: Request) -> bool:
        session = request.p_session
        return session is not None and session.machine.may_generate(self.p[request.p].local())

    # ------------------------------------------------------------------------ the end
    def unified_answer(self, request: Request) -> None:
        """The prompt is computed on a unified server: t1 now, the rest a decode step each."""
        now = self.clock.now
        invariants.seen(request, 1, (request.token(1),), now)
        request.gap = self.costs.decode(1, request.prompt)
        invariants.own_tokens(request, request.token(1), request.length - 1, now)
        self.answer(request, "finished")

    def answer(self, request: Request, outcome: str) -> None:
        """The client's answer ends: "finished", "error", or "aborted" by the client itself."""
        if request.outcome is not None:
            raise invariants.Violation(f"ONCE: {request} ends twice")
        request.outcome, request.ended_at = outcome, self.clock.now
        if self._at_once:
            self._arrive_next(self._arrivals)
        if outcome != "finished" and request.mode != UNIFIED:
            # The router closes P's half too.
            self.clock.after(self.network.control, lambda: self.p[request.p].drop(request))
        self._close(request)

    def ended(self, request: Request) -> None:
        """One worker holds nothing of the request any more."""
        self._close(request)

    def _close(self, request: Request) -> None:
        if request.outcome is None or not (request.p_done and request.d_done):
            return
        invariants.ended_well(request)
        del self.live[request.id]
        self.done += 1
        self.ended_at = self.clock.now
        self.count[request.outcome] += 1
        self.life.append(self.clock.now - request.arrival)
        if request.first_at is not None:
            self.ttft.append(request.first_at - request.arrival)
        if request.gap is not None:
            self.gap.append(request.gap)
        if self._on_end is not None:
            self._on_end(request)
