"""The run as JSON and as a markdown table."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from benchmark.handoff.answer import Request

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
    zero = min(block.requests[0].sent_at for block in blocks)
    about = {
        "model": setup.name,
        "dtype": setup.options.dtype,
        "loop": "overlap" if setup.options.overlap else "plain",
        "prompt_tokens": setup.prompt,
        "new_tokens": setup.new_tokens,
        "link_mbit": setup.link_mbit,
        "at_once": at_once,
    }
    different = verdict.different(blocks)
    return {"setup": about} | judged(blocks, at_once) | {"different": different, "blocks": [_block(b, zero) for b in blocks]}


def judged(blocks: Sequence[figures.Block], at_once: int) -> dict:
    """The figures of each arm, and the goals."""
    of_arm = {arm: figures.of_arm([block for block in blocks if block.arm == arm]) for arm in ARMS}
    goals = verdict.goals(of_arm, at_once)
    return {
        "arms": {arm: dataclasses.asdict(found) for arm, found in of_arm.items()},
        "goals": [dataclasses.asdict(goal) | {"met": goal.met, "text": str(goal)} for goal in goals],
    }


def again(results: Sequence[dict]) -> list[dict]:
    """The reports of several runs as one of each setup and level, from the blocks of all of them."""
    found: dict[str, dict] = {}
    for result in results:
        key = json.dumps(result["setup"], sort_keys=True)
        one = found.setdefault(key, result | {"blocks": [], "different": []})
        for name in ("blocks", "different"):
            one[name] = one[name] + result[name]
    return [one | judged(blocks(one), one["setup"]["at_once"]) for one in found.values()]


def name(result: dict) -> str:
    """In short."""
    return f"{result['setup']['model']}, {result['setup']['at_once']} at once"


def save(runs: Sequence[dict], results: Sequence[dict], folder: pathlib.Path) -> None:
    """Write report.json and report.md.

    Args:
        runs: what is said of each run; `machine` at least.
        results: by setup and level.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps({"runs": list(runs), "setups": list(results)}) + "\n")
    heads = [f"Measured {m['date']}: {m['cpu']}, {m['cores']} cores, no GPU." for m in (run["machine"] for run in runs)]
    (folder / "report.md").write_text("\n\n".join([*dict.fromkeys(heads), *map(table, results)]) + "\n")


def table(result: dict) -> str:
    """One setup's figures as a markdown table."""
    setup = result["setup"]
    lines = [
        f"{setup['model']} ({setup['dtype']}, {setup['loop']} loop), prompts of {setup['prompt_tokens']} tokens, "
        f"answers of {setup['new_tokens']}, KV link {setup['link_mbit']:g} Mbit/s, {setup['at_once']} at once",
        "",
        "| arm | requests | " + " | ".join(COLUMNS) + " | outcomes |",
        "|---" * (len(COLUMNS) + 3) + "|",
    ]
    for arm, found in result["arms"].items():
        cells = [" / ".join(_cell(found[name], name) for name in names) for names in COLUMNS.values()]
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in found["outcomes"].items()) or "-"
        lines.append(f"| {arm} | {found['requests']} | " + " | ".join(cells) + f" | {outcomes} |")
    lines += ["", *(f"- {goal['text']}" for goal in result["goals"])]
    for arm, found in result["arms"].items():
        if found["ttft_parts"]:
            parts = ", ".join(f"{name} {ms:,.1f}" for name, ms in found["ttft_parts"].items())
            lines.append(f"- where the TTFT of {arm} goes, medians in ms: {parts}")
        if found["gap_parts"]:
            parts = ", ".join(f"{name} {middle:,.1f} / {tail:,.1f}" for name, (middle, tail) in found["gap_parts"].items())
            lines.append(f"- where its gap at the switch goes, means of the middle half / longest tenth in ms: {parts}")
    lines.append(f"- answers that differ from the unified server's: {len(result['different'])}")
    return "\n".join(lines)


def blocks(result: dict) -> list[figures.Block]:
    """The blocks of one setup's report, with the first request at 0."""
    return [
        figures.Block(
            block["arm"],
            tuple(Request(r["sent_at"], tuple(r["at"]), tuple(r["ids"]), r["handoff"]) for r in block["requests"]),
        )
        for block in result["blocks"]
    ]


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
                "ids": list(r.ids),
                "handoff": r.handoff,
            }
            for r in block.requests
        ],
    }
