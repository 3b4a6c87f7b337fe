"""What came of the requests that one arm answered without another's in between, and its JSON."""

from __future__ import annotations

import dataclasses

from benchmark.handoff.answer import Request

WHOLE, CANCELLED, ERROR = "whole", "cancelled", "error"
DIGITS = 5  # of a second


@dataclasses.dataclass(frozen=True)
class Sample:
    """One request and its end.

    Attributes:
        request: what the client saw; tokens may be missing if it isn't WHOLE.
        number: its place in the plan; the same for every arm.
        prompt_tokens, new_tokens: what was asked.
        prompt_bucket, output_bucket: names of the buckets.
        ended: WHOLE, CANCELLED (by the client) or ERROR.
        ended_at: client's monotonic clock, in seconds.
        due_at: when it should have been sent, on the same clock; None in a closed loop.
        error: what the client was told.
    """

    request: Request
    number: int
    prompt_tokens: int
    new_tokens: int
    prompt_bucket: str
    output_bucket: str
    ended: str
    ended_at: float
    due_at: float | None = None
    error: str = ""

    @property
    def late(self) -> float:
        """Seconds by which the client itself sent it too late."""
        return 0.0 if self.due_at is None else self.request.sent_at - self.due_at


@dataclasses.dataclass(frozen=True)
class Block:
    """
    Attributes:
        case, arm, router: names.
        plan: seed of its requests; blocks of one case and plan were asked the same.
        kept: what a worker still held after the last request, in words; empty if nothing.
        client_cores: processor seconds of the client a second. Near 1, the client itself is the bottleneck.
        load: the client's machine's load average over the last minute, at the end; None: not written down.
    """

    case: str
    arm: str
    router: str
    plan: str
    samples: tuple[Sample, ...]
    kept: tuple[str, ...] = ()
    client_cores: float = 0.0
    load: float | None = None

    @property
    def seconds(self) -> float:
        """From the first request sent to the end of the last one."""
        return max(s.ended_at for s in self.samples) - min(s.request.sent_at for s in self.samples)

    @property
    def requests_per_s(self) -> float:
        """Whole answers a second."""
        return sum(s.ended == WHOLE for s in self.samples) / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens that reached clients, of requests that ended in no error, a second."""
        return sum(len(s.request.ids) for s in self.samples if s.ended != ERROR) / self.seconds


def to_json(block: Block) -> dict:
    """The block with times in seconds since its first request was sent."""
    zero = min(s.request.sent_at for s in block.samples)
    fields = {f.name: getattr(block, f.name) for f in dataclasses.fields(block) if f.name != "samples"}
    return fields | {"samples": [_sample_to_json(s, zero) for s in block.samples]}


def from_json(data: dict) -> Block:
    """The inverse of `to_json`, with the first request at 0."""
    samples = tuple(_sample_from_json(s) for s in data["samples"])
    return Block(**data | {"samples": samples, "kept": tuple(data["kept"])})


def _sample_to_json(sample: Sample, zero: float) -> dict:
    def since(at: float | None) -> float | None:
        return None if at is None else round(at - zero, DIGITS)

    fields = {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample) if f.name != "request"}
    fields |= {"ended_at": since(sample.ended_at), "due_at": since(sample.due_at)}
    one = sample.request
    fields["request"] = {
        "sent_at": since(one.sent_at),
        "at": [since(at) for at in one.at],
        "ids": list(one.ids),
        "handoff": one.handoff,
    }
    return fields


def _sample_from_json(data: dict) -> Sample:
    one = data["request"]
    request = Request(one["sent_at"], tuple(one["at"]), tuple(one["ids"]), one["handoff"])
    return Sample(**data | {"request": request})
