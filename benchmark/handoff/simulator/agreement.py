"""The simulator against the CPU rig: the same closed loops, measured and simulated.

Costs are what the rig shows of single steps with one request at a time; all else is a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from benchmark.handoff.quantile import quantile

from .costs import Model, Network
from .load import Point, load
from .report import aligned
from .workload import HANDOFF, PD

PROMPT, ANSWER, REQUESTS = 900, 64, 102  # tokens; of an arm


class TinyModel(Model):
    """The rig's model: 2,048 bytes of KV a token."""

    kv_token_bytes = 2048.0


@dataclass(frozen=True)
class RigCosts:
    """Steps of the tiny model on two cores of a Xeon at 2.80 GHz, in seconds, from `make side-by-side` of 2026-11-30.

    Attributes:
        prompt: a forward over 900 tokens: the unified server's TTFT with one request at a time, HTTP in it.
        step, step_more: a decode step of one request, and of each other in the batch: PD's ITL with 1 and with 8 clients.
        replay_round: of up to 30 tokens, median of the records' rounds with one request at a time.
    """

    name: str = "CPU rig"
    prompt: float = 0.0710
    step: float = 0.0104
    step_more: float = 0.0010
    replay_round: float = 0.0165
    chunk: int = 2048
    model: Model = TinyModel()

    def prefill(self, done: int, tokens: int) -> float:
        return self.prompt * tokens / PROMPT

    def decode(self, batch: int, context: float) -> float:
        return self.step + self.step_more * (batch - 1)

    def replay(self, parts: Sequence[Tuple[int, int]]) -> float:
        return self.replay_round

    def ttft(self, prompt: int) -> float:
        return self.prefill(0, prompt)


# 40 Mbit/s; a message goes through the worker's loop, which looks every step
RIG_NETWORK = Network(control=0.001, kv_latency=0.005, kv_rate=40e6 / 8, poll=0.0005)

# docs/measurements.md, "Measured side by side". ms, and tokens per second
MEASURED: Dict[Tuple[int, str], Dict[str, float]] = {
    (1, PD): {"TTFT p50": 496, "TTFT p95": 602, "tokens/s": 53.3},
    (1, HANDOFF): {"TTFT p50": 98, "TTFT p95": 157, "gap p50": 13, "gap p95": 24, "tokens/s": 65.9},
    (8, PD): {"TTFT p50": 2215, "TTFT p95": 3554, "tokens/s": 132},
    (8, HANDOFF): {"TTFT p50": 491, "TTFT p95": 1803, "gap p50": 46, "gap p95": 475, "tokens/s": 136},
}


def simulated(at_once: int, mode: str) -> Dict[str, float]:
    """The same figures of the simulator."""
    point = Point(
        RigCosts(), RIG_NETWORK, prefills=1, at_once=at_once, prompts=(PROMPT,), answers=(ANSWER, ANSWER),
        requests=REQUESTS, max_running=16,
    )  # fmt: skip
    run = load(point, mode)
    return {
        "TTFT p50": quantile(run.ttft, 0.5) * 1e3, "TTFT p95": quantile(run.ttft, 0.95) * 1e3,
        "gap p50": quantile(run.gap, 0.5) * 1e3, "gap p95": quantile(run.gap, 0.95) * 1e3,
        "tokens/s": run.tokens_per_s,
    }  # fmt: skip


def table() -> List[str]:
    rows = []
    for (at_once, mode), measured in MEASURED.items():
        found = simulated(at_once, mode)
        for figure, value in measured.items():
            got = found[figure]
            rows.append((str(at_once), mode, figure, f"{value:g}", f"{got:.4g}", f"{(got / value - 1) * 100:+.0f} %"))
    return aligned(("clients", "arm", "figure", "measured", "simulated", "error"), rows)


if __name__ == "__main__":
    print("\n".join(table()))
