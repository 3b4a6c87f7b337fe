"""The pictures: distributions of every case, and quantiles with error bars by length of prompt."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import arms
from .block import ERROR, Block

# Okabe and Ito's colours, which stay apart for colour-blind readers
COLOURS = {
    arms.UNIFIED.name: "#555555",
    arms.PD.name: "#D55E00",
    arms.PREFILL_COMPLETE.name: "#E69F00",
    arms.HANDOFF.name: "#0072B2",
    arms.HANDOFF_DECODE.name: "#56B4E9",
}
LINES = {"sglang": "-", "smg": "--", "mini_lb": ":"}  # of each router
HATCHES = {"sglang": "", "smg": "//", "mini_lb": ".."}
LEGEND_INCHES = 0.75
DISTRIBUTIONS, BUCKETS = "distributions.png", "prompts.png"


def draw(result: dict, blocks: Sequence[Block], folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the pictures as PNG files and return their paths.

    Args:
        result: the figures, as `report.build` gives them.
        blocks: the raw events that they come from.
    """
    paths = [folder / DISTRIBUTIONS, folder / BUCKETS]
    _distributions(result, blocks, paths[0])
    _by_prompt(result, paths[1])
    return paths


def _distributions(result: dict, blocks: Sequence[Block], path: pathlib.Path) -> None:
    cases = list(dict.fromkeys(block.case for block in blocks))
    figure, rows = plt.subplots(len(cases), 4, figsize=(18, 3.3 * len(cases) + LEGEND_INCHES), dpi=90, squeeze=False)
    for axes, case in zip(rows, cases):
        of_row: dict[tuple[str, str], list] = {}
        for block in blocks:
            if block.case == case:
                seen = (s.request for s in block.samples if s.ended != ERROR and s.request.at)
                of_row.setdefault((block.arm, block.router), []).extend(seen)
        _shares(axes[0], {key: [r.ttft * 1e3 for r in of] for key, of in of_row.items()}, "TTFT, ms")
        _shares(axes[1], {key: [g * 1e3 for r in of for g in r.gaps if g > 0] for key, of in of_row.items()}, "ITL, ms")
        gaps = {key: [r.boundary_gap * 1e3 for r in of if r.boundary is not None] for key, of in of_row.items()}
        _shares(axes[2], gaps, "gap at the switch, ms")
        _rates(axes[3], [row for row in result["rows"] if row["case"] == case])
        axes[0].set_ylabel(f"{case}\nshare of all")
    _finish(figure, rows[0, 0], path)


def _by_prompt(result: dict, path: pathlib.Path) -> None:
    cases = list(dict.fromkeys(row["case"] for row in result["rows"]))
    figure, grid = plt.subplots(len(cases), 3, figsize=(16, 3.1 * len(cases) + LEGEND_INCHES), dpi=90, squeeze=False)
    for axes, case in zip(grid, cases):
        of_case = [row for row in result["rows"] if row["case"] == case]
        for ax, share in zip(axes, ("p50", "p95", "p99")):
            _bars(ax, of_case, share)
            ax.set_title(f"TTFT {share}, ms, by tokens of the prompt", size="small")
        axes[0].set_ylabel(case)
    _finish(figure, grid[0, 0], path)


def _shares(axes: Axes, values: Mapping[tuple[str, str], Sequence[float]], label: str) -> None:
    for (arm, router), of in values.items():
        if of:
            axes.ecdf(of, color=COLOURS[arm], linestyle=LINES[router], label=f"{arm}, {router}")
    for share in (0.5, 0.95):
        axes.axhline(share, color="#DDDDDD", zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def _rates(axes: Axes, rows: Sequence[dict]) -> None:
    for place, row in enumerate(rows):
        rate = row["all"]["requests_per_s"]
        error = [[rate["median"] - rate["low"]], [rate["high"] - rate["median"]]]
        axes.errorbar(rate["median"], place, xerr=error, fmt="o", color=COLOURS[row["arm"]], capsize=3)
    axes.set_yticks(range(len(rows)), [f"{row['arm']}, {row['router']}" for row in rows], fontsize="small")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("requests per second, range of the repeats")
    axes.spines[["top", "right"]].set_visible(False)


def _bars(axes: Axes, rows: Sequence[dict], share: str) -> None:
    buckets = list(dict.fromkeys(name for row in rows for name in row["prompt"]))
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        for place, bucket in enumerate(buckets):
            found = row["prompt"].get(bucket, {}).get("ttft")
            if found is None:
                continue
            one, label = found[share], f"{row['arm']}, {row['router']}" if place == 0 else None
            error = None
            if one["low"] is not None:
                error = [[max(0, one["value"] - one["low"])], [max(0, one["high"] - one["value"])]]
            x = place + (number - (len(rows) - 1) / 2) * width
            look = {"color": COLOURS[row["arm"]], "hatch": HATCHES[row["router"]], "edgecolor": "white", "linewidth": 0}
            axes.bar(x, one["value"], width, yerr=error, label=label, ecolor="#000000", capsize=2, **look)
    axes.set_xticks(range(len(buckets)), buckets)
    axes.spines[["top", "right"]].set_visible(False)


def _finish(figure: Figure, labelled: Axes, path: pathlib.Path) -> None:
    """Write the picture, with the legend of the axes `labelled` above all."""
    handles, labels = labelled.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncol=5, frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout(rect=(0, 0, 1, 1 - LEGEND_INCHES / figure.get_figheight()))
    figure.savefig(path)
    plt.close(figure)
