"""One state of everything: two machines per request, the network, both workers, the client.

Plain values throughout, so that a state is a tuple and a copy of it is cheap.
"""

from __future__ import annotations

from typing import Tuple

from .machines import Facts, Machines, Violation
from .scenario import Scenario

# The prompt KV's transfer. DRAINING: given up, but P's writes may still be under way. ENDING, then SILENT: the same,
# given up by P alone, of which the transfer tells D nothing.
KV_ACTIVE, KV_DRAINING, KV_FAILED, KV_DONE, KV_ENDING, KV_SILENT = range(6)
# Where D has the request.
QUEUE, OWN, ORDINARY, GONE = range(4)
# What the client has got.
RUNNING, FINISHED, ERROR, ABORTED, LOST = range(5)
OUTCOMES = ("nothing yet", "the whole answer", "an error", "no more: it left", "a lost connection")


class Request:
    """
    p, d: ids of the machines, 0 for none (not taking part, or lost with its process)
    d_peer: D's session knows where P is
    p_log: entries that P has ever logged
    p_rows, d_rows: KV rows written behind the prompt's
    d_rounds: ends of the replay rounds in flight, oldest first
    p_step: token that the step in flight on P will give, 0 for none
    p_kept, d_kept: the worker holds the request's rows, slots and room
    shown: tokens that the client has got
    kv, kv_seen: the transfer, and whether D has looked at it since it was done
    given_up: D has ended the request for want of slots that nobody else will free
    kv_cut: the transfer failed before the prompt KV was there
    """

    FIELDS = (
        "p", "d", "d_peer", "p_log", "p_rows", "d_rows", "p_step", "p_kept", "d_kept", "shown", "kv", "kv_seen",
        "place", "outcome", "given_up", "kv_cut", "d_rounds",
    )  # fmt: skip
    __slots__ = FIELDS

    def __init__(self, values: Tuple[int, ...]) -> None:
        (
            self.p, self.d, self.d_peer, self.p_log, self.p_rows, self.d_rows, self.p_step, self.p_kept, self.d_kept,
            self.shown, self.kv, self.kv_seen, self.place, self.outcome, self.given_up, self.kv_cut, self.d_rounds,
        ) = values  # fmt: skip

    def pack(self) -> Tuple[int, ...]:
        return (
            self.p, self.d, self.d_peer, self.p_log, self.p_rows, self.d_rows, self.p_step, self.p_kept, self.d_kept,
            self.shown, self.kv, self.kv_seen, self.place, self.outcome, self.given_up, self.kv_cut, self.d_rounds,
        )  # fmt: skip


class World:
    """
    to_p, to_d: messages under way, in order
    late: (way, message) that have left it, to come whenever
    channel, p_awake, d_awake, p_pool, d_pool, d_slot: 0 while that is out of order
    p_tick, d_tick: the clock has moved and that side has not looked yet
    faults: how many are left
    blame: 0 nothing has gone wrong, or with single messages alone; 1 besides, one thing after which P can go on; 2 more
    """

    FIELDS = (
        "to_p", "to_d", "late", "channel", "p_awake", "d_awake", "p_pool", "d_pool", "d_slot", "p_tick", "d_tick",
        "faults", "blame",
    )  # fmt: skip
    __slots__ = ("scenario", "machines", "requests", *FIELDS)

    def __init__(self, scenario: Scenario, machines: Machines, packed: Tuple) -> None:
        self.scenario, self.machines = scenario, machines
        (
            requests, self.to_p, self.to_d, self.late, self.channel, self.p_awake, self.d_awake, self.p_pool,
            self.d_pool, self.d_slot, self.p_tick, self.d_tick, self.faults, self.blame,
        ) = packed  # fmt: skip
        self.requests = [Request(values) for values in requests]

    def pack(self) -> Tuple:
        return (
            tuple([request.pack() for request in self.requests]), self.to_p, self.to_d, self.late, self.channel,
            self.p_awake, self.d_awake, self.p_pool, self.d_pool, self.d_slot, self.p_tick, self.d_tick, self.faults,
            self.blame,
        )  # fmt: skip

    # ------------------------------------------------------------------ the machines
    def p(self, request: Request) -> Facts:
        return self.machines.facts[request.p]

    def d(self, request: Request) -> Facts:
        return self.machines.facts[request.d]

    def call_p(self, request: Request, method: str, *args: object) -> object:
        """``method`` of P's machine; what it says goes on its way."""
        request.p, said, answer = self.machines.call(request.p, method, *args)
        request.p_log = max(request.p_log, len(self.p(request).log))
        if said and self.channel:
            self.to_d += said
        return answer

    def call_d(self, request: Request, method: str, *args: object) -> object:
        request.d, said, answer = self.machines.call(request.d, method, *args)
        if said and self.channel and request.d_peer:
            self.to_p += said
        return answer

    # ------------------------------------------------------------------ SessionTable.handle
    def deliver_to_p(self, sent: int) -> None:
        request = self.requests[self.machines.sent[sent].request]
        if request.p:  # else no such session: counted and dropped
            before = request.p
            self.call_p(request, "receive", sent)
            self._fenced(sent, before, request.p)

    def deliver_to_d(self, sent: int) -> None:
        request = self.requests[self.machines.sent[sent].request]
        if request.d:
            before = request.d
            if self.machines.is_open(sent):
                request.d_peer = 1  # before the replies go out
            self.call_d(request, "receive", sent)
            self._fenced(sent, before, request.d)

    def _fenced(self, sent: int, before: int, after: int) -> None:
        """A message of an older term changes nothing. Ack, Commit and Abort have none: they stay true."""
        message, facts = self.machines.sent[sent], self.machines.facts[before]
        if message.term < facts.term and before != after and self.machines.has_term(sent):
            name = type(message.message).__name__
            raise Violation("FENCED", f"{facts.role} of term {facts.term} obeyed {name} of term {message.term}")

    def tick_p(self) -> None:
        self.p_tick = 0
        for request in self.requests:
            if request.p and request.p_kept:
                self.call_p(request, "tick")

    def tick_d(self) -> None:
        self.d_tick = 0
        for request in self.requests:
            if request.d and request.place == QUEUE:
                self.call_d(request, "tick")


def first_world(scenario: Scenario, machines: Machines) -> World:
    """Every prompt is computed, t1 is sampled and logged, the transfer has begun, D's offer was made."""
    requests, to_d = [], ()
    for number in range(scenario.requests):
        room = 7  # the same for both: the nonce tells them apart
        p, said = 0, ()
        if scenario.accepts:
            p, said = machines.prefill(number, room, scenario.budget, scenario.p_end(1))
        d = machines.decode(number, room, scenario.seal_lag, scenario.rounds, scenario.ahead, scenario.in_flight)
        taking_part = int(p != 0)
        requests.append((p, d, 0, taking_part, 0, 0, 0, taking_part, 1, 0, KV_ACTIVE, 0, QUEUE, RUNNING, 0, 0, ()))
        to_d += said
    return World(scenario, machines, (tuple(requests), (), to_d, (), 1, 1, 1, 1, 1, 1, 0, 0, scenario.faults, 0))
