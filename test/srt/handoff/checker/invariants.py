"""What must hold in every state, and at every end. Names are protocol.md's.

ONCE, IMMUTABLE, FREED-ONCE and CLOSED-BY-DEFAULT are looked at where the schedulers act, FENCED where a
message is delivered, TERMINATES in ``explore``; this file has the rest.
"""

from __future__ import annotations

from .machines import Violation
from .world import ERROR, FINISHED, GONE, OUTCOMES, OWN, QUEUE, RUNNING, Request, World

def check(world: World) -> None:
    """Raises:
    Violation: of this state.
    """
    for request in world.requests:
        p, d = world.p(request), world.d(request)
        if p is not None:
            _prefix_on_p(request, p)
            if p.may_generate:
                _one_generator(request, p, d)
        if d is not None:
            _prefix_on_d(world, request, p, d)


def _prefix_on_p(request, p) -> None:
    if p.log != tuple(range(1, len(p.log) + 1)):
        raise Violation("PREFIX", f"P has logged {p.log}, which is not what the model says")
    if len(p.log) > p.budget:
        raise Violation("PREFIX", f"P has logged {len(p.log)} tokens of a budget of {p.budget}")
    if len(p.log) >= p.budget and p.state in ("bridging", "paused"):
        raise Violation("PREFIX", f"P's log is open, with {len(p.log)} tokens of a budget of {p.budget}")
    if p.state == "sealed" and p.closed_at != len(p.log):
        raise Violation("PREFIX", f"P is sealed at {p.closed_at} and has logged {len(p.log)}")


def _prefix_on_d(world, request, p, d) -> None:
    if d.log != tuple(range(1, len(d.log) + 1)) or len(d.log) > request.p_log:
        raise Violation("PREFIX", f"D has {d.log}, P has logged {request.p_log} tokens")
    sealed = d.closed_at is not None and not d.alone
    if sealed and p is not None and p.term == d.term and len(p.log) > d.closed_at:
        raise Violation("PREFIX", f"P goes on to {len(p.log)} in the term that it sealed at {d.closed_at}")
    # only ahead of a seal may the last entry be replayed too
    most = d.relayed if world.scenario.ahead else max(0, d.relayed - 1)
    if request.place == QUEUE and (d.relayed > len(d.log) or d.replayed > most):
        raise Violation("PREFIX", f"D replayed {d.replayed} and relayed {d.relayed} of {len(d.log)} entries")


def _one_generator(request: Request, p, d) -> None:
    """On the ordinary path D's answer holds no token of P's, so it does not matter what P still samples."""
    if d is not None and d.state == "owner" or request.place == OWN:
        raise Violation("ONE-GENERATOR", "P may generate, and so may D")
    if not request.p_kept:
        raise Violation("FREED-ONCE", "P may generate for a request whose rows it has freed")


def is_end(world: World) -> bool:
    """Nobody holds anything for any request, and every client knows."""
    return all(
        request.place == GONE and request.outcome != RUNNING and not request.d_kept and not request.p_kept
        for request in world.requests
    )


def check_end(world: World) -> None:
    """Each request has ended as its row of the failure table says.

    Raises:
        Violation: TERMINATES, with what the client got and should not have.
    """
    for request in world.requests:
        if request.outcome == FINISHED:
            if request.shown != world.scenario.answer:
                raise Violation("ONCE", f"a finished answer of {request.shown} tokens, not {world.scenario.answer}")
        elif request.outcome == ERROR and not _may_fail(world, request):
            raise Violation("TERMINATES", f"the client got {OUTCOMES[ERROR]}, though the request could go on")


def _may_fail(world: World, request: Request) -> bool:
    """An error is for who lost the prompt KV, or for whose rows D will never have room, and whose P did not go on to the end."""
    if not request.shown:
        return bool(request.kv_cut)  # nothing was handed over: an error as without a handoff
    p, d = world.p(request), world.d(request)
    # D is alone too when P has given up for want of the KV, which is no reason not to finish the answer before
    alone = d is not None and d.alone and not (p is not None and p.abort_reason == "TRANSFER")
    p_could_go_on = world.blame < 2 and world.scenario.p_can_finish and not alone
    return bool(request.kv_cut or request.given_up) and not p_could_go_on
