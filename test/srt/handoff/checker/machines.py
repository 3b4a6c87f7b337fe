"""The product's two machines as functions from (state, call) to (state, messages), each computed once.

A machine is deterministic and reads no clock, so a call in a known state need not be made again.
That is what lets every interleaving of the two be tried in minutes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import msgspec

from .snapshot import NOW, TICK, Snapshots


class Violation(Exception):
    """An invariant does not hold; ``name`` is protocol.md's."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)  # so that it can be pickled, on its way from a worker process
        self.name, self.text = name, text

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


class NotTheSame(Exception):
    """Two machines that were taken as one behave differently: ``LOOKED_AT`` is out of date."""


class Facts(NamedTuple):
    """What the world may ask of a machine, at its own time."""

    role: str
    state: str
    done: bool
    log: Tuple[int, ...]
    closed_at: Optional[int]
    term: int
    abort_reason: Optional[str]
    runs_out: bool = False  # without its KV, and two ticks later it has waited long enough for entries
    # P
    may_generate: bool = False
    budget: int = 0
    holds: frozenset = frozenset()
    # D
    relayed: int = 0
    replayed: int = 0
    alone: bool = False
    hopeless: bool = False
    kv_lost: bool = False
    kv_here: bool = False


class Sent(NamedTuple):
    """A message under way. ``term`` is the sender's, whether the message names it or not."""

    request: int
    message: Any  # an age, in ticks, where it has a stamp
    term: int


def ahead_of(core: SimpleNamespace, seal_lag: int, ahead: int, in_flight: int) -> Any:
    """``SealAhead`` as far as safety goes: which length P is asked to stop at is any length."""

    class Ahead(core.SealNow):
        asks_in_flight = in_flight > 1

        def seal_ahead(self, lag: int) -> Optional[int]:
            return ahead if lag <= self.seal_lag else None

    return Ahead(seal_lag)


