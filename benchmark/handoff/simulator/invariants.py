"""What must always hold, looked at from outside the machines, for every request."""

from __future__ import annotations

from typing import Dict, Sequence

from .workload import Request


class Violation(AssertionError):
    """An invariant of the protocol does not hold; names it first."""


class Slots:
    """One worker process's KV rows. FREED-ONCE: what is freed was taken and not yet freed."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size, self.free = name, size, size
        self._held: Dict[int, int] = {}

    def take(self, request: Request, rows: int) -> bool:
        """False, and nothing taken, when there are too few."""
        if rows > self.free:
            return False
        self.free -= rows
        self._held[request.id] = self._held.get(request.id, 0) + rows
        return True

    def give_back(self, request: Request, rows: int) -> None:
        held = self._held.get(request.id, 0)
        if rows < 0 or rows > held:
            raise Violation(f"FREED-ONCE: {self.name} frees {rows} rows of {request}, it holds {held}")
        self.free += rows
        if rows == held:
            self._held.pop(request.id, None)
        else:
            self._held[request.id] = held - rows

    def release(self, request: Request) -> None:
        """All rows of a request, and its place in the worker's tables. To be called once."""
        if request.id not in self._held:
            raise Violation(f"FREED-ONCE: {self.name} has nothing of {request} to free")
        if request.transfer is not None and request.transfer.writing:
            raise Violation(f"IMMUTABLE: {self.name} frees {request} while its KV is on the wire")
        self.give_back(request, self._held[request.id])

    def holds(self, request: Request) -> int:
        return self._held.get(request.id, 0)

    def check_empty(self) -> None:
        if self._held or self.free != self.size:
            raise Violation(f"FREED-ONCE: {self.name} still holds rows of requests {list(self._held)[:5]}")


def seen(request: Request, start: int, tokens: Sequence[int], now: float) -> None:
    """ONCE: the client gets tokens from ``start`` on. Each index once, in order, equal to the oracle."""
    if request.outcome is not None:
        raise Violation(f"ONCE: {request} has ended and gets token {start}")
    if start != request.seen + 1:
        raise Violation(f"ONCE: {request} gets token {start}")
    for index, token in enumerate(tokens, start):
        if token != request.token(index):
            raise Violation(f"ONCE: token {index} of {request} is {token}, the oracle says {request.token(index)}")
    request.seen += len(tokens)
    if request.seen > request.length:
        raise Violation(f"ONCE: {request} gets more tokens than its answer has")
    if request.first_at is None:
        request.first_at = now
    request.last_at = now


def own_tokens(request: Request, basis: int, count: int, now: float) -> None:
    """D's own ``count`` tokens after ``basis``, its first input. Each follows from the one before,
    so looking at the first is looking at all of them."""
    if request.token(request.seen) != basis:
        raise Violation(f"ONCE: D goes on with {request} from {basis}, the oracle says {request.token(request.seen)}")
    if count > 0:
        seen(request, request.seen + 1, (request.next_token(basis),), now)
        request.seen += count - 1
        if request.seen > request.length:
            raise Violation(f"ONCE: {request} gets more tokens than its answer has")


def taken_over(request: Request, boundary: int, p_may_generate: bool) -> None:
    """ONE-GENERATOR and the KV's completeness, at the moment D becomes the generator."""
    if p_may_generate:
        raise Violation(f"ONE-GENERATOR: D takes {request} over, P may still generate")
    if request.owner:
        raise Violation(f"ONE-GENERATOR: {request} is taken over twice")
    if boundary != request.seen:
        raise Violation(f"ONCE: {request} is taken over at {boundary}")
    if request.d_rows != request.prompt + boundary - 1:
        raise Violation(f"KV: {request} has {request.d_rows} rows at boundary {boundary}")
    request.owner = True


def p_generates(request: Request) -> None:
    """ONE-GENERATOR: P launches a bridge step."""
    if request.owner:
        raise Violation(f"ONE-GENERATOR: P generates for {request}, which D has taken over")


def prefix(request: Request) -> None:
    """PREFIX: D's log holds nothing that P's, of the same term, does not."""
    p, d = request.p_session.machine, request.d_session.machine
    if d.alone or p.term != d.term:
        return
    if len(d.log) > len(p.log) or p.log.slice(1, len(d.log) + 1) != d.log.slice(1, len(d.log) + 1):
        raise Violation(f"PREFIX: D's log of {request} is no prefix of P's")


def ended_well(request: Request) -> None:
    """TERMINATES: nothing is left to happen, so every request must have ended on all sides."""
    if request.outcome is None:
        raise Violation(f"TERMINATES: {request} never ends")
    if request.outcome == "finished" and request.seen != request.length:
        raise Violation(f"ONCE: {request} finished short")
    if not (request.p_done and request.d_done):
        raise Violation(f"TERMINATES: {request}: P freed {request.p_done}, D freed {request.d_done}")
