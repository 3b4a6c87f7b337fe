"""A trace as a story: each event, what was said, and where both sides then stand."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List

from . import events, invariants
from .machines import Machines, Violation
from .scenario import Scenario
from .world import GONE, OUTCOMES, OWN, ORDINARY, QUEUE, RUNNING, Request, World, first_world

KV = ("under way", "given up", "failed", "here", "given up by P", "given up by P, of which D is not told")
SENTENCES = {
    "to P": "P takes a message",
    "P steps": "P's scheduler runs a bridge step",
    "P turns to prompts": "P computes prompts next, and expects the KV to be gone when it has",
    "round done": "the replay round's result is here",
    "D decodes on": "D decodes the rest of the answer itself",
    "D has waited for slots": "D has waited long enough for KV slots",
    "KV arrives": "the prompt KV has arrived",
    "transfer drained": "the transfer that was cut has drained",
    "upstream waited long enough": "D: upstream's own deadline for a transfer is over",
    "clock": "a tick of time passes",
    "channel back": "the channel is back",
    "P's pool has room": "P's KV pool has room again",
    "D's pool has room": "D's KV pool has room again",
    "D has a running slot": "a running slot on D is free again",
    "channel lost": "FAULT: the control channel is lost, and what was under way with it",
    "P stalls": "FAULT: P is stopped",
    "D stalls": "FAULT: D is stopped",
    "P has no KV slot": "FAULT: P has no KV slot left",
    "P has no KV slot for good": "FAULT: P has no KV slot left, and gets none",
    "D's KV pool is full": "FAULT: D's KV pool is full",
    "D has no running slot": "FAULT: every running slot on D is taken",
    "KV fails": "FAULT: the transfer of the prompt KV fails",
    "KV fails on D": "FAULT: D holds the transfer for failed, of which P is not told",
    "KV fails on P": "FAULT: the transfer fails, of which D is not told",
    "round fails": "FAULT: the replay round wrote nothing; it will be tried again",
    "round fails for good": "FAULT: the replay round wrote nothing, and will not be tried again",
    "client aborts": "FAULT: the client leaves",
    "P aborts": "FAULT: the request is aborted on P",
    "P restarts": "FAULT: P dies; a new process takes its place",
    "D restarts": "FAULT: D dies; a new process takes its place",
}


def story(scenario: Scenario, core: Any, timing: Any, trace: Iterable[events.Event], violation: Any = None) -> str:
    """Text of ``trace`` from the scenario's first state on; a violation, its own or the given one, ends it."""
    machines = Machines(core, timing)
    world = first_world(scenario, machines)
    lines = ["t1 is sampled on P, and the transfer of the prompt KV begins", *_said((), (), world), *_stands(world)]
    for number, event in enumerate(trace, 1):
        to_p, to_d, before = world.to_p, world.to_d, _stands(world)
        lines += ["", f"{number}. {_sentence(world, event)}"]
        try:
            events.apply(world, event)
            invariants.check(world)
        except Violation as error:
            violation = violation or error
            break
        if event[0] == "to P":
            to_p = to_p[1:]
        elif event[0] == "D looks":
            to_d = to_d[event[1] :]
        elif event[0] in ("drop", "delay"):
            to_p, to_d = (to_p[1:], to_d) if event[1] == "to P" else (to_p, to_d[1:])
        elif event[0] == "clock":
            to_p = tuple(machines.older_sent(sent) for sent in to_p)
            to_d = tuple(machines.older_sent(sent) for sent in to_d)
        lines += _said(to_p, to_d, world)
        lines += [line for line in _stands(world) if line not in before]
    if violation is not None:
        lines += ["", f"VIOLATION {violation}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _sentence(world: World, event: events.Event) -> str:
    kind, *about = event
    which = f" (request {about[0]})" if world.scenario.requests > 1 and about and isinstance(about[0], int) and kind != "D looks" else ""
    if kind == "D looks":
        taken, number, limit = about
        took = ", ".join(_message(world, sent) for sent in world.to_d[:taken])
        what = f"D takes {took}, then looks" if taken else "D looks"
        return what + (f"; a replay round may have {limit} tokens" if number >= 0 else "")
    if kind == "to P":
        return _takes("P", world, world.to_p[0])
    if kind in ("late to P", "late to D"):
        return "late, " + _takes(kind[-1], world, about[0])
    if kind in ("drop", "delay", "duplicate"):
        message = _message(world, (world.to_p if about[0] == "to P" else world.to_d)[0])
        happens = {"drop": "is lost", "delay": "is held up", "duplicate": "is doubled; the copy will come late"}[kind]
        return f"FAULT: {message} on its way {about[0]} {happens}"
    return SENTENCES[kind] + which


def _takes(who: str, world: World, sent: int) -> str:
    request = world.requests[world.machines.sent[sent].request]
    nobody = "" if (request.p if who == "P" else request.d) else ", and knows no such session"
    return f"{who} takes {_message(world, sent)}{nobody}"


def _said(to_p: tuple, to_d: tuple, world: World) -> List[str]:
    """What is new in the queues."""
    out = []
    for who, before, after in (("D", to_p, world.to_p), ("P", to_d, world.to_d)):
        if after[: len(before)] == before:
            out += [f"      {who} says {_message(world, sent)}" for sent in after[len(before) :]]
    return out


def _message(world: World, sent: int) -> str:
    number, message, _ = world.machines.sent[sent]
    kind = type(message).__name__
    details = {
        "Open": lambda m: f"(term {m.term}, budget {m.budget})",
        "Append": lambda m: f"(term {m.term}, entries {_span(m.start, m.ids)})",
        "Ack": lambda m: f"({m.received}, stamp {m.stamp} old)",
        "SealRequest": lambda m: f"(term {m.term}, at {m.at})",
        "Sealed": lambda m: f"(term {m.term}, length {m.length}, {m.reason.name})",
        "Commit": lambda m: f"({m.boundary})",
        "Resume": lambda m: f"(term {m.term}, from {m.start})",
        "Abort": lambda m: f"({m.reason.name})",
    }
    of = f" of request {number}" if world.scenario.requests > 1 else ""
    return kind + details[kind](message) + of


def _span(start: int, ids: tuple) -> str:
    return f"none from {start}" if not ids else f"{start}" if len(ids) == 1 else f"{start}-{start + len(ids) - 1}"


def _stands(world: World) -> List[str]:
    return [f"      {line}" for request in world.requests for line in _request(world, request)]


def _request(world: World, request: Request) -> Iterator[str]:
    p, d = world.p(request), world.d(request)
    if p is None:
        yield "P: no session" if world.scenario.accepts else "P: takes no part"
    else:
        rows = "" if request.p_kept else ", rows freed"
        step = f", t{request.p_step} in flight" if request.p_step else ""
        yield f"P: {p.state}, term {p.term}, log {len(p.log)}{step}{rows}"
    if d is None:
        yield "D: no session"
    else:
        place = {QUEUE: "", OWN: ", committed", ORDINARY: ", on the ordinary path", GONE: ", rows freed"}[request.place]
        alone = ", alone" if d.alone else ""
        busy = f", round to {' and '.join(map(str, request.d_rounds))}" if request.d_rounds else ""
        yield f"D: {d.state}, term {d.term}, log {len(d.log)}, replayed {request.d_rows}{busy}{alone}{place}"
    got = f"{request.shown} of {world.scenario.answer} tokens"
    yield f"client: {got}" + (f", then {OUTCOMES[request.outcome]}" if request.outcome != RUNNING else "") + f"; KV {KV[request.kv]}"
