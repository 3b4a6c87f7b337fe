"""Stand-ins for the two schedulers: the rules of ``scheduler_handoff_*_mixin.py``, each under its name there.

What they must never do is looked at where they do it; the rest is in ``invariants``.
"""

from __future__ import annotations

from .machines import Violation
from .world import ABORTED, ERROR, FINISHED, GONE, KV_ACTIVE, KV_DONE, KV_DRAINING, KV_ENDING, KV_FAILED, KV_SILENT
from .world import ORDINARY, OWN, QUEUE, RUNNING, Request, World

CONCLUDED = (KV_DONE, KV_FAILED)
HOLD_KV = "kv"


# ---------------------------------------------------------------------------- P
def bridge_step(world: World, request: Request) -> None:
    """``next_bridge_batch``, then the result of the step before (or, without overlap, of this one)."""
    due, request.p_step = request.p_step, 0
    token = _launch(world, request, due)
    if not world.scenario.overlap and token:
        due, token = token, 0
    request.p_step = token
    if due:
        world.call_p(request, "sampled", due, world.scenario.p_end(len(world.p(request).log) + 1))


def _launch(world: World, request: Request, in_flight: int) -> int:
    """The token that a step launched now will give, 0 if none is."""
    if not _wants_step(world, request, bool(in_flight)):
        return 0
    if world.p_pool > 0:
        world.call_p(request, "unhold", HOLD_KV)
    else:
        world.call_p(request, "hold", HOLD_KV)
    if not world.p(request).may_generate:
        return 0
    if not request.p_kept:
        raise Violation("FREED-ONCE", "P generates for a request whose KV rows it has freed")
    # A step writes the KV of its input, the newest token, and gives the one after it.
    request.p_rows += 1
    return request.p_rows + 1


def _wants_step(world: World, request: Request, in_flight: int) -> bool:
    machine = world.p(request)
    if machine.state == "paused":
        if machine.holds != {HOLD_KV}:
            return False
    elif not machine.may_generate:
        return False
    if len(machine.log) + in_flight >= machine.budget:
        return False
    # _rewind_bridge: a step whose token the seal discarded has left a row too many.
    if request.p_rows != len(machine.log) - 1 + in_flight:
        if in_flight:
            return False
        request.p_rows = len(machine.log) - 1
    return True


def stop_bridge(world: World, request: Request) -> None:
    """``_make_way_for``; P expects the KV to be gone soon, and may be wrong."""
    world.call_p(request, "stop_after", int(bool(request.p_step)))


def free_on_prefill(world: World, request: Request) -> None:
    """``handoff_keeps_prefill``: the rows go when the transfer is over, no step flies, and D needs P no more."""
    if not (request.p and request.p_kept and world.p_awake) or not may_free_on_prefill(world, request):
        return
    if request.kv not in (*CONCLUDED, KV_SILENT):
        raise Violation("IMMUTABLE", "P frees the prompt's KV rows while they may still be read for the transfer")
    if request.p_step:
        raise Violation("IMMUTABLE", "P frees KV rows that a step in flight writes")
    request.p_kept = request.p_rows = 0


def may_free_on_prefill(world: World, request: Request) -> bool:
    return request.kv in (*CONCLUDED, KV_SILENT) and not request.p_step and world.p(request).done


# ---------------------------------------------------------------------------- D
def look(world: World, request: Request) -> None:
    """One iteration after its intake: ``relay_handoffs``, then the poll of the transfer queue."""
    if request.place != QUEUE:
        return
    _relay(world, request)
    if world.d(request).kv_lost:
        _give_transfer_up(request)  # _fail_transfer
    if request.kv == KV_DONE:
        _keeps_transferred(world, request)
    elif request.kv == KV_FAILED:
        _outlives_failure(world, request)


def _relay(world: World, request: Request) -> None:
    tokens = world.call_d(request, "take_relay")
    if not tokens or request.outcome != RUNNING:
        return
    for token in tokens:
        show(world, request, token)
        if token == world.scenario.answer:
            request.outcome = FINISHED
            world.call_d(request, "finished")
            return


def show(world: World, request: Request, token: int) -> None:
    """The client gets ``token``; tokens are numbered as the answer is."""
    if token != request.shown + 1:
        raise Violation("ONCE", f"the client has {request.shown} tokens and gets number {token}")
    if request.outcome != RUNNING:
        raise Violation("ONCE", f"the client gets number {token} after the end")
    request.shown = token


def _keeps_transferred(world: World, request: Request) -> None:
    """``handoff_keeps_transferred``."""
    if world.d(request).state == "offered" and not request.kv_seen:
        request.kv_seen = 1  # P's Open may lie unread
        return
    request.kv_seen = 0
    world.call_d(request, "kv_arrived")
    world.call_d(request, "room_ahead", bool(world.d_pool and world.d_slot and _slot_free(world, request)))
    machine = world.d(request)
    if round_in_flight(request):
        return
    if machine.hopeless:
        request.kv = KV_FAILED  # _fail_transfer: upstream's failure path ends it at the next poll
    elif not machine.done:
        return
    elif machine.state == "owner":
        _commit(world, request)
    elif machine.state == "aborted":
        _ordinary_path(request)
    else:
        _free(world, request)


def round_in_flight(request: Request) -> bool:
    return bool(request.d_rounds)


