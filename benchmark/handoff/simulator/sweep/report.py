"""A sweep in words and tables. Nothing of the wall clock is in it."""

from __future__ import annotations

from typing import Dict, List, Sequence

from ..workload import PD
from .grid import ADMITTED, EVERY, losses


def markdown(grids: Dict[str, Sequence[Dict]], decode_bound: Sequence[Dict], command: str, requests: int) -> str:
    """``grids``: results by accelerator."""
    first = next(iter(grids.values()))[0]
    lines = [
        "# Simulated sweep: PD without and with the handoff",
        "",
        f"`{command}`: Qwen3-8B costs of `benchmark/handoff/simulator/costs.py`, 2 prefill workers and 1 decode worker, "
        f"{requests} requests an arm and cell with answers of {first['answers'][0]} to {first['answers'][1]} tokens, Poisson "
        "arrivals, fixed seed, every arm the same requests at the same times. Load: share of what the prefill workers can "
        "do. Figures of every cell: `sweep.json`.",
        "",
        "| accelerator | arm | cells | TTFT worse than PD's by over 1 % | under 98 % of PD's tokens/s | worst TTFT saved, ms | "
        "worst tokens/s | worst latency saved, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, results in grids.items():
        for arm in (ADMITTED, EVERY):
            of = [each["arms"][arm] for each in results]
            lines.append(
                f"| {name} | {arm} | {len(of)} | {len(losses(results, arm, throughput=0))} "
                f"| {len(losses(results, arm, ttft=1e9))} | {min(a['ttft_saved_mean'] for a in of):,.0f} "
                f"| {min(a['throughput'] for a in of) * 100:.1f} % | {min(a['latency_saved_mean'] for a in of):,.0f} |"
            )
    for name, results in grids.items():
        lines += ["", f"## Cells that lose: {name}, {ADMITTED}", "", *_table(losses(results, ADMITTED))]
    lines += [
        "", "## D as the bottleneck", "",
        "Prompts of 512 tokens, answers of 512 to 1,024, few places in D's batch; 70 % of the prefill capacity, which is "
        "far more than D can do.", "", *_table(decode_bound),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _table(results: Sequence[Dict]) -> List[str]:
    if not results:
        return ["None."]
    out = [
        "| | load | link, GB/s | prompt | places | arm | bridged | TTFT p50 / p95, ms | saved, mean | gap p50 / p95, ms "
        "| tokens/s | of PD's | latency saved, ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        where = (
            f"| {each['costs']} | {each['load'] * 100:.0f} % | {each['link']:g} | {each['prompt']} | {each['places']} "
        )
        for arm in (PD, ADMITTED, EVERY):
            a = each["arms"][arm]
            gap = f"{a['gap_p50']:,.0f} / {a['gap_p95']:,.0f}" if "gap_p50" in a else "-"
            out.append(
                f"{where}| {arm} | {_or(a, 'bridged', '{:.0%}')} | {a['ttft_p50']:,.0f} / {a['ttft_p95']:,.0f} "
                f"| {_or(a, 'ttft_saved_mean', '{:,.0f}')} | {gap} | {a['tokens_per_s']:,.0f} "
                f"| {_or(a, 'throughput', '{:.1%}')} | {_or(a, 'latency_saved_mean', '{:,.0f}')} |"
            )
    return out


def _or(figures: Dict, name: str, form: str) -> str:
    return form.format(figures[name]) if name in figures else "-"