class Machines:
    def __init__(self, core: SimpleNamespace, timing: Any, settle: bool = True) -> None:
        """``settle``: take machines as one that differ only in instants that nothing looks at."""
        self.core, self.timing, self.settle = core, timing, settle
        self.snapshots = Snapshots(core, timing)
        self.frozen: List[Any] = [None]  # by id; 0 is no machine
        self.facts: List[Optional[Facts]] = [None]
        self.sent: List[Sent] = []  # by id
        self._ids: Dict[Any, int] = {}
        self._sent_ids: Dict[Sent, int] = {}
        self._calls: Dict[Any, Tuple[int, Tuple[int, ...], Any]] = {}
        self._older: Dict[int, int] = {}
        self._older_sent: Dict[int, int] = {}
        self._scratch: Dict[str, Any] = {}
        self.seen_all: Dict[Any, bool] = {}  # events._seen_all's memory, for one scenario
        # By id: what was taken as this machine, and what was asked of it.
        self._variants: List[List[Any]] = [[]]
        self._asked: List[List[Tuple[str, Tuple[Any, ...]]]] = [[]]

    # ------------------------------------------------------------------ making
    def prefill(self, request: int, room: int, budget: int, end: Optional[str]) -> Tuple[int, Tuple[int, ...]]:
        """P with t1 sampled; ``end`` names the reason when it is also the last."""
        machine = self.core.PrefillMachine(
            room=room, nonce=bytes([request]) * 16, endpoint="tcp://p:1", prompt_len=1, cached_tokens=0,
            fingerprint=b"same-cfg", budget=budget, prefill_us=0, timing=self.timing,
        )  # fmt: skip
        said = machine.start(NOW["P"], 1, self._end(end))
        return self._keep("P", machine), self._say(machine, request, said)

    def decode(self, request: int, room: int, seal_lag: int, rounds: int, ahead: int, in_flight: int) -> int:
        """D with its offer on the way."""
        machine = self.core.DecodeMachine(
            room=room, nonce=bytes([request]) * 16, prompt_len=1, fingerprint=b"same-cfg", vocab_size=100,
            timing=self.timing, max_new_tokens=100, seal_lag=seal_lag, max_rounds_before_seal=rounds,
            pace=ahead_of(self.core, seal_lag, ahead, in_flight), max_rounds_in_flight=in_flight,
        )  # fmt: skip
        return self._keep("D", machine)

    # ------------------------------------------------------------------ calling
    def call(self, snap: int, method: str, *args: Any) -> Tuple[int, Tuple[int, ...], Any]:
        """Returns the machine's next id, the ids of what it says, and the method's own answer.

        Raises:
            Violation: the machine raised; in the product that ends the scheduler.
        """
        key = (snap, method, args)
        known = self._calls.get(key)
        if known is None:
            known = self._calls[key] = self._call(self.frozen[snap], method, args)
            self._asked[snap].append((method, args))
            for variant in tuple(self._variants[snap]):
                self._compare(variant, snap, method, args)
        return known

    def _compare(self, variant: Tuple[Any, ...], snap: int, method: str, args: Tuple[Any, ...]) -> None:
        if self._call(variant, method, args) != self._calls[snap, method, args]:
            raise NotTheSame(f"{method}{args} tells {variant} from {self.frozen[snap]}: see LOOKED_AT")

    def _call(self, frozen: Tuple[Any, ...], method: str, args: Tuple[Any, ...]) -> Tuple[int, Tuple[int, ...], Any]:
        role, machine = frozen[0], self._scratch[frozen[0]]
        self.snapshots.thaw(machine, frozen)
        request = machine.nonce[0]
        if method == "receive":
            args = (NOW[role], self.message(args[0]))
        elif method == "sampled":
            args = (NOW[role], args[0], self._end(args[1]))
        elif method in ("kv_arrived", "kv_failed", "round_done", "finished", "resume", "tick"):
            args = (NOW[role],)
        elif method in ("room_ahead", "abort", "stop_after"):
            value = self.core.AbortReason[args[0]] if method == "abort" else args[0]
            args = (NOW[role], value)
        try:
            answer = getattr(machine, method)(*args)
        except Exception as error:
            raise Violation("RAISES", f"{role}.{method} raised {type(error).__name__}: {error}") from error
        says = isinstance(answer, list) and method not in ("take_relay",)
        said = self._say(machine, request, answer) if says else ()
        return self._keep(role, machine), said, None if says else answer

    def _end(self, name: Optional[str]) -> Any:
        return None if name is None else self.core.EndReason[name]

    def _keep(self, role: str, machine: Any) -> int:
        self._scratch.setdefault(role, machine)
        return self._id(self.snapshots.freeze(role, machine))

    def _id(self, frozen: Tuple[Any, ...]) -> int:
        known = self._ids.get(frozen)
        if known is not None:
            return known
        settled = self.snapshots.settle(frozen) if self.settle else frozen
        known = self._ids.get(settled)
        if known is None:
            known = self._ids[settled] = len(self.frozen)
            machine = self._scratch[settled[0]]
            self.snapshots.thaw(machine, settled)
            self.frozen.append(settled)
            self.facts.append(_facts(settled[0], machine))
            self._variants.append([])
            self._asked.append([])
        if settled is not frozen and settled != frozen:
            self._ids[frozen] = known
            self._variants[known].append(frozen)
            for method, args in tuple(self._asked[known]):
                self._compare(frozen, known, method, args)
        return known

    # ------------------------------------------------------------------ messages
    def _say(self, machine: Any, request: int, messages: List[Any]) -> Tuple[int, ...]:
        return tuple(self._keep_sent(Sent(request, self._aged(m), machine.term)) for m in messages)

    def _aged(self, message: Any) -> Any:
        """``message`` as a value: its list as a tuple, its stamp as an age."""
        return self._with(message, tuple, self.snapshots.age_of)

    def message(self, sent: int) -> Any:
        """The message as its receiver sees it."""
        return self._with(self.sent[sent].message, list, self.snapshots.stamp_of)

    @staticmethod
    def _with(message: Any, ids: Callable, stamp: Callable) -> Any:
        changes = {name: change(getattr(message, name)) for name, change in (("ids", ids), ("stamp", stamp)) if hasattr(message, name)}
        return msgspec.structs.replace(message, **changes) if changes else message

    def is_open(self, sent: int) -> bool:
        return isinstance(self.sent[sent].message, self.core.Open)

    def is_ack(self, sent: int) -> bool:
        return isinstance(self.sent[sent].message, self.core.Ack)

    def has_term(self, sent: int) -> bool:
        """Whether the message speaks of a term, and is void in a later one."""
        core = self.core
        return isinstance(self.sent[sent].message, (core.Append, core.SealRequest, core.Sealed, core.Resume))

    def _keep_sent(self, sent: Sent) -> int:
        known = self._sent_ids.get(sent)
        if known is None:
            known = self._sent_ids[sent] = len(self.sent)
            self.sent.append(sent)
        return known

    # ------------------------------------------------------------------ time
    def older(self, snap: int) -> int:
        """The same machine a tick later."""
        if not snap:
            return 0
        known = self._older.get(snap)
        if known is None:
            known = self._older[snap] = self._id(self.snapshots.older(self.frozen[snap]))
        return known

    def older_sent(self, sent: int) -> int:
        known = self._older_sent.get(sent)
        if known is None:
            message = self.sent[sent].message
            if hasattr(message, "stamp"):
                age = min(message.stamp + 1, self.snapshots.stamp_age)
                message = msgspec.structs.replace(message, stamp=age)
            known = self._older_sent[sent] = self._keep_sent(self.sent[sent]._replace(message=message))
        return known


def _facts(role: str, machine: Any) -> Facts:
    now, log = NOW[role], machine.log
    reason = machine.abort_reason.name if machine.abort_reason is not None else None
    shared = (role, machine.state.value, machine.done, tuple(log.slice(1, len(log) + 1)), log.closed_at, machine.term, reason)
    if role == "P":
        runs_out = not machine.done and machine._kv_lost and now + 2 * TICK - machine._still_since >= machine.timing.silence
        return Facts(
            *shared, runs_out=runs_out, may_generate=machine.may_generate(now), budget=machine.budget, holds=frozenset(machine.holds),
        )  # fmt: skip
    runs_out = machine.state.value == "relay_only" and machine.hopeless(now + 2 * TICK)
    return Facts(
        *shared, runs_out=runs_out, relayed=machine.relayed, replayed=machine.replayed, alone=machine.alone,
        hopeless=machine.hopeless(now), kv_lost=machine.kv_lost(now), kv_here=machine.kv_here,
    )  # fmt: skip
