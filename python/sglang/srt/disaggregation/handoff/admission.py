"""Which requests P bridges, how much of its time that may take, and when a bridge makes way for prompts.

t1 is logged and relayed for every request; what is admitted here is to decode on. All figures are P's own, learned
from its forwards and transfers; wrong ones cost time, never correctness.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Hashable, Optional, Sequence, Tuple

from .cost import LinearCost, StepCost

# What takes this many times as long as was expected has stalled: nobody knows when it ends.
OVERDUE = 2.0
# Seconds of idle time that P remembers: by so much bridge steps may put off a burst of prompts.
MOST_CREDIT = 1.0

ADMITTED = ""
TOO_MANY, PROMPTS_WAIT, DECODE_IS_BUSY = "too_many_bridges", "prompts_wait", "decode_is_busy"
REFUSALS = (TOO_MANY, PROMPTS_WAIT, DECODE_IS_BUSY)


@dataclass(frozen=True)
class Limits:
    """
    Attributes:
        tokens: that one request's log may have.
        requests: bridged at the same time.
        share: of P's time that bridge steps may take while prompts wait, 0 to 1, beyond the time that P was idle.
        weighs: whether gain and cost are looked at. Else every request is bridged, and none makes way.
    """

    tokens: int
    requests: int
    share: float
    weighs: bool = True

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"SGLANG_DISAGGREGATION_HANDOFF_MAX_BRIDGE_TOKENS must be at least 1, got {self.tokens}")
        if self.requests < 0:
            raise ValueError(f"SGLANG_DISAGGREGATION_HANDOFF_MAX_BRIDGES must be at least 0, got {self.requests}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"SGLANG_DISAGGREGATION_HANDOFF_PREFILL_SHARE must be between 0 and 1, got {self.share}")


class Transfers:
    """The prompt KV under way: one link, first come, first served.

    P looks between its forwards, so it sees a transfer's end late by up to a forward over prompts, which may last many
    times as long. What it learns are bounds: when a look still found the transfer under way, and when one did not.
    """

    def __init__(self) -> None:
        self._cost = LinearCost()
        self._queue: OrderedDict[Hashable, Tuple[int, float]] = OrderedDict()  # tokens, when queued
        self._since = 0.0  # the first of the queue is under way
        self._looked_at = 0.0  # and was so at the last look

    def begins(self, now: float, key: Hashable, tokens: int) -> None:
        """The rest of a request's KV, ``tokens`` long, is queued."""
        if not self._queue:
            self._since = now
        self._queue[key] = tokens, now

    def goes_on(self, now: float, key: Hashable) -> None:
        """A look has found it under way, or queued."""
        if key == next(iter(self._queue), None):
            self._looked_at = now

    def ends(self, now: float, key: Hashable, sent: bool) -> None:
        """A look has found it gone, or failed, which teaches nothing."""
        if key not in self._queue:
            return
        tokens, _ = self._queue.pop(key)
        if not sent:
            self._since = now
            return
        most = now - self._since
        least = min(most, max(0.0, self._looked_at - self._since))
        expected = self._cost.seconds(tokens)
        if expected is not None and least <= expected <= most:
            taken = expected
        else:
            # Too short an estimate is put right by the next look, too long a one lets a client wait for a forward.
            taken = least if expected is None else min(max(expected, least), most)
            self._cost.took(tokens, taken)
        self._since += taken
        if self._queue:
            # The link was idle until the next was queued, which may be before this end was seen.
            _, queued_at = next(iter(self._queue.values()))
            self._since = max(self._since, queued_at)

    def remaining(self, now: float, key: Hashable) -> Optional[float]:
        """Seconds until ``key``'s has gone; None if nothing is known of it, or no more."""
        ahead = 0.0
        for other, (tokens, _) in self._queue.items():
            seconds = self._cost.seconds(tokens)
            if seconds is None:
                return None
            ahead += seconds
            if other == key:
                stalled = self._looked_at - self._since > OVERDUE * ahead
                return None if stalled else max(0.0, ahead - (now - self._since))
        return None


