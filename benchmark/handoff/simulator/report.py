"""Figures as text. Nothing of the wall clock is in it: the same seed gives the same text."""

from __future__ import annotations

from typing import Iterable, List, Sequence, Tuple

from .costs import ALL, H20_EAGER_16, H20_GRAPH, H200_EAGER_16, H200_GRAPH, ROW_16K, ROW_32K
from .costs import Costs, Network
from .load import Point, load
from .predict import compare
from .workload import HANDOFF, PD
from .world import Setup, World

PROMPTS = (4096, 16384, 32768)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> List[str]:
    rows = [tuple(head), *map(tuple, rows)]
    width = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, width)) for row in rows]


def public_rows() -> List[Tuple[str, str, float, float]]:
    """(row, figure, reported, simulated) in seconds, for both public H20 rows. Figures that a
    parameter was calibrated from say so in their name."""
    network, out = Network.of_report(), []
    for row, note in ((ROW_16K, " (calibrated from)"), (ROW_32K, "")):
        result = compare(H20_EAGER_16, row.prompt, network)
        name = f"{row.prompt // 1024}K"
        out += [
            (name, "unified TTFT" + note, row.unified_ttft, result.unified.ttft),
            (name, "PD TTFT" + note, row.pd_ttft, result.pd.ttft),
            (name, "PD - unified" + note, row.tail, result.pd_tail),
            (name, "ITL (calibrated from)", row.itl, H20_GRAPH.decode(1, row.prompt)),
        ]
    return out


def parameters(costs: Sequence[Costs] = ALL) -> List[str]:
    network = Network.of_report()
    rows = [
        (
            c.name, f"{c.flops / 1e12:.0f}", f"{c.memory / 1e12:.1f}", f"{c.prefill_share:.3f}",
            f"{c.weight_share:.3f}", f"{c.kv_share:.3f}", _ms(c.replay_launch),
        )
        for c in costs
    ]  # fmt: skip
    return [
        "Parameters (sources: benchmark/handoff/simulator/costs.py)",
        *aligned(("", "TFLOPS", "TB/s", "prefill share", "weight share", "KV share", "launch ms"), rows),
        f"chunk 8192 tokens; KV {network.kv_rate / 1e9:.2f} GB/s after {_ms(network.kv_latency)} ms; "
        f"control message {_ms(network.control)} ms",
    ]


def predictions() -> List[str]:
    network = Network.of_report()
    public = [
        (name, figure, _ms(said), _ms(got), f"{(got - said) * 1e3:+.2f}", f"{(got / said - 1) * 100:+.1f}%")
        for name, figure, said, got in public_rows()
    ]
    rows = []
    for costs in ALL:
        for prompt in PROMPTS:
            c = compare(costs, prompt, network)
            rows.append((
                costs.name, f"{prompt // 1024}K", _ms(c.unified.ttft), _ms(c.pd.ttft), _ms(c.handoff.ttft),
                _ms(c.pd_tail), _ms(c.handoff_tail), _ms(c.handoff.gap), _ms(c.pd.gap), str(c.handoff.boundary),
            ))  # fmt: skip
    head = (
        "", "prompt", "unified TTFT", "PD TTFT", "handoff TTFT", "PD tail", "handoff tail",
        "gap at b", "decode step", "b",
    )  # fmt: skip
    return [
        "Public rows, H20, ms",
        *aligned(("", "", "reported", "simulated", "error", ""), public),
        "",
        "Predictions, one request on an idle pair, ms. Tail: TTFT less the unified one. Gap: the client's",
        "wait between tokens b and b + 1",
        *aligned(head, rows),
    ]


def under_load() -> List[str]:
    """2P1D at 70% of the prefill workers' capacity, prompts of 4K, 16K and 32K."""
    at = lambda values, q: _ms(values[int(q * len(values))])
    rows = []
    for arms in ((H20_EAGER_16, H20_GRAPH), (H200_EAGER_16, H200_GRAPH)):
        for costs, mode, admits in (
            (arms[0], PD, True), (arms[0], HANDOFF, False), (arms[1], HANDOFF, False),
            (arms[0], HANDOFF, True), (arms[1], HANDOFF, True),
        ):  # fmt: skip
            arm = load(Point(costs), mode, admits)
            ttft, gap = sorted(arm.ttft), sorted(arm.gap)
            name = f"{costs.name.split()[0]} PD" if mode == PD else f"{costs.name}, handoff"
            rows.append((
                name + ("" if admits else " of every request"), _ms(sum(ttft) / len(ttft)), at(ttft, 0.5), at(ttft, 0.99),
                at(gap, 0.5), at(gap, 0.9), at(gap, 0.99),
            ))  # fmt: skip
    return [
        "Under load: 2P1D, 70% of the prefill capacity, 300 requests of 4K, 16K and 32K, ms",
        *aligned(("", "TTFT mean", "p50", "p99", "gap at b p50", "p90", "p99"), rows),
        "'Of every request': without the admission, and with a bridge step after every prompt chunk. A SealRequest",
        "then waits for the forward that P is in: under load that is a prompt chunk.",
    ]


def _quantiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "none"
    at = lambda q: _ms(ordered[min(len(ordered) - 1, int(q * len(ordered)))])
    return f"p50 {at(0.5)}  p99 {at(0.99)}  p99.9 {at(0.999)}  max {at(1)}"


def fault_run(setup: Setup, world: World) -> List[str]:
    """Of a run that has ended without a violation."""
    def counts(counter):
        return "  ".join(f"{name} {n}" for name, n in sorted(counter.items()))

    return [
        f"{world.done} requests on {setup.prefills}P{setup.decodes}D, seed {setup.seed}: no invariant violated",
        f"virtual {world.ended_at:.0f} s, {world.clock.happened} events, {world.control.sent} control messages",
        f"requests: {counts(world.count)}",
        f"faults: {counts(world.faults.count)}",
        f"messages not obeyed: {counts(world.control.dropped) or 'none'}",
        f"TTFT ms: {_quantiles(world.ttft)}",
        f"gap at b ms: {_quantiles(world.gap)}",
        f"arrival until both workers are free of it, ms: {_quantiles(world.life)}",
    ]
