"""The run as JSON and as a markdown table."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
from collections.abc import Sequence

from . import figures, verdict
from .setups import ARMS, Setup

COLUMNS = {
    "TTFT p50 / p95, ms": ("ttft_p50", "ttft_p95"),
    "gap at the switch p50 / p95, ms": ("boundary_gap_p50", "boundary_gap_p95"),
    "the same in ITLs": ("boundary_gap_itls_p50", "boundary_gap_itls_p95"),
    "largest gap p50 / max, ms": ("largest_gap_p50", "largest_gap_max"),
    "ITL p50 / p95, ms": ("itl_p50", "itl_p95"),
    "tokens/s": ("tokens_per_s",),
    "tokens bridged": ("tokens_bridged",),
}


def build(setup: Setup, at_once: int, blocks: Sequence[figures.Block]) -> dict:
    """One setup's report, with every request's event times in seconds since the first request was sent."""
    of_arm = {arm: figures.of_arm([block for block in blocks if block.arm == arm]) for arm in ARMS}
    goals = verdict.goals(of_arm, at_once)
    zero = min(block.requests[0].sent_at for block in blocks)
    return {
        "setup": {
            "model": setup.name,
            "dtype": setup.options.dtype,
            "loop": "overlap" if setup.options.overlap else "plain",
            "prompt_tokens": setup.prompt,
            "new_tokens": setup.new_tokens,
            "link_mbit": setup.link_mbit,
            "at_once": at_once,
        },
        "arms": {arm: dataclasses.asdict(found) for arm, found in of_arm.items()},
        "goals": [dataclasses.asdict(goal) | {"met": goal.met, "text": str(goal)} for goal in goals],
        "different": verdict.different(blocks),
        "blocks": [_block(block, zero) for block in blocks],
    }


def machine() -> dict:
    """Where and when this was measured."""
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
    }


def table(result: dict) -> str:
    """One setup's figures as a markdown table."""
    setup = result["setup"]
    lines = [
        f"{setup['model']} ({setup['dtype']}, {setup['loop']} loop), prompts of {setup['prompt_tokens']} tokens, answers of {setup['new_tokens']}, "
        f"KV link {setup['link_mbit']:g} Mbit/s, {setup['at_once']} at once",
        "",
        "| arm | requests | " + " | ".join(COLUMNS) + " | outcomes |",
        "|---" * (len(COLUMNS) + 3) + "|",
    ]
    for arm, found in result["arms"].items():
        cells = [" / ".join(_cell(found[name], name) for name in names) for names in COLUMNS.values()]
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in found["outcomes"].items()) or "-"
        lines.append(f"| {arm} | {found['requests']} | " + " | ".join(cells) + f" | {outcomes} |")
    lines += ["", *(f"- {goal['text']}" for goal in result["goals"])]
    lines.append(f"- answers that differ from the unified server's: {len(result['different'])}")
    return "\n".join(lines)


def _cell(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if "itls" in name else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _block(block: figures.Block, zero: float) -> dict:
    return {
        "arm": block.arm,
        "requests": [
            {
                "sent_at": round(r.sent_at - zero, 4),
                "at": [round(at - zero, 4) for at in r.at],
                "handoff": r.handoff,
            }
            for r in block.requests
        ],
    }
