"""Faults put into the machines, or into the schedulers' rules, one at a time: the checker must find each.

A mutant is a piece of the product's source, replaced; when that piece changes, the mutant says that it is out of date.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Tuple

from . import core, schedulers
from .explore import Result, explore
from .scenario import Scenario


@dataclass(frozen=True)
class Mutant:
    """
    Attributes:
        kills: the invariants that may find it first.
        changes: (file, old text, new text) in the core.
        rules: replacements of functions in ``schedulers``.
        world: the scenario that suffices.
    """

    name: str
    kills: Tuple[str, ...]
    changes: Tuple[Tuple[str, str, str], ...] = ()
    rules: Dict[str, Any] = field(default_factory=dict)
    world: Dict[str, Any] = field(default_factory=dict)


def on_p(old: str, new: str) -> Tuple[Tuple[str, str, str], ...]:
    return (("prefill_machine", old, new),)


def on_d(old: str, new: str) -> Tuple[Tuple[str, str, str], ...]:
    return (("decode_machine", old, new),)


def faults(*kinds: str, number: int = 1, **world: Any) -> Dict[str, Any]:
    return {"faults": number, "kinds": frozenset(kinds), "budget": 3} | world


NONE = faults(number=0)
# The answer can end on P, so an error needs a reason.
P_CAN_FINISH = {"answer": 3, "budget": 4}
TWO_ROUNDS = {"in_flight": 2, "seal_lag": 0, "limits": (1,)}
PROMPTS = {"prompts": True}

MUTANTS = (
    # ------------------------------------------------------------ who may generate
    Mutant(
        "P generates on after the seal", ("ONE-GENERATOR",),
        on_p("return self.state is PrefillState.BRIDGING and now < self.lease_end", "return self.state in (PrefillState.BRIDGING, PrefillState.SEALED)"),
        world=NONE,
    ),
    Mutant(
        "P looks at its lease only in ticks", ("ONE-GENERATOR",),
        on_p("return self.state is PrefillState.BRIDGING and now < self.lease_end", "return self.state is PrefillState.BRIDGING"),
        world=faults("P stalls"),
    ),
    Mutant(
        "P has no lease", ("ONE-GENERATOR",),
        on_p("return self._heard_stamp / 1e6 + self.timing.lease", "return float('inf')"),
        world=faults("channel lost"),
    ),
    Mutant(
        "P counts its lease from the arrival of an Ack", ("ONE-GENERATOR",),
        on_p("self._heard_stamp = max(self._heard_stamp, ack.stamp)", "self._heard_stamp = _stamp(now)"),
        world=faults("delay", "channel lost", number=2, budget=2),
    ),
    Mutant(
        "D does not wait for P's lease", ("ONE-GENERATOR",),
        on_d("return now - self._echoed_at >= self.timing.lease + self.timing.margin", "return now - self._echoed_at >= self.timing.resend"),
        world=faults("drop"),
    ),
    Mutant(
        "D takes over alone after the seal deadline", ("ONE-GENERATOR",),
        on_d("            self._asked_length = 0  # P does not get that far\n            return self._ask_seal(now)", "            return self._take_over_alone(now)"),
        world=faults("drop"),
    ),
    # ------------------------------------------------------------ the log
    Mutant(
        "a seal that still appends", ("PREFIX",),
        on_p("        self.log.close(len(self.log))\n", "")
        + on_p("        if self.state not in OPEN_STATES:\n            return []\n        return self._extend", "        if self.done:\n            return []\n        return self._extend"),
        world=NONE,
    ),
    Mutant(
        "a log that keeps a repeated entry twice", ("PREFIX",),
        (("log", "self._ids.extend(ids[known:])", "self._ids.extend(ids)"),),
        world=faults("duplicate"),
    ),
    Mutant(
        "a log that skips an entry that is missing", ("ONCE", "PREFIX"),
        (("log", "start > length + 1", "start > length + 2"),),
        world=faults("drop"),
    ),
    Mutant(
        "Ack is not cumulative", ("TERMINATES",),
        on_p(
            "        if ack.received > self._acked:\n            self._acked, self._sent_at = ack.received, now\n",
            "        self._acked, self._sent_at = min(len(self.log), self._acked + 1), now\n",
        ),
        world=faults("drop", "KV fails", number=2, answer=2, budget=2),
    ),
    Mutant(
        "an entry is never sent again", ("TERMINATES",),
        on_p("start = self._acked + 1", "start = len(self.log) + 1"),
        world=faults("drop", "KV fails", number=2, **P_CAN_FINISH),
    ),
    Mutant(
        "the budget does not close the log", ("PREFIX",),
        on_p("if end is None and start >= self.budget:", "if False:"),
        world=faults("KV fails"),
    ),
    # ------------------------------------------------------------ what the client gets
    Mutant(
        "D relays the newest entry again", ("ONCE",),
        on_d("start, self.relayed = self.relayed + 1, len(self.log)", "start, self.relayed = max(1, self.relayed), len(self.log)"),
        world=NONE,
    ),
    Mutant(
        "D waits for a P that has stopped of itself", ("TERMINATES",),
        on_d("return self.resume(now) if self._sealed_unasked and not self.kv_here else []", "return []"),
        world=faults("KV fails") | P_CAN_FINISH | PROMPTS,
    ),
    Mutant(
        "D takes a P that has stopped of itself for one that has ended", ("TERMINATES",),
        on_d(" and not self._sealed_unasked\n        return ended", "\n        return ended"),
        world=faults("KV fails") | P_CAN_FINISH | PROMPTS,
    ),
    Mutant(
        "D commits before the client has seen t1", ("ONCE",),
        on_d("if replayed and relayed and", "if replayed and"),
        world=NONE,
    ),
    Mutant(
        "D commits before all is replayed", ("ONCE",),
        on_d("if replayed and relayed and", "if relayed and"),
        world=NONE,
    ),
    Mutant(
        "D commits before all entries are here", ("TERMINATES",),
        on_d("if self.state is DecodeState.DRAINING and self.log.complete:", "if self.state is DecodeState.DRAINING and len(self.log):"),
        world=faults("drop"),
    ),
    Mutant(
        "D replays entries that are not here yet", ("ONCE",),
        on_d("return min(here, before) if here >= before or not self.seal_lag else 0", "return before"),
        world=NONE | {"ahead": 2},
    ),
    Mutant(
        "D replays again what a round in flight replays", ("ONCE",),
        on_d("return self.launched + 1, min(last, self.launched + limit)", "return self.replayed + 1, min(last, self.replayed + limit)"),
        world=NONE | TWO_ROUNDS,
    ),
    Mutant(
        "the end of one round is taken for the end of all", ("RAISES",),
        on_d("        self.replayed, *left = self._rounds_to\n", "        *_, self.replayed = self._rounds_to\n        left = ()\n"),
        world=NONE | TWO_ROUNDS,
    ),
    Mutant(
        "D goes on after the end", ("ONCE",),
        on_d("        self.state = DecodeState.FINISHED\n", ""),
        world=NONE | P_CAN_FINISH,
    ),
    Mutant(
        "an end on P is an end on D, whatever D's rules say", ("TERMINATES",),
        on_d("                self.end_reason = self._sealed.reason\n", "                self.end_reason = self._sealed.reason\n                if self.end_reason is EndReason.TOKEN:\n                    return self.abort(now, AbortReason.CONFLICT)\n"),
        world=NONE | {"answer": 4, "p_sees_at": 2},
    ),
    # ------------------------------------------------------------ resume and its terms
    Mutant(
        "no term in SealRequest", ("FENCED",),
        on_p("            if message.term != self.term:\n                return []  # of before a Resume\n", ""),
        world=faults("duplicate", "round fails for good", number=2),
    ),
    Mutant(
        "D obeys entries of an older term", ("FENCED",),
        on_d("        if message.term != self.term:\n            return self._reject(\"term\")\n", ""),
        world=faults("round fails for good"),
    ),
    Mutant(
        "a Resume is a new lease", ("ONE-GENERATOR",),
        on_p("        if self.end_reason is EndReason.SEAL:\n", "        self._heard_stamp = _stamp(now)\n        if self.end_reason is EndReason.SEAL:\n"),
        world=faults("round fails for good", "delay", number=2, limits=(9,)),
    ),
    Mutant(
        "a lost Resume is not repeated", ("TERMINATES",),
        on_d("        if self._resuming:\n            return self._resume_message(now)\n", ""),
        world=faults("drop", "D's KV pool is full", number=2, answer=4, budget=4),
    ),
    Mutant(
        "D takes over though it has resumed P", ("ONE-GENERATOR", "ONCE", "PREFIX"),
        on_d("        self._resuming, self._room = True, False\n", "        self.state, self._resuming = DecodeState.DRAINING, True\n        self.log.close_here()\n"),
        world=faults("D's KV pool is full"),
    ),
    # ------------------------------------------------------------ rows
    Mutant(
        "D replays before the prompt KV is here", ("IMMUTABLE",),
        on_d("REPLAY_STATES = frozenset(\n    {DecodeState.REPLAYING,", "REPLAY_STATES = frozenset(\n    {DecodeState.RELAYING, DecodeState.REPLAYING,"),
        world=NONE,
    ),
    Mutant(
        "P's scheduler frees before the transfer ends", ("IMMUTABLE",),
        rules={"may_free_on_prefill": lambda world, request: not request.p_step and world.p(request).done},
        world=NONE | P_CAN_FINISH,
    ),
    Mutant(
        "P's scheduler frees once it is sealed", ("FREED-ONCE",),
        rules={"may_free_on_prefill": lambda world, request: request.kv in schedulers.CONCLUDED and not request.p_step and world.p(request).state != "bridging"},
        world=faults("D's KV pool is full"),
    ),
    Mutant(
        "P's scheduler frees under a step in flight", ("IMMUTABLE",),
        rules={"may_free_on_prefill": lambda world, request: request.kv in schedulers.CONCLUDED and world.p(request).done},
        world=NONE,
    ),
    Mutant(
        "D's scheduler frees under a round in flight", ("IMMUTABLE",),
        rules={"round_in_flight": lambda request: False},
        world=faults("client aborts"),
    ),
    # ------------------------------------------------------------ ends
    Mutant(
        "a sealed P waits for D forever", ("TERMINATES",),
        on_p("if now - max(self._still_since, self._heard_stamp / 1e6) >= self.timing.commit:", "if False:"),
        world=faults("D restarts"),
    ),
    Mutant(
        "a paused P waits for D forever", ("TERMINATES",),
        on_p("if now - self.lease_end >= self.timing.silence:", "if False:"),
        world=faults("D restarts"),
    ),
    Mutant(
        "D waits for a transfer that was aborted on P", ("TERMINATES",),
        on_d("if ends_transfer and not self.kv_here and self._aborted_on_p_at is None:", "if False:"),
        world=faults("P aborts"),
    ),
    Mutant(
        "D waits for a transfer that P alone knows to have failed", ("TERMINATES",),
        on_d("ends_transfer = message.reason in (AbortReason.CLIENT, AbortReason.TRANSFER)", "ends_transfer = message.reason is AbortReason.CLIENT"),
        world=faults("KV fails on P"),
    ),
    Mutant(
        "P, whose log is closed, waits with D for KV that will not come", ("TERMINATES",),
        on_p("if self._kv_lost and now - self._still_since >= self.timing.silence:", "if False:"),
        world=faults("KV fails on P"),
    ),
    Mutant(
        "P, which has no slot to go on, waits with D for KV that will not come", ("TERMINATES",),
        on_p("if self._kv_lost and now - self._still_since", "if self.state is PrefillState.SEALED and self._kv_lost and now - self._still_since"),
        world=faults("KV fails on P", "P has no KV slot for good", number=2),
    ),
    Mutant(
        "P, told of the end, does not tell of a failed transfer", ("TERMINATES",),
        on_p("            if self._kv_lost:\n                return [Abort(self.room, self.nonce, AbortReason.TRANSFER)]\n", ""),
        world=faults("KV fails on P", **P_CAN_FINISH),
    ),
    Mutant(
        "D alone does not ask after its KV", ("TERMINATES",),
        on_d("        if now - max(self._heard_at, self._sent_at) < self.timing.silence:", "        if self.alone or now - max(self._heard_at, self._sent_at) < self.timing.silence:"),
        world=faults("KV fails on P", "P stalls", "channel lost", "drop", number=2, budget=2),
    ),
    Mutant(
        "D does not ask after a silent P", ("TERMINATES",),
        on_d("            return self._ask_after_p(now)\n", "            return []\n"),
        world=faults("P aborts", "drop", number=2, budget=2),
    ),
    Mutant(
        "P does not tell of an abort after the end", ("TERMINATES",),
        on_p("cuts = reason is AbortReason.CLIENT and self.abort_reason is not reason", "cuts = False"),
        world=faults("P aborts", **P_CAN_FINISH),
    ),
    Mutant(
        "D waits for a dead P forever", ("TERMINATES",),
        on_d("        if self._p_has_stopped(now):\n            return self._take_over_alone(now)\n", ""),
        world=faults("P restarts"),
    ),
    Mutant(
        "D relays a dead P forever", ("TERMINATES",),
        on_d("return ended or now - min(self._heard_at, self._grown_at) >= self.timing.silence", "return ended"),
        world=faults("P restarts"),
    ),
    Mutant(
        "D relays forever a P that lives and has no slot to go on", ("TERMINATES",),
        on_d("now - min(self._heard_at, self._grown_at) >=", "now - self._heard_at >="),
        world=faults("KV fails on D", "P has no KV slot for good", number=2),
    ),
    Mutant(
        "D alone still listens to P", ("TERMINATES",),
        on_d("        if self.alone:\n            return []  # what P logged after its lease is not part of the answer\n", ""),
        world=faults("delay", "P aborts", number=2, budget=2),
    ),
    Mutant(
        "an answer that broke off begins anew", ("CLOSED-BY-DEFAULT",),
        on_d("            return self.relayed > 0\n", "            return False\n"),
        world=faults("D's KV pool is full"),
    ),
    Mutant(
        "KV that comes first ends the request", ("TERMINATES",),
        on_d("            return self.relayed > 0\n", "            return True\n"),
        world=faults("drop"),
    ),
)  # fmt: skip


@contextmanager
def _rules(changes: Dict[str, Any]) -> Iterator[None]:
    kept = {name: getattr(schedulers, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(schedulers, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(schedulers, name, value)


def check(mutant: Mutant) -> Result:
    """Look for the mutant's fault; ``result.violation`` is None when it got away."""
    with _rules(mutant.rules):
        return explore(Scenario(mutant.name, **mutant.world), core.load(mutant.changes))
