"""Heat maps of one accelerator: load by link, a column for each prompt length, a row for each figure."""

from __future__ import annotations

import math
import pathlib
from typing import Callable, Dict, List, NamedTuple, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from ..workload import PD
from .grid import ADMITTED


class Row(NamedTuple):
    """A figure: ``value`` gives the colour, 0 at no difference and full at ``limit``; ``label`` is what the cell says."""

    title: str
    value: Callable[[Dict], float]
    label: Callable[[Dict], str]
    limit: float


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) < 9950 else f"{value / 1e3:.0f}k"


ROWS = (
    Row(
        "TTFT saved, mean, ms\n(colour: share of PD's, full at 30 %)",
        lambda arms: arms[ADMITTED]["ttft_saved_mean"] / arms[PD]["ttft_mean"],
        lambda arms: _short(arms[ADMITTED]["ttft_saved_mean"]),
        0.3,
    ),
    Row(
        "wait at the switch, p95, ms\n(colour: against PD's wait for t1\nand t2, full at 4 times)",
        lambda arms: -math.log2(_gap(arms) / (_gap_of_pd(arms))) / 2,
        lambda arms: _short(_gap(arms)),
        1.0,
    ),
    Row(
        "tokens per second, % of PD's\n(colour: full at 5 % apart)",
        lambda arms: arms[ADMITTED]["throughput"] - 1,
        lambda arms: f"{arms[ADMITTED]['throughput'] * 100:.1f}",
        0.05,
    ),
)


def _gap(arms: Dict) -> float:
    return arms[ADMITTED].get("gap_p95") or arms[PD]["gap_p95"]


def _gap_of_pd(arms: Dict) -> float:
    """What a PD client waits for at least, in one piece: its transfer, of which the handoff relieves the first token,
    and its second token."""
    return arms[PD]["gap_p95"] + max(0.0, arms[ADMITTED]["ttft_saved_mean"])


def draw(results: Sequence[Dict], title: str, path: pathlib.Path) -> None:
    """Draw one accelerator's results and write them to ``path``, a PNG file."""
    prompts = sorted({each["prompt"] for each in results})
    loads = sorted({each["load"] for each in results})
    links = sorted({each["link"] for each in results})
    at = {(each["prompt"], each["link"], each["load"]): each["arms"] for each in results}
    figure, axes = plt.subplots(
        len(ROWS), len(prompts), figsize=(4.2 * len(prompts), 3.1 * len(ROWS)),
        dpi=100, squeeze=False, sharex=True, sharey=True,
    )  # fmt: skip
    for row, panels in zip(ROWS, axes):
        for prompt, panel in zip(prompts, panels):
            grid: List[List[float]] = [[row.value(at[prompt, link, load]) for load in loads] for link in links]
            panel.imshow(grid, cmap="RdBu", vmin=-row.limit, vmax=row.limit, aspect="auto", origin="lower")
            for y, link in enumerate(links):
                for x, load in enumerate(loads):
                    dark = abs(grid[y][x]) > 0.6 * row.limit
                    panel.text(
                        x, y, row.label(at[prompt, link, load]),
                        ha="center", va="center", size=8.5, color="white" if dark else "black",
                    )  # fmt: skip
            panel.set_xticks(range(len(loads)), [f"{load * 100:.0f}" for load in loads])
            panel.set_yticks(range(len(links)), [f"{link:g}" for link in links])
            if row is ROWS[0]:
                panel.set_title(f"prompts of {prompt // 1024}K tokens")
            if row is ROWS[-1]:
                panel.set_xlabel("load, % of the prefill capacity")
        panels[0].set_ylabel(f"{row.title}\n\nlink, GB/s")
    figure.suptitle(f"{title}. Blue: better than PD, white: as PD, red: worse", x=0.01, ha="left", size=14)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path)
    plt.close(figure)