class BridgeAdmission:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.transfers = Transfers()
        self._prompts, self._steps, self._bootstraps = LinearCost(), StepCost(), StepCost()
        self._credit = 0.0  # seconds of steps that P may take while prompts wait
        self._credit_at: Optional[float] = None
        self._worked = 0.0  # seconds, since then

    # ------------------------------------------------------------------ observations
    def prompts_took(self, tokens: int, seconds: float) -> None:
        """A forward over ``tokens`` of prompts."""
        self._prompts.took(tokens, seconds)
        self._worked += seconds

    def step_took(self, seconds: float) -> None:
        """A bridge step."""
        self._steps.took(1, seconds)
        self._worked += seconds

    def bootstrap_took(self, seconds: float, at_most: bool) -> None:
        """A prompt came, and within ``seconds`` D's word where its KV goes. ``at_most``: P was in a forward meanwhile, and
        saw it late."""
        usual = self._bootstraps.seconds(1)
        if not at_most or (usual is not None and seconds < usual):
            self._bootstraps.took(1, seconds)

    # --------------------------------------------------------------------- decisions
    def refusal(
        self,
        now: float,
        key: Hashable,
        waiting: int,
        bridging: int,
        worth: int,
        bootstrapping: Sequence[Tuple[int, float]] = (),
    ) -> str:
        """Why a request is not bridged, ``ADMITTED`` if it is.

        Gain: the tokens that P can make before the transfer ends, beside the prompts that it computes meanwhile. Cost: D
        replays them while its running requests wait; ``worth`` tokens pay for that.

        Args:
            waiting: tokens of the prompts that P computes next, those of forwards launched already with them.
            bridging: requests that are bridged now.
            worth: as D's offer says.
            bootstrapping: tokens of each prompt that waits for D, and for how long it has, in seconds.
        """
        if not self.limits.weighs:
            return ADMITTED
        if bridging >= self.limits.requests:
            return TOO_MANY
        tokens = self._tokens_until_sent(now, key, waiting)
        if tokens is None:
            return ADMITTED
        if waiting and tokens < 1:
            return PROMPTS_WAIT
        if tokens < worth:
            return DECODE_IS_BUSY
        if not waiting and self._prompts_come_before(now, key, max(1, worth), bootstrapping):
            return PROMPTS_WAIT
        return ADMITTED

    def makes_way(self, now: float, key: Hashable, sent: bool, tokens: int) -> bool:
        """Whether a bridge, whose KV has been ``sent`` or not, ends before a forward over ``tokens`` of prompts."""
        return self.limits.weighs and (sent or self.ends_within(now, key, tokens))

    def ends_within(self, now: float, key: Hashable, tokens: int) -> bool:
        """Whether the transfer will be over before a forward over ``tokens`` of prompts is: meanwhile P makes no token
        and hears nothing, so D had better be free to take over."""
        remaining, forward = self.transfers.remaining(now, key), self._prompts.seconds(tokens)
        return remaining is not None and forward is not None and remaining < forward

    def may_step(self, now: float, prompts_wait: bool) -> bool:
        """Whether a bridge step may come before the prompts that wait. In the long run steps take of P's time what
        prompts did not need, and ``share``: a P that is never idle loses no more than that."""
        if self._credit_at is not None:
            passed = now - self._credit_at
            gained = max(0.0, passed - self._worked) + self.limits.share * passed
            self._credit = min(MOST_CREDIT, self._credit + gained)
        self._credit_at, self._worked = now, 0.0
        step = self._steps.seconds(1) or 0.0
        if not prompts_wait or not self.limits.weighs:
            return True
        if self._credit < step:
            return False
        self._credit -= step
        return True

    # --------------------------------------------------------------------- internals
    def _prompts_come_before(
        self, now: float, key: Hashable, tokens: int, bootstrapping: Sequence[Tuple[int, float]]
    ) -> bool:
        """Whether a prompt that bootstraps will be ready before P has made ``tokens``, and outlast the transfer. D may have no
        room for it for long: one that is overdue is not counted on."""
        usual, step = self._bootstraps.seconds(1), self._steps.seconds(1)
        if usual is None or step is None:
            return False
        for length, waited in bootstrapping:
            ready = max(0.0, usual - waited)
            if (
                waited <= OVERDUE * usual
                and ready < tokens * step
                and self.ends_within(now + ready, key, length)
            ):
                return True
        return False

    def _tokens_until_sent(self, now: float, key: Hashable, waiting: int) -> Optional[float]:
        remaining, step = self.transfers.remaining(now, key), self._steps.seconds(1)
        prompts = self._prompts.seconds(waiting) if waiting else 0.0
        if remaining is None or prompts is None:
            return None
        if remaining <= prompts:
            return 0.0
        return (remaining - prompts) / step if step else None
