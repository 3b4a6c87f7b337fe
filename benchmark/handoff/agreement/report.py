"""Both sides beside each other, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from benchmark.handoff.simulator.report import aligned
from benchmark.handoff.simulator.workload import HANDOFF, PD

from .points import PACE, PROMPT, Point

FILES = JSON, TEXT = "agreement.json", "agreement.md"
NAMES = {PD: "PD", HANDOFF: "PD + handoff"}


def row(point: Point, arm: str, measured: dict, simulated: dict, outcomes: dict) -> dict:
    """One arm at one point."""
    return {"point": dataclasses.asdict(point), "arm": arm, "measured": measured, "simulated": simulated, "outcomes": outcomes}


def error(measured: float, simulated: float) -> float:
    """How far the simulator is off, as a share of what was measured."""
    return simulated / measured - 1


def markdown(machine: dict, rows: Sequence[dict]) -> str:
    """The report, times in ms, of PD's and the handoff's row of each point in turn."""
    text = [
        "# The simulator against real workers",
        f"`make agreement`, measured {machine['date']}: {machine['cpu']}, {machine['cores']} cores, no GPU. "
        f"Prompts of {PROMPT:,} tokens. The workers keep to a pace: {PACE.token * 1e3:.3g} ms a prompt token, "
        f"{PACE.step * 1e3:g} ms a decode step and {PACE.more * 1e3:g} more for each other request in it, "
        f"a replay round at least {PACE.extend * 1e3:g}. Times in ms.",
    ]
    for arms in zip(rows[::2], rows[1::2]):
        point = arms[0]["point"]
        text.append(
            f"## {point['name']}\n\n{point['clients']} clients, {point['requests']} requests, answers of "
            f"{point['new_tokens']}, a prompt's KV {point['prompt_on_link'] * 1e3:g} ms on the link, {point['places']} places on D"
        )
        lines = []
        for one in arms:
            for name, value in one["measured"].items():
                got = one["simulated"][name]
                if value is not None and got is not None:
                    lines.append((NAMES[one["arm"]], name, f"{value:,.4g}", f"{got:,.4g}", f"{error(value, got) * 100:+.0f} %"))
        text.append("```\n" + "\n".join(aligned(("arm", "figure", "measured", "simulated", "error"), lines)) + "\n```")
        text.append("Handoff: " + ", ".join(f"{value:g} {name}" for name, value in arms[-1]["outcomes"].items()))
        pd, on = (one["measured"] for one in arms)
        text.append(
            f"Measured, handoff against PD: tokens/s {on['tokens/s'] / pd['tokens/s']:.3f}, "
            f"TTFT p50 {on['TTFT p50'] / pd['TTFT p50']:.2f}, p95 {on['TTFT p95'] / pd['TTFT p95']:.2f}"
        )
    return "\n\n".join(text) + "\n"


def save(machine: dict, rows: Sequence[dict], folder: pathlib.Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JSON).write_text(json.dumps({"machine": machine, "rows": list(rows)}, indent=1) + "\n")
    (folder / TEXT).write_text(markdown(machine, rows))
