"""What is swept, and the figures of one cell of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Dict, List, Sequence, Tuple

from benchmark.handoff.quantile import quantile

from ..costs import Costs, Network
from ..load import Load, Point, load
from ..workload import HANDOFF, PD

# The arms: PD; the handoff as the product admits it; every request bridged, whatever waits.
ADMITTED, EVERY = "handoff", "handoff of every request"
ARMS: Dict[str, Tuple[str, bool]] = {PD: (PD, True), ADMITTED: (HANDOFF, True), EVERY: (HANDOFF, False)}

LOADS = (0.3, 0.7, 0.9, 1.1, 1.3)  # of the prefill workers' capacity
LINKS = (3.0, 6.0, 12.5, 50.0)  # GB/s of each prefill worker
PROMPTS = (1024, 4096, 16384, 32768)  # tokens

# D as the bottleneck: places in its batch, at a load that it can't keep up with.
PLACES = (8, 32)
SHORT_PROMPT, LONG_ANSWERS = 512, (512, 1024)  # tokens


@dataclass(frozen=True)
class Cell:
    """One point of the sweep. ``link`` in GB/s, ``prompt`` in tokens, ``places`` in D's batch."""

    costs: Costs
    load: float
    link: float
    prompt: int
    answers: Tuple[int, int] = (64, 512)
    places: int = 256
    requests: int = 100

    @property
    def point(self) -> Point:
        return Point(
            self.costs,
            replace(Network.of_report(), kv_rate=self.link * 1e9),
            share=self.load,
            prompts=(self.prompt,),
            answers=self.answers,
            max_running=self.places,
            requests=self.requests,
        )

    @property
    def name(self) -> Dict[str, object]:
        return {
            "costs": self.costs.name, "load": self.load, "link": self.link, "prompt": self.prompt,
            "answers": list(self.answers), "places": self.places,
        }  # fmt: skip


def cells(costs: Costs, requests: int) -> List[Cell]:
    """The whole grid of one accelerator."""
    return [
        Cell(costs, share, link, prompt, requests=requests)
        for prompt, link, share in itertools.product(PROMPTS, LINKS, LOADS)
    ]


def decode_bound(costs: Costs, requests: int) -> List[Cell]:
    """Many short prompts with long answers, and few places in D's batch."""
    return [
        Cell(costs, 0.7, link, SHORT_PROMPT, LONG_ANSWERS, places, requests)
        for places, link in itertools.product(PLACES, (3.0, 12.5))
    ]


def figures(arm: Load) -> Dict[str, float]:
    """Of one arm: times in ms, but ``tokens_per_s``."""
    ms = lambda value: round(value * 1e3, 2)
    return {
        "ttft_mean": ms(fmean(arm.ttft)),
        "ttft_p50": ms(quantile(arm.ttft, 0.5)),
        "ttft_p95": ms(quantile(arm.ttft, 0.95)),
        **({"gap_p50": ms(quantile(arm.gap, 0.5)), "gap_p95": ms(quantile(arm.gap, 0.95))} if arm.gap else {}),
        "largest_p95": ms(quantile(arm.largest, 0.95)),
        "latency_mean": ms(fmean(arm.latency)),
        "tokens_per_s": round(arm.tokens_per_s, 3),
    }


def compared(pd: Load, arm: Load) -> Dict[str, float]:
    """What an arm gains over PD: ms of a request's TTFT, mean and least, and of its last token; and the ratio of
    tokens per second. ``bridged``: the share of requests for which P made more than t1."""
    saved = [before - after for before, after in zip(pd.ttft, arm.ttft, strict=True)]
    refused = sum(n for reason, n in arm.count.items() if reason.startswith("not bridged: "))
    ordinary = sum(n for reason, n in arm.count.items() if reason.startswith("ordinary: "))
    return {
        "ttft_saved_mean": round(fmean(saved) * 1e3, 2),
        "ttft_saved_least": round(min(saved) * 1e3, 2),
        "latency_saved_mean": round((fmean(pd.latency) - fmean(arm.latency)) * 1e3, 2),
        "throughput": round(arm.tokens_per_s / pd.tokens_per_s, 5),
        "bridged": round(1 - (refused + ordinary) / len(arm.ttft), 4),
    }


def result(cell: Cell) -> Dict[str, object]:
    """The cell's name, the figures of each arm, and what each gains over PD."""
    runs = {name: load(cell.point, mode, admits) for name, (mode, admits) in ARMS.items()}
    arms = {name: figures(run) for name, run in runs.items()}
    for name in (ADMITTED, EVERY):
        arms[name] |= compared(runs[PD], runs[name])
    return {**cell.name, "arms": arms}


def losses(results: Sequence[Dict], arm: str, ttft: float = 0.01, throughput: float = 0.98) -> List[Dict]:
    """Cells in which the mean TTFT is more than the share ``ttft`` above PD's, or tokens per second are below the
    share ``throughput`` of PD's."""
    return [
        each
        for each in results
        if each["arms"][arm]["ttft_saved_mean"] < -ttft * each["arms"][PD]["ttft_mean"]
        or each["arms"][arm]["throughput"] < throughput
    ]
