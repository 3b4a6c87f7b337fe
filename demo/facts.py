"""What the workers did during a request, as spans on the client's clock.

Three clocks meet here: the client's and the transfer plugin's are one machine's `time.monotonic()`, the handoff record
is in seconds since the epoch.
"""

import dataclasses
import time

PROMPT, TRANSFER, REPLAY, SEAL, COMMIT = "prompt", "transfer", "replay", "seal", "commit"
Span = tuple[float, float]  # start and end, in seconds since the request was sent


@dataclasses.dataclass(frozen=True)
class Clock:
    """Turns times of the workers into seconds since the request was sent.

    Attributes:
        sent_at: `time.monotonic()` seconds at which it was sent.
        epoch: seconds since the epoch at which `time.monotonic()` was 0.
    """

    sent_at: float
    epoch: float = dataclasses.field(default_factory=lambda: time.time() - time.monotonic())

    def of_monotonic(self, at: float) -> float:
        return at - self.sent_at

    def of_epoch(self, at: float) -> float:
        return at - self.epoch - self.sent_at


def of_transfer(events: list[dict], rid: str, clock: Clock) -> dict[str, list[Span]]:
    """Return the spans of the prompt's forward and of each write of its KV to D.

    Args:
        events: `rig.hold.Hold.events()`, of a time with no other request under way.
        rid: the request.
    """
    mine = [event for event in events if event.get("rid") == rid]
    queued = [clock.of_monotonic(event["at"]) for event in mine if event["what"] == "queued" and event["last"]]
    done = [clock.of_monotonic(event["at"]) for event in mine if event["what"] == "done"]
    if not queued or not done:
        raise ValueError(f"the transfer plugin noted no whole transfer of request {rid}: {mine}")
    # writes carry no rid, so it's their time that tells whose they are
    at = {what: [clock.of_monotonic(event["at"]) for event in events if event["what"] == what] for what in ("start", "end")}
    writes = [(start, end) for start, end in zip(at["start"], at["end"]) if 0 <= start <= end <= done[0]]
    return {PROMPT: [(0.0, queued[0])], TRANSFER: writes}


def of_handoff(record: dict, clock: Clock) -> dict[str, list[Span]]:
    """Return the spans of replay, seal and commit from `meta_info["handoff"]`; nothing if D didn't take over."""
    if record.get("outcome") != "committed":
        return {}

    def at(ms: float) -> float:
        return clock.of_epoch(record["started_at"] + ms / 1e3)

    marks = record["at_ms"]
    committed = marks["committed"]
    # sealed with nothing left to replay, D commits at once
    sealed = marks.get("draining", committed)
    return {
        REPLAY: [(at(start), at(end)) for start, end, _ in record["rounds"]],
        SEAL: [(at(marks.get("sealing", sealed)), at(sealed))],
        COMMIT: [(at(committed), at(committed))],
    }
