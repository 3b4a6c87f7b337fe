"""A run as a file of raw events, as figures in JSON, and as markdown."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
from collections.abc import Iterable, Sequence

from . import block as blocks_
from . import figures
from .arms import ARMS, UNIFIED
from .block import Block
from .statistics import CONFIDENCE, SHARES, Estimate

RAW, FIGURES, TEXT = "raw.json.gz", "figures.json", "report.md"
QUANTILES = {
    "TTFT": "ttft",
    "ITL": "itl",
    "gap at the switch": "boundary_gap",
    "largest gap": "largest_gap",
    "end to end": "end_to_end",
}
BY_BUCKET = ("ttft", "itl", "boundary_gap")


def save_raw(run: dict, blocks: Sequence[Block], folder: pathlib.Path) -> None:
    """Write every event time.

    Args:
        run: what is said of the run: `machine`, `where`, `link`, `seed`, `commit`, `notes`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"run": run, "blocks": [blocks_.to_json(block) for block in blocks]}, separators=(",", ":"))
    # no name and no time inside: the same events give the same file
    (folder / RAW).write_bytes(gzip.compress(text.encode(), mtime=0))


def load_raw(paths: Iterable[pathlib.Path]) -> tuple[list[dict], list[Block]]:
    """The runs and the blocks of several files.

    Raises:
        ValueError: they come from different places, models or links.
    """
    runs, blocks = [], []
    for path in paths:
        data = json.loads(gzip.decompress(pathlib.Path(path).read_bytes()))
        runs.append(data["run"])
        blocks += map(blocks_.from_json, data["blocks"])
    for name in ("where", "link"):
        if len(found := {run[name] for run in runs}) > 1:
            raise ValueError(f"these runs can't be put together: {' / '.join(sorted(found))}")
    return runs, blocks


def build(runs: Sequence[dict], blocks: Sequence[Block]) -> dict:
    """Figures of every case, arm and router, and what went wrong."""
    order = [arm.name for arm in ARMS]
    rows = []
    for case in dict.fromkeys(block.case for block in blocks):
        of_case = [block for block in blocks if block.case == case]
        keys = dict.fromkeys((block.arm, block.router) for block in of_case)
        for arm, router in sorted(keys, key=lambda key: order.index(key[0])):
            mine = [block for block in of_case if (block.arm, block.router) == (arm, router)]
            rows.append({"case": case, "arm": arm, "router": router} | _plain(figures.of_blocks(mine)))
    return {
        "runs": list(runs),
        "rows": rows,
        "compared": figures.compared(blocks, UNIFIED.name),
        "different": figures.different(blocks, UNIFIED.name),
        "kept": [f"{b.arm} ({b.router}), {b.case}: {reason}" for b in blocks for reason in b.kept],
        "errors": [
            f"{b.arm} ({b.router}), {b.case}, request {s.number}: {s.error[:300]}"
            for b in blocks
            for s in b.samples
            if s.ended == blocks_.ERROR
        ],
    }


