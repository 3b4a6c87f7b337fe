"""The picture: one row per setup, each arm's distribution of TTFT, gap at the switch and ITL, and its throughput."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from .figures import Block, requests_of
from .setups import ARMS, HANDOFF, PD, UNIFIED

# Okabe and Ito's colours, which stay apart for colour-blind readers
COLOURS = {UNIFIED: "#555555", PD: "#D55E00", HANDOFF: "#0072B2"}


def draw(runs: Mapping[str, Sequence[Block]], path: pathlib.Path) -> None:
    """Draw the blocks of each setup, by its name, and write the picture to `path`, a PNG file."""
    figure, rows = plt.subplots(len(runs), 4, figsize=(17, 3.4 * len(runs)), dpi=110, squeeze=False)
    for row, (name, blocks) in zip(rows, runs.items()):
        requests = {arm: requests_of(blocks, arm) for arm in ARMS}
        _shares(row[0], {arm: [r.ttft * 1e3 for r in requests[arm]] for arm in ARMS}, "TTFT, ms")
        gaps = [r.boundary_gap / r.itl for r in requests[HANDOFF] if r.boundary is not None]
        _shares(row[1], {HANDOFF: gaps}, "gap at the switch, in ITLs of its request")
        itls = {arm: [gap * 1e3 for r in requests[arm] for gap in r.decode_gaps] for arm in ARMS}
        _shares(row[2], itls, "ITL of the worker that decodes to the end, ms", logarithmic=True)
        _throughput(row[3], blocks)
        row[0].set_ylabel(f"{name}\nshare of all")
    rows[0, 0].legend(loc="lower right", frameon=False)
    figure.suptitle("The same prompts, one run: unified server, PD, PD with seamless handoff", x=0.02, ha="left", size=14)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path)
    plt.close(figure)


def _shares(axes: Axes, values: Mapping[str, Sequence[float]], label: str, logarithmic: bool = False) -> None:
    """The share of values up to x, of each arm."""
    for arm, of_arm in values.items():
        if of_arm:
            axes.ecdf(of_arm, color=COLOURS[arm], label=arm)
    for share in (0.5, 0.95):
        axes.axhline(share, color="#DDDDDD", zorder=0)
    axes.set_xlabel(label)
    axes.set_xscale("log" if logarithmic else "linear")
    axes.spines[["top", "right"]].set_visible(False)


def _throughput(axes: Axes, blocks: Sequence[Block]) -> None:
    """One dot per block."""
    for place, arm in enumerate(ARMS):
        rates = [block.tokens_per_s for block in blocks if block.arm == arm]
        axes.plot(rates, [place] * len(rates), "o", color=COLOURS[arm], alpha=0.6)
    axes.set_yticks(range(len(ARMS)), ARMS)
    axes.set_ylim(len(ARMS) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens per second, each block")
    axes.spines[["top", "right"]].set_visible(False)
