"""What a run of the checker is let loose on: one or two requests, and how much may go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import FrozenSet, Optional

ONE_MESSAGE = ("drop", "duplicate", "delay")
NETWORK = (*ONE_MESSAGE, "channel lost")
STALLS = ("P stalls", "D stalls")
TRANSFER = ("KV fails", "KV fails on P", "KV fails on D")
SLOTS = ("P has no KV slot", "D's KV pool is full", "D has no running slot")
P_STANDS = ("P has no KV slot for good",)
REPLAY = ("round fails", "round fails for good")
ENDS = ("client aborts", "P aborts", "P restarts", "D restarts")
FAULTS = frozenset(NETWORK + STALLS + TRANSFER + SLOTS + P_STANDS + REPLAY + ENDS)
# Each of these leaves P able to finish the answer, also when one message is lost, doubled or late.
P_GOES_ON = frozenset(TRANSFER + SLOTS + REPLAY)


@dataclass(frozen=True)
class Scenario:
    """
    Attributes:
        answer: length of the whole answer, in tokens; its last token ends it by D's rules.
        budget: tokens that P may log.
        p_sees: how P reads the answer's end: "TOKEN", "LENGTH", or None for one that only D sees (a stop string).
        p_sees_at: the token at which it does, where its rules are not D's; 0 for the answer's last.
        faults: how many may happen.
        kinds: which ones.
        requests: 1, or 2 that share the channel, the schedulers and D's one running slot.
        overlap: P launches a step before it has the result of the one before.
        accepts: P takes part; else D's offer is never answered.
        ahead: entries that P may still log when D asks it to stop; 0: it stops at once.
        limits: how many tokens a replay round may have, as D's pool allows.
        in_flight: replay rounds launched before the first one's result is there.
        prompts: P may turn to other prompts at any time, and stop of itself before.
    """

    name: str
    answer: int = 6
    budget: int = 4
    p_sees: Optional[str] = "TOKEN"
    p_sees_at: int = 0
    faults: int = 1
    kinds: FrozenSet[str] = FAULTS
    requests: int = 1
    overlap: bool = True
    accepts: bool = True
    limits: tuple = (1, 9)
    seal_lag: int = 1
    ahead: int = 0
    rounds: int = 2
    in_flight: int = 1
    prompts: bool = False

    @property
    def p_can_finish(self) -> bool:
        """P may log the whole answer: neither its budget nor its rules end it sooner."""
        ends_early = self.p_sees is not None and (self.p_sees_at or self.answer) < self.answer
        return self.budget >= self.answer and not ends_early

    def p_end(self, token: int) -> Optional[str]:
        """Why P's generation ends with ``token``; tokens are numbered as the answer is."""
        return self.p_sees if self.p_sees is not None and token >= (self.p_sees_at or self.answer) else None


SLOW = frozenset(ONE_MESSAGE[1:] + STALLS)  # what makes states many: something comes at any later time
QUICK = FAULTS - SLOW
SOME = frozenset({"drop", "channel lost", "KV fails", "client aborts", "P restarts", "D restarts"})