def _slot_free(world: World, request: Request) -> bool:
    """``_handoff_room_ahead`` with one running slot: nobody runs, waits to run, or is about to."""
    return not any(
        other.place in (OWN, ORDINARY) or (other.place == QUEUE and other.d and world.d(other).state in ("sealing", "draining"))
        for other in world.requests
    )  # fmt: skip


def _commit(world: World, request: Request) -> None:
    """``_commit_handoff``."""
    if request.outcome != RUNNING:
        raise Violation("ONCE", "D goes on after the end")
    boundary = world.d(request).closed_at
    if request.shown != boundary:
        raise Violation("ONCE", f"D goes on from {boundary}, the client has {request.shown} tokens")
    if not boundary - 1 <= request.d_rows <= boundary - (not world.scenario.ahead):
        raise Violation("ONCE", f"D goes on from {boundary} with {request.d_rows} KV rows behind the prompt's")
    request.d_rows = boundary - 1  # the row of t(boundary) is given back: the own step writes it
    request.place = OWN


def _ordinary_path(request: Request) -> None:
    """``_leave_for_ordinary_path``: as if the handoff were off."""
    if request.shown or request.d_rows:
        raise Violation("CLOSED-BY-DEFAULT", f"the ordinary path begins with {request.shown} tokens shown")
    request.place = ORDINARY


def _outlives_failure(world: World, request: Request) -> None:
    """``handoff_keeps_failed``."""
    machine = world.d(request)
    if round_in_flight(request):
        return
    if not machine.done and world.call_d(request, "kv_failed") and not world.d(request).hopeless:
        return
    world.call_d(request, "abort", "TRANSFER")
    if request.outcome == RUNNING:
        request.outcome = ERROR
    _free(world, request)


def _free(world: World, request: Request) -> None:
    if request.kv not in CONCLUDED:
        raise Violation("IMMUTABLE", "D frees the prompt's KV rows while the transfer may still write them")
    if request.d_rounds:
        raise Violation("IMMUTABLE", "D frees KV rows that a replay round in flight writes")
    if not request.d_kept:
        raise Violation("FREED-ONCE", "D frees the request's rows a second time")
    request.d_kept = request.d_rows = 0
    request.place = GONE


def start_round(world: World, request: Request, limit: int) -> None:
    """``next_replay_batch``, right after a look in the same iteration."""
    span = world.call_d(request, "replay_range", limit)
    if span is None:
        return
    first, last = span
    if request.kv != KV_DONE:
        raise Violation("IMMUTABLE", "a replay on top of KV that is still being written")
    rows = max((request.d_rows, *request.d_rounds))  # once the rounds in flight have written theirs
    if first != rows + 1 or last > request.shown:
        raise Violation("ONCE", f"replay of {first}-{last}: {rows} rows are there, {request.shown} tokens shown")
    world.call_d(request, "round_started", last)
    request.d_rounds += (last,)


def end_round(world: World, request: Request) -> None:
    """``process_replay_result``."""
    request.d_rows, *left = request.d_rounds
    request.d_rounds = tuple(left)
    world.call_d(request, "round_done")


def give_back(world: World, request: Request) -> None:
    """``_wait_for_replay_slots`` past its deadline."""
    before = request.d
    world.call_d(request, "resume")
    if request.d != before:
        return
    if world.d(request).closed_at is not None and not any(other.place in (OWN, ORDINARY) for other in world.requests):
        world.call_d(request, "abort", "NO_SLOT")
        request.given_up = 1


def decode_on(world: World, request: Request) -> None:
    """D's own steps to the end of the answer."""
    for token in range(request.shown + 1, world.scenario.answer + 1):
        show(world, request, token)
    request.outcome = FINISHED
    _free(world, request)


def client_aborts(world: World, request: Request) -> None:
    """``abort_handoff`` and upstream's own abort of the same request."""
    request.outcome = ABORTED
    if request.place in (OWN, ORDINARY):
        _free(world, request)
        return
    world.call_d(request, "abort", "CLIENT")
    _cut_transfer(request)


def prefill_aborts(world: World, request: Request) -> None:
    """``abort_handoff`` on P, as for abort_request with abort_all."""
    world.call_p(request, "abort", "CLIENT")
    _cut_transfer(request, by_p=True)


def transfer_fails(world: World, request: Request) -> None:
    """Both poll it, and P's ``handoff_keeps_prefill`` comes to know of it, if it is there to."""
    request.kv, request.kv_cut = KV_FAILED, 1
    _told_on_prefill(world, request)


def transfer_fails_on_prefill(world: World, request: Request) -> None:
    """The same, but nobody tells D."""
    request.kv, request.kv_cut = KV_SILENT, 1
    _told_on_prefill(world, request)


def transfer_fails_on_decode(world: World, request: Request) -> None:
    """The same, but nobody tells P, to which it went as it should: D has given P up by upstream's heartbeat."""
    request.kv, request.kv_cut = KV_FAILED, 1


def _told_on_prefill(world: World, request: Request) -> None:
    if request.p and request.p_kept and world.p_awake:
        world.call_p(request, "kv_failed")


def _cut_transfer(request: Request, by_p: bool = False) -> None:
    if request.kv == KV_ACTIVE:
        request.kv, request.kv_cut = KV_ENDING, 1
    if not by_p:
        _give_transfer_up(request)


def _give_transfer_up(request: Request) -> None:
    """D's receiver gives the transfer up, though all may have arrived."""
    request.kv = {KV_ENDING: KV_DRAINING, KV_SILENT: KV_FAILED, KV_DONE: KV_FAILED}.get(request.kv, request.kv)