def save(result: dict, folder: pathlib.Path) -> None:
    """Write figures and markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FIGURES).write_text(json.dumps(result) + "\n")
    (folder / TEXT).write_text(markdown(result))


def markdown(result: dict) -> str:
    """The report."""
    parts = [*map(_head, result["runs"]), _legend(), _wrong(result)]
    for case in dict.fromkeys(row["case"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["case"] == case]
        parts += [f"## {case}", table(rows), throughput(rows), by_bucket(rows)]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[dict]) -> str:
    """One row of an arm and router, all buckets together."""
    lines = _header(["arm", "router", "requests", "whole / cancelled / errors", *(f"{name}, ms" for name in QUANTILES)])
    for row in rows:
        one = row["all"]
        ended = f"{one['whole']} / {one['cancelled']} / {one['errors']}"
        cells = [row["arm"], row["router"], str(one["requests"]), ended, *(_cell(one[name]) for name in QUANTILES.values())]
        lines.append(_line(cells))
    return "\n".join(lines)


def throughput(rows: Sequence[dict]) -> str:
    """Rates, and what changes from repeat to repeat."""
    names = [
        "arm",
        "router",
        "requests/s",
        "tokens/s",
        "TTFT p50 of the repeats, ms",
        "outcomes",
        "client late, ms",
        "client cores",
        "load average",
    ]
    lines = _header(names)
    for row in rows:
        one = row["all"]
        outcomes = ", ".join(f"{n} {name}" for name, n in sorted(one["outcomes"].items(), key=lambda o: -o[1])) or "-"
        spreads = [_spread(one[name]) for name in ("requests_per_s", "tokens_per_s", "ttft_p50_of_repeats")]
        client = [f"{one['client_late_ms']:.0f}", f"{one['client_cores']:.2f}", _spread(one["load"])]
        lines.append(_line([row["arm"], row["router"], *spreads, outcomes, *client]))
    return "\n".join(lines)


def by_bucket(rows: Sequence[dict]) -> str:
    """The same quantiles by length of prompt and of answer."""
    lines = _header(
        ["tokens", "arm", "router", "requests", *(f"{name}, ms" for name, key in QUANTILES.items() if key in BY_BUCKET)]
    )
    for kind, words in (("prompt", "prompt"), ("output", "answer")):
        buckets = dict.fromkeys(name for row in rows for name in row[kind])
        if len(buckets) < 2:
            continue
        for bucket in buckets:
            for row in rows:
                if (one := row[kind].get(bucket)) is not None:
                    cells = [f"{words} {bucket}", row["arm"], row["router"], str(one["requests"])]
                    lines.append(_line(cells + [_cell(one[name]) for name in BY_BUCKET]))
    return "\n".join(lines) if len(lines) > 2 else "All prompts and answers are of one length."


def _head(run: dict) -> str:
    machine = run["machine"]
    lines = [
        f"Measured {machine['date']} on {machine['cpu']}, {machine['cores']} cores, {run['where']}. {run['link']} "
        f"Load average before: {machine['load_average_before']:.1f}. Seed {run['seed']}. Commit {run['commit']}."
    ]
    return "\n".join(lines + [f"- {note}" for note in run["notes"]])


def _legend() -> str:
    return (
        f"Times are p50 / p95 / p99 in ms. In brackets: {CONFIDENCE:.0%} bootstrap interval of the p50 and the p95 over "
        "requests. An asterisk: too few values, so that it is the largest one. Rates: median [smallest, largest] of the "
        "repeats. ITL: between one token and the next, the switch included. A request that its client cut short counts with "
        "the tokens it got."
    )


def _wrong(result: dict) -> str:
    different = sum(map(len, result["different"].values()))
    lines = [
        f"- answers compared with the unified server's: {result['compared']}, different: {different}",
        f"- requests that ended in an error: {len(result['errors'])}",
        f"- times a worker kept something after its last request: {len(result['kept'])}",
    ]
    shown = [line for of_arm in result["different"].values() for line in of_arm] + result["errors"] + result["kept"]
    return "\n".join(lines + [f"  - {line}" for line in shown[:20]])


def _plain(value):
    """The same for JSON, to a microsecond."""
    if isinstance(value, Estimate):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def _cell(quantiles: dict | None) -> str:
    if quantiles is None:
        return "-"
    values = " / ".join(
        _number(quantiles[name]["value"]) + ("*" if quantiles[name]["is_largest"] else "") for name in SHARES
    )
    if quantiles["p50"]["low"] is None:
        return values
    intervals = ", ".join(f"{_number(quantiles[name]['low'])}-{_number(quantiles[name]['high'])}" for name in ("p50", "p95"))
    return f"{values} [{intervals}]"


def _spread(spread: dict | None) -> str:
    return "-" if spread is None else f"{_number(spread['median'])} [{_number(spread['low'])}, {_number(spread['high'])}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _header(names: Sequence[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