# As `make check-protocol` runs it.
FULL = (
    Scenario("log of 4, one fault of any kind"),
    Scenario("log of 4, two faults, but no stall and nothing late", faults=2, kinds=QUICK),
    Scenario("log of 2, two faults of any kind", budget=2, faults=2),
    Scenario("log of 3, two messages lost, doubled or late", budget=3, faults=2, kinds=frozenset(ONE_MESSAGE), limits=(9,)),
    Scenario("P can finish the answer, one fault of any kind", answer=4),
    Scenario("P can finish the answer, two faults, but no stall and nothing late", answer=3, faults=2, kinds=QUICK),
    Scenario("P can finish a short answer, two faults of any kind", answer=2, budget=2, faults=2),
    Scenario("only D sees the end, one fault of any kind", answer=3, p_sees=None),
    Scenario("only P sees an end, one fault of any kind", answer=3, p_sees_at=2),
    Scenario("P's end is the length, two faults, but no stall and nothing late", answer=3, budget=3, p_sees="LENGTH", faults=2, kinds=QUICK),
    Scenario("the first token ends the answer, two faults of any kind", answer=1, budget=1, faults=2),
    Scenario("without overlap, one fault of any kind", budget=3, overlap=False),
    Scenario("sealed 1 ahead, one fault of any kind", ahead=1, seal_lag=2),
    Scenario("sealed 2 ahead, two faults, but no stall and nothing late", budget=3, ahead=2, faults=2, kinds=QUICK),
    Scenario("two rounds in flight, one fault of any kind", in_flight=2, limits=(1,), rounds=3),
    Scenario("two rounds in flight, sealed 2 ahead, two faults, but no stall and nothing late", budget=3, in_flight=2, seal_lag=0, ahead=2, faults=2, kinds=QUICK, limits=(1,)),
    Scenario("P turns to prompts, one fault of any kind", prompts=True),
    Scenario("P turns to prompts, two faults, but no stall and nothing late", budget=2, faults=2, kinds=QUICK, prompts=True),
    Scenario("P turns to prompts, sealed 1 ahead, one fault of any kind", budget=3, ahead=1, seal_lag=2, prompts=True),
    Scenario("P turns to prompts, two rounds in flight, one fault of any kind", budget=3, in_flight=2, limits=(1,), prompts=True),
    Scenario("P turns to prompts, only D sees the end, one fault of any kind", answer=3, p_sees=None, prompts=True),
    Scenario("P takes no part, two faults of any kind", accepts=False, faults=2),
    Scenario("two requests, P turns to prompts, logs of 2, no fault", answer=3, budget=2, requests=2, faults=0, prompts=True),
    Scenario("two requests, logs of 2, no fault", answer=3, budget=2, requests=2, faults=0),
    Scenario("two requests, logs of 1, one fault", answer=2, budget=1, requests=2, kinds=SOME, limits=(9,)),
)  # fmt: skip
# In `make test`, within a minute.
BOUNDED = (
    Scenario("log of 4, no fault", faults=0),
    Scenario("log of 3, one fault, but no stall and nothing late", budget=3, kinds=QUICK),
    Scenario("log of 2, one fault of any kind", budget=2),
    Scenario("P can finish the answer, one fault, but no stall and nothing late", answer=3, kinds=QUICK),
    Scenario("P can finish a short answer, one fault of any kind", answer=2, budget=2),
    Scenario("only D sees the end, one fault, but no stall and nothing late", answer=2, budget=3, p_sees=None, kinds=QUICK),
    Scenario("only P sees an end, one fault, but no stall and nothing late", answer=3, p_sees_at=2, kinds=QUICK),
    Scenario("the first token ends the answer, one fault of any kind", answer=1, budget=1),
    Scenario("sealed 1 ahead, one fault, but no stall and nothing late", ahead=1, budget=3, seal_lag=2, kinds=QUICK),
    Scenario("sealed 2 ahead, no fault", ahead=2, faults=0),
    Scenario("two rounds in flight, one fault, but no stall and nothing late", in_flight=2, seal_lag=0, limits=(1,), kinds=QUICK),
    Scenario("P turns to prompts, one fault, but no stall and nothing late", budget=3, kinds=QUICK, prompts=True),
    Scenario("P turns to prompts, log of 2, one fault of any kind", budget=2, prompts=True),
    Scenario("P turns to prompts, sealed 1 ahead, no fault", ahead=1, budget=3, seal_lag=2, faults=0, prompts=True),
    Scenario("P takes no part, two faults of any kind", accepts=False, faults=2),
    Scenario("two requests, logs of 1, no fault", answer=2, budget=1, requests=2, faults=0),
)  # fmt: skip
