"""One streamed answer as its client saw it: when each token came, and what follows from that. No I/O, no clock.

Raw event times, since a mean per token hides a stall.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics

from rig import client


# What the client waits for at the switch, one after the other, and the milestone that ends it.
GAP_PARTS = {
    "until the KV is here": "kv_arrived",
    "until P has stopped": "draining",
    "until D has replayed": "committed",
    "until D's own token": "first_own_token",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """One answer.

    Attributes:
        sent_at: client's monotonic clock, in seconds.
        at: when each token came, on the same clock.
        ids: the tokens.
        handoff: the server's record, empty if it wrote none.
    """

    sent_at: float
    at: tuple[float, ...]
    ids: tuple[int, ...]
    handoff: dict

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first token."""
        return self.at[0] - self.sent_at

    @property
    def ttft_parts(self) -> dict[str, float]:
        """The TTFT in parts, in seconds: P from its scheduler's receipt of the request to t1; how much later than D's that
        receipt was, and t1's way to D; until D relays it; and all before and after, in router, tokenizer and HTTP. Empty
        where t1 wasn't relayed."""
        at_ms = self.handoff.get("at_ms", {})
        if "first_relay" not in at_ms or "arrived" not in at_ms:
            return {}
        arrived, opened, relayed = (at_ms[name] / 1e3 for name in ("arrived", "opened", "first_relay"))
        on_p = self.handoff["prefill_ms"] / 1e3
        return {
            "P, receipt to t1": on_p,
            "before its receipt, and t1's way": opened - arrived - on_p,
            "until D relays it": relayed - opened,
            "outside the schedulers": self.ttft - (relayed - arrived),
        }

    @property
    def gaps(self) -> list[float]:
        """Seconds between each token and the next."""
        return [b - a for a, b in itertools.pairwise(self.at)]

    @property
    def boundary(self) -> int | None:
        """Tokens that the prefill worker made, if the decode worker took over then and went on."""
        if self.handoff.get("outcome") != "committed" or self.handoff["boundary"] >= len(self.at):
            return None
        return self.handoff["boundary"]

    @property
    def boundary_gap(self) -> float | None:
        """Seconds between the prefill worker's last token and the decode worker's first."""
        return None if self.boundary is None else self.gaps[self.boundary - 1]

    @property
    def gap_parts(self) -> dict[str, float]:
        """The gap at the switch on D, from the last token relayed to the first of its own, in parts that follow each other,
        in seconds. Empty where there was none."""
        at_ms = self.handoff.get("at_ms", {})
        if self.boundary is None or "first_own_token" not in at_ms:
            return {}
        parts, before = {}, at_ms["last_relay"]
        for what, milestone in GAP_PARTS.items():
            parts[what] = max(0.0, at_ms[milestone] - before) / 1e3
            before = max(before, at_ms[milestone])
        return parts

    @property
    def itl(self) -> float:
        """Median of the other gaps, in seconds."""
        gaps = self.gaps
        if self.boundary is not None:
            del gaps[self.boundary - 1]
        return statistics.median(gaps)

    @property
    def decode_gaps(self) -> list[float]:
        """Seconds between tokens that both come from the worker that decodes to the end."""
        if self.handoff.get("outcome") == "finished":
            return []
        return self.gaps[self.boundary or 0 :]


def of(answer: client.Answer) -> Request:
    """What `rig.client` wrote down of a request, also of one that was cut short."""
    return Request(
        sent_at=answer.sent_at,
        at=tuple(event.at for event in answer.events for _ in event.ids),
        ids=tuple(answer.ids),
        handoff=answer.meta_info.get("handoff") or {},
    )
