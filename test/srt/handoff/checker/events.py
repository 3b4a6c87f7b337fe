"""Everything that can happen next in a world, and what it does.

An event is a tuple: its name, then what it is about. Names read as the line of a trace.

Time: both workers see one clock move by whole ticks. It moves only when nothing quick is left to do (a
message to take, a look at the queue), unless the worker that would do it is stalled. A message that
takes longer is a fault; a forward, a transfer or a client may take as long as it likes.

D's scheduler takes a number of messages, then relays, polls its queue and may start a round, and nothing comes
between. P's takes messages one by one: nothing it does depends on how many came at once. An Ack that nothing
befalls is taken before anything else happens: it says what stays true, so that whatever could have come before it
may as well come after.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, Tuple

from . import schedulers
from .scenario import FAULTS, ONE_MESSAGE, P_GOES_ON
from .world import GONE, KV_ACTIVE, KV_DONE, KV_DRAINING, KV_ENDING, KV_FAILED, KV_SILENT, LOST, ORDINARY, OWN, QUEUE, RUNNING, World

Event = Tuple
# States of D in which a request is upstream's alone, and waits for a transfer as long as without the flag.
WITHOUT_HANDOFF = ("offered", "aborted")
# A stalled worker's queue: what comes on top is dropped, as at the socket's high-water mark.
STALLED_QUEUE = 2


# ---------------------------------------------------------------------------- what may happen
def ordinary(world: World) -> Iterator[Event]:
    """Without anything going wrong, in the order in which a fair run takes them."""
    if _ack_first(world):
        yield ("to P",)
        return
    if not world.channel:
        yield ("channel back",)
    if not world.p_awake:
        yield ("P wakes",)
    elif world.to_p:
        yield ("to P",)
    if not world.d_awake:
        yield ("D wakes",)
    else:
        yield from _iterations_of_d(world)
    for way, sent in dict.fromkeys(world.late):
        if world.p_awake if way == "to P" else world.d_awake:
            yield ("late " + way, sent)
    if world.p_tick and world.p_awake:
        yield ("P ticks",)
    if world.d_tick and world.d_awake:
        yield ("D ticks",)
    for number, request in enumerate(world.requests):
        yield from _of_request(world, number, request)
    if world.p_pool == 0:
        yield ("P's pool has room",)
    if not world.d_pool:
        yield ("D's pool has room",)
    if not world.d_slot:
        yield ("D has a running slot",)
    if _quiet(world):
        yield ("clock",)


def afterwards(world: World) -> Iterator[Event]:
    """Once nobody holds anything: what is still under way arrives, and must change nothing."""
    if world.to_p and world.p_awake:
        yield ("to P",)
    if world.to_d and world.d_awake:
        yield ("to D",)
    for way, sent in dict.fromkeys(world.late):
        if world.p_awake if way == "to P" else world.d_awake:
            yield ("late " + way, sent)


def _iterations_of_d(world: World) -> Iterator[Event]:
    """("D looks", messages taken, request to replay or -1, tokens at most)."""
    for taken in range(len(world.to_d), -1, -1):
        if world.d_pool:
            for number, request in enumerate(world.requests):
                if request.place == QUEUE:
                    for limit in world.scenario.limits:
                        yield ("D looks", taken, number, limit)
        yield ("D looks", taken, -1, 0)


def _of_request(world: World, number: int, request) -> Iterator[Event]:
    if world.d_awake:
        if request.d_rounds:
            yield ("round done", number)
        elif request.place == QUEUE and request.kv == KV_DONE and not world.d_pool and _waits_for_slots(world, request):
            yield ("D has waited for slots", number)
        if request.place in (OWN, ORDINARY):
            yield ("D decodes on", number)
    if request.p and world.p_awake and request.p_kept:
        yield ("P steps", number)
        if world.scenario.prompts and world.p(request).state == "bridging" and world.p(request).term == 1:
            yield ("P turns to prompts", number)
    if request.kv == KV_ACTIVE:
        yield ("KV arrives", number)
    elif request.kv in _DRAINED:
        yield ("transfer drained", number)
    elif request.kv == KV_SILENT and request.d and world.d(request).state in WITHOUT_HANDOFF:
        yield ("upstream waited long enough", number)


def faults(world: World) -> Iterator[Event]:
    """What may go wrong now, with the number of its kind in front."""
    if not world.faults:
        return
    ack_first = _ack_first(world)
    for event in _all_faults(world):
        if event[0] in world.scenario.kinds and (not ack_first or event in _OF_AN_ACK):
            yield event


_OF_AN_ACK = {("drop", "to P"), ("delay", "to P"), ("duplicate", "to P"), ("channel lost",), ("P stalls",)}


def _ack_first(world: World) -> bool:
    return bool(world.p_awake and world.to_p and world.machines.is_ack(world.to_p[0]))


def _all_faults(world: World) -> Iterator[Event]:
    for way, queue in (("to P", world.to_p), ("to D", world.to_d)):
        if queue:
            yield ("drop", way)
            yield ("delay", way)
            yield ("duplicate", way)
    if world.channel:
        yield ("channel lost",)
    if world.p_awake:
        yield ("P stalls",)
    if world.d_awake:
        yield ("D stalls",)
    p_lives = any(request.p for request in world.requests)
    if p_lives and world.p_pool > 0:
        yield ("P has no KV slot",)
        yield ("P has no KV slot for good",)
    if world.d_pool:
        yield ("D's KV pool is full",)
    if world.d_slot:
        yield ("D has no running slot",)
    for number, request in enumerate(world.requests):
        if request.kv == KV_ACTIVE:
            yield ("KV fails", number)
            yield ("KV fails on D", number)
            if request.p_kept and world.p_awake:
                yield ("KV fails on P", number)
        if request.d_rounds and world.d_awake:
            yield ("round fails", number)
            yield ("round fails for good", number)
        if request.place != GONE and request.outcome == RUNNING and world.d_awake:
            yield ("client aborts", number)
        if request.p and request.p_kept and world.p_awake and (request.kv == KV_ACTIVE or not world.p(request).done):
            yield ("P aborts", number)
    if any(request.p_kept for request in world.requests):
        yield ("P restarts",)
    if any(request.place != GONE for request in world.requests):
        yield ("D restarts",)


def _waits_for_slots(world: World, request) -> bool:
    return world.machines.call(request.d, "replay_range", 9)[2] is not None


def _quiet(world: World) -> bool:
    if world.p_awake and (world.to_p or world.p_tick):
        return False
    if world.d_awake and (world.to_d or world.d_tick):
        return False
    if any(_has_time_for_a_step(world, request) for request in world.requests):
        return False
    return not world.d_awake or _seen_all(world)


def _has_time_for_a_step(world: World, request) -> bool:
    """P has other things to do, but makes a token before a silence is over, early enough for it to be sent twice."""
    if not (request.p and request.p_kept and world.p_awake and world.p_pool > 0 and world.p(request).may_generate):
        return False
    return world.p(request).runs_out or bool(request.d and world.d(request).runs_out)


def _seen_all(world: World) -> bool:
    """A look of D would change nothing."""
    packed = world.pack()
    key = (packed[0], world.d_slot)
    known = world.machines.seen_all.get(key)
    if known is None:
        after = copy(world)
        for request in after.requests:
            schedulers.look(after, request)
        known = world.machines.seen_all[key] = after.pack() == packed
    return known


# ---------------------------------------------------------------------------- what it does
def copy(world: World) -> World:
    return World(world.scenario, world.machines, world.pack())


def apply(world: World, event: Event) -> None:
    """Let ``event`` happen in ``world``.

    Raises:
        Violation: one of the schedulers does what it must not.
    """
    kind, *about = event
    if kind in FAULTS:
        world.faults -= 1
        if kind not in ONE_MESSAGE:
            world.blame = 1 if kind in P_GOES_ON and not world.blame else 2
    _DO[kind](world, *about)
    for request in world.requests:
        schedulers.free_on_prefill(world, request)
    if not world.p_awake:
        world.to_p = world.to_p[:STALLED_QUEUE]
    if not world.d_awake:
        world.to_d = world.to_d[:STALLED_QUEUE]


def _to_p(world: World) -> None:
    sent, world.to_p = world.to_p[0], world.to_p[1:]
    world.deliver_to_p(sent)


def _to_d(world: World) -> None:
    sent, world.to_d = world.to_d[0], world.to_d[1:]
    world.deliver_to_d(sent)


def _d_looks(world: World, taken: int, number: int, limit: int) -> None:
    for _ in range(taken):
        _to_d(world)
    for request in world.requests:
        schedulers.look(world, request)
    if number >= 0:
        schedulers.start_round(world, world.requests[number], limit)


def _late(way: str) -> Callable:
    def do(world: World, sent: int) -> None:
        late = list(world.late)
        late.remove((way, sent))
        world.late = tuple(late)
        (world.deliver_to_p if way == "to P" else world.deliver_to_d)(sent)

    return do


def _drop(world: World, way: str) -> None:
    _take(world, way)


def _delay(world: World, way: str) -> None:
    world.late = tuple(sorted((*world.late, (way, _take(world, way)))))


def _duplicate(world: World, way: str) -> None:
    queue = world.to_p if way == "to P" else world.to_d
    world.late = tuple(sorted((*world.late, (way, queue[0]))))


def _take(world: World, way: str) -> int:
    if way == "to P":
        sent, world.to_p = world.to_p[0], world.to_p[1:]
    else:
        sent, world.to_d = world.to_d[0], world.to_d[1:]
    return sent


def _channel_lost(world: World) -> None:
    world.channel, world.to_p, world.to_d = 0, (), ()


def _set(name: str, value: int) -> Callable:
    def do(world: World) -> None:
        setattr(world, name, value)

    return do


def _clock(world: World) -> None:
    """A tick passes: every machine and every message gets older."""
    machines = world.machines
    for request in world.requests:
        request.p, request.d = machines.older(request.p), machines.older(request.d)
    world.to_p = tuple([machines.older_sent(sent) for sent in world.to_p])
    world.to_d = tuple([machines.older_sent(sent) for sent in world.to_d])
    world.late = tuple(sorted([(way, machines.older_sent(sent)) for way, sent in world.late]))
    # Each worker handles the tick at once; a stalled one when it wakes, and maybe not before other things.
    if world.p_awake:
        world.tick_p()
    else:
        world.p_tick = 1
    if world.d_awake:
        world.tick_d()
    else:
        world.d_tick = 1


def _on_request(do: Callable) -> Callable:
    return lambda world, number, *more: do(world, world.requests[number], *more)


def _kv(before: int, after: int, cut: int = 0) -> Callable:
    def do(world: World, request) -> None:
        assert request.kv == before
        request.kv, request.kv_cut = after, max(request.kv_cut, cut)

    return do


_DRAINED = {KV_DRAINING: KV_FAILED, KV_ENDING: KV_SILENT}


def _drained(world: World, request) -> None:
    request.kv = _DRAINED[request.kv]


def _round_fails(world: World, request) -> None:
    request.d_rounds = ()
    world.call_d(request, "round_failed")


def _round_fails_for_good(world: World, request) -> None:
    """The caller gives the request back to P if it can, and tries again later."""
    _round_fails(world, request)
    world.call_d(request, "resume")


def _p_restarts(world: World) -> None:
    """A new process: no session, no rows. What D says to it meets nobody."""
    for request in world.requests:
        request.p = request.p_kept = request.p_rows = request.p_step = 0
        if request.kv not in (KV_FAILED, KV_DONE):
            request.kv, request.kv_cut = KV_FAILED, 1
    world.p_awake, world.p_tick, world.p_pool = 1, 0, 1


def _d_restarts(world: World) -> None:
    for request in world.requests:
        if request.place != GONE:
            request.place = GONE
            if request.outcome == RUNNING:
                request.outcome = LOST
        request.d = request.d_peer = request.d_kept = request.d_rows = 0
        request.d_rounds = ()
        if request.kv not in (KV_FAILED, KV_DONE):
            request.kv, request.kv_cut = KV_FAILED, 1
    world.d_awake, world.d_tick, world.d_pool, world.d_slot = 1, 0, 1, 1


_DO: Dict[str, Callable] = {
    "to P": _to_p,
    "to D": _to_d,
    "late to P": _late("to P"),
    "late to D": _late("to D"),
    "P ticks": World.tick_p,
    "D ticks": World.tick_d,
    "clock": _clock,
    "P steps": _on_request(schedulers.bridge_step),
    "P turns to prompts": _on_request(schedulers.stop_bridge),
    "D looks": _d_looks,
    "round done": _on_request(schedulers.end_round),
    "D decodes on": _on_request(schedulers.decode_on),
    "D has waited for slots": _on_request(schedulers.give_back),
    "KV arrives": _on_request(_kv(KV_ACTIVE, KV_DONE)),
    "transfer drained": _on_request(_drained),
    "upstream waited long enough": _on_request(_kv(KV_SILENT, KV_FAILED)),
    "channel back": _set("channel", 1),
    "P wakes": _set("p_awake", 1),
    "D wakes": _set("d_awake", 1),
    "P's pool has room": _set("p_pool", 1),
    "D's pool has room": _set("d_pool", 1),
    "D has a running slot": _set("d_slot", 1),
    # faults
    "drop": _drop,
    "delay": _delay,
    "duplicate": _duplicate,
    "channel lost": _channel_lost,
    "P stalls": _set("p_awake", 0),
    "D stalls": _set("d_awake", 0),
    "P has no KV slot": _set("p_pool", 0),
    "P has no KV slot for good": _set("p_pool", -1),
    "D's KV pool is full": _set("d_pool", 0),
    "D has no running slot": _set("d_slot", 0),
    "KV fails": _on_request(schedulers.transfer_fails),
    "KV fails on D": _on_request(schedulers.transfer_fails_on_decode),
    "KV fails on P": _on_request(schedulers.transfer_fails_on_prefill),
    "round fails": _on_request(_round_fails),
    "round fails for good": _on_request(_round_fails_for_good),
    "client aborts": _on_request(schedulers.client_aborts),
    "P aborts": _on_request(schedulers.prefill_aborts),
    "P restarts": _p_restarts,
    "D restarts": _d_restarts,
}
