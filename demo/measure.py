"""Figures of what a client saw, from the times at which tokens came. No I/O, no clock."""

import dataclasses
import statistics
from collections.abc import Sequence

UNIFIED, PREFILL, DECODE = "unified", "prefill", "decode"  # workers that make tokens


@dataclasses.dataclass(frozen=True)
class Token:
    """An output token: its id, the worker that made it, and when the client had it, in seconds since it sent the request."""

    at: float
    id: int
    worker: str


@dataclasses.dataclass(frozen=True)
class Run:
    """One request to one arm.

    Attributes:
        arm: name of the arm.
        prompt: name of the prompt.
        prompt_tokens: its length with the chat template, in tokens.
        tokens: the answer, in order; not empty.
        text: the answer.
        ended_at: seconds from sending the request until the answer had ended.
        spans: what the workers did meanwhile, by name, as (start, end) in seconds since the request was sent.
        handoff: the server's own record of the handoff, empty if it wrote none.
    """

    arm: str
    prompt: str
    prompt_tokens: int
    tokens: tuple[Token, ...]
    text: str
    ended_at: float
    spans: dict[str, list[tuple[float, float]]] = dataclasses.field(default_factory=dict)
    handoff: dict = dataclasses.field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        """The answer's token ids."""
        return [token.id for token in self.tokens]

    @property
    def handed_off(self) -> bool:
        """Whether the decode worker took over after tokens that the prefill worker had bridged."""
        return self.handoff.get("outcome") == "committed" and self.handoff["tokens_bridged"] > 0


@dataclasses.dataclass(frozen=True)
class Figures:
    """One request's figures, in milliseconds; None where there's nothing to measure.

    Attributes:
        ttft_ms: from sending the request to the first token.
        largest_gap_ms: longest time between a token and the next.
        switch_gap_ms: time between the last token of the prefill worker and the first of the decode worker.
        median_itl_ms: median time between a token and the next.
        end_to_end_ms: from sending the request to the end of the answer.
        tokens_bridged: tokens after the first that the prefill worker made.
    """

    ttft_ms: float
    largest_gap_ms: float | None
    switch_gap_ms: float | None
    median_itl_ms: float | None
    end_to_end_ms: float
    tokens_bridged: int


def makers(count: int, boundary: int | None) -> list[str]:
    """Return who made each of `count` tokens, when the prefill worker made those up to number `boundary`. None: all."""
    return [PREFILL if boundary is None or number <= boundary else DECODE for number in range(1, count + 1)]


def figures(run: Run) -> Figures:
    """Return the figures of one request."""
    pairs = list(zip(run.tokens, run.tokens[1:]))
    gaps = [(b.at - a.at) * 1e3 for a, b in pairs]
    switches = [gap for gap, (a, b) in zip(gaps, pairs) if (a.worker, b.worker) == (PREFILL, DECODE)]
    bridged = sum(token.worker == PREFILL for token in run.tokens) - 1
    return Figures(
        ttft_ms=run.tokens[0].at * 1e3,
        largest_gap_ms=max(gaps, default=None),
        switch_gap_ms=switches[0] if switches else None,
        median_itl_ms=statistics.median(gaps) if gaps else None,
        end_to_end_ms=run.ended_at * 1e3,
        tokens_bridged=max(0, bridged),
    )


def summary(each: Sequence[Figures]) -> Figures:
    """Return an arm's figures: the median over its requests, but of the largest gap the largest."""

    def median(name: str) -> float | None:
        values = [value for one in each if (value := getattr(one, name)) is not None]
        return statistics.median(values) if values else None

    medians = {field.name: median(field.name) for field in dataclasses.fields(Figures)}
    largest = max((one.largest_gap_ms for one in each if one.largest_gap_ms is not None), default=None)
    return Figures(**medians | {"largest_gap_ms": largest})


def equal(run: Run, reference: Run) -> bool:
    """Return whether both answers are the same, token by token and as text."""
    return run.ids == reference.ids and run.text == reference.text


def most_typical(by_prompt: dict[str, list[Run]]) -> str:
    """Return the prompt whose TTFT and gap at the switch are nearest to the medians of its arms."""

    def shape(run: Run) -> list[float]:
        one = figures(run)
        return [one.ttft_ms, one.switch_gap_ms or 0.0]

    arms = zip(*([shape(run) for run in runs] for runs in by_prompt.values()))
    medians = [[statistics.median(values) for values in zip(*shapes)] for shapes in arms]

    def distance(prompt: str) -> float:
        shapes = map(shape, by_prompt[prompt])
        return sum(abs(a - b) / b for mine, typical in zip(shapes, medians) for a, b in zip(mine, typical) if b)

    return min(by_prompt, key=distance)
