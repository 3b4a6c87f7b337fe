"""The picture: when the client had each token, who made it, and what the workers did meanwhile.

One lane per arm on one clock, and below them the switch from one worker to the other, enlarged.
"""

import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import ConnectionPatch

from demo import facts
from demo.measure import DECODE, PREFILL, UNIFIED, Run

# Okabe and Ito's colours, which stay apart for colour-blind readers; MADE_BY and WORK never share one
MADE_BY = {UNIFIED: "#555555", PREFILL: "#D55E00", DECODE: "#0072B2"}
WORK = {facts.PROMPT: "#BBBBBB", facts.TRANSFER: "#F0E442", facts.REPLAY: "#009E73", facts.SEAL: "#CC79A7"}
WORKERS = {UNIFIED: "the server", PREFILL: "prefill worker", DECODE: "decode worker"}
LANES = {
    "unified": "Unified server",
    "PD": "PD\nwithout handoff",
    "PD + handoff": "PD with\nseamless handoff",
}
INK, FAINT = "#222222", "#888888"
# heights in a lane of height 1, from its bottom
WORK_AT, WAIT_AT, TOKENS_AT, TOKEN_HEIGHT, BAR_HEIGHT, LABEL_AT = 0.24, 0.385, 0.55, 0.2, 0.17, 0.81


def draw(runs: Sequence[Run], setup: str, path: pathlib.Path) -> None:
    """Draw the runs of one prompt, first arm on top, and write the picture to `path`.

    Args:
        runs: one per arm, the last one with handoff.
        setup: model and link in words.
        path: a PNG file.
    """
    switched = facts.COMMIT in runs[-1].spans
    heights = [5.6, 2.5] if switched else [5.6]
    figure, panels = plt.subplots(len(heights), figsize=(13, sum(heights)), dpi=120, squeeze=False, height_ratios=heights)
    lanes = panels[0, 0]
    for i, run in enumerate(reversed(runs)):
        _lane(lanes, run, bottom=i)
    _finish_lanes(lanes, runs)
    title = "The same question, asked three ways: when does each token reach the client?"
    figure.suptitle(title, x=0.02, ha="left", size=16, weight="bold")
    tokens = runs[-1].prompt_tokens
    subtitle = f"{setup}, prompt of {tokens} tokens. Each tick is one token, coloured by the worker that made it."
    figure.text(0.02, 0.915, subtitle, color=INK, size=11)
    figure.subplots_adjust(left=0.14, right=0.975, top=0.88, bottom=0.075, hspace=0.34)
    if switched:
        _switch(panels[1, 0], runs[-1])
        _connect(figure, lanes, panels[1, 0])
    figure.savefig(path)
    plt.close(figure)


def _lane(axes: Axes, run: Run, bottom: float) -> None:
    """Draw one arm: its tokens above, the work that they waited for below."""
    _ticks(axes, run, bottom + TOKENS_AT, TOKEN_HEIGHT)
    y, style = bottom + TOKENS_AT, {"textcoords": "offset points", "va": "center", "color": INK, "size": 11}
    first, last = run.tokens[0].at, run.tokens[-1].at
    axes.annotate(f"first token {first:.1f} s", (first, y), (-8, 0), ha="right", weight="bold", **style)
    axes.annotate(f"done {run.ended_at:.1f} s", (last, y), (8, 0), **style)
    _longest_wait(axes, run, bottom + WAIT_AT)
    for worker in MADE_BY:
        _maker(axes, [token.at for token in run.tokens if token.worker == worker], worker, bottom + LABEL_AT)
    _bars(axes, run.spans.get(facts.PROMPT, []), facts.PROMPT, bottom, "prefill")
    _bars(axes, run.spans.get(facts.TRANSFER, []), facts.TRANSFER, bottom, "KV transfer")
    for name in (facts.SEAL, facts.REPLAY):
        _bars(axes, run.spans.get(name, []), name, bottom)


def _maker(axes: Axes, at: Sequence[float], worker: str, y: float) -> None:
    """Write how many tokens `worker` made above them. P's end where D's begin, so its label ends there and D's begins."""
    if not at:
        return
    words = f"{len(at)} token{'s' * (len(at) != 1)} by {WORKERS[worker]}"
    x, ha, offset = (at[-1], "right", -4) if worker == PREFILL else (at[0], "left", 0)
    style = {"ha": ha, "va": "center", "color": MADE_BY[worker], "size": 10.5, "weight": "bold"}
    axes.annotate(words, (x, y), (offset, 0), textcoords="offset points", **style)


def _longest_wait(axes: Axes, run: Run, y: float) -> None:
    """Draw a line under the longest time without a token, and write how long it was; nothing for a single token."""
    pairs = list(zip(run.tokens, run.tokens[1:]))
    if not pairs:
        return
    a, b = max(pairs, key=lambda pair: pair[1].at - pair[0].at)
    axes.hlines(y, a.at, b.at, INK, linewidth=1.4)
    style = {"ha": "left", "va": "center", "color": INK, "size": 9}
    axes.annotate(f"longest wait {b.at - a.at:.2f} s", (b.at, y), (4, -1), textcoords="offset points", **style)


def _ticks(axes: Axes, run: Run, middle: float, height: float) -> None:
    colours = [MADE_BY[token.worker] for token in run.tokens]
    axes.vlines([token.at for token in run.tokens], middle - height / 2, middle + height / 2, colours, linewidth=2.2)


def _bars(axes: Axes, spans: Sequence[tuple[float, float]], name: str, bottom: float, label: str = "") -> None:
    """Draw `spans` in the lane's work row and put `label` into the longest one."""
    if not spans:
        return
    where = (bottom + WORK_AT - BAR_HEIGHT / 2, BAR_HEIGHT)
    axes.broken_barh([(start, end - start) for start, end in spans], where, color=WORK[name], linewidth=0)
    start, end = max(spans, key=lambda span: span[1] - span[0])
    axes.text((start + end) / 2, bottom + WORK_AT, label, ha="center", va="center", size=10, color=INK)


def _finish_lanes(axes: Axes, runs: Sequence[Run]) -> None:
    axes.set_ylim(0, len(runs))
    end = max(run.ended_at for run in runs)
    # room on both sides for the labels of an early first token and of a late end
    axes.set_xlim(-0.04 * end, 1.1 * end)
    names = [LANES.get(run.arm, run.arm) for run in reversed(runs)]
    axes.set_yticks([i + 0.5 for i in range(len(runs))], names, size=12, weight="bold")
    axes.tick_params(axis="y", length=0)
    for i in range(1, len(runs)):
        axes.axhline(i, color="#DDDDDD", linewidth=1)
    _seconds(axes, "seconds since the client sent the request")


def _seconds(axes: Axes, label: str) -> None:
    axes.set_xlabel(label, size=11)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _switch(axes: Axes, run: Run) -> None:
    """Draw the time from the arrival of the KV to the first tokens of the decode worker, one row per thing."""
    last = max(token.at for token in run.tokens if token.worker == PREFILL)
    own = min(token.at for token in run.tokens if token.worker == DECODE)
    (seal,), (commit,) = run.spans[facts.SEAL], run.spans[facts.COMMIT]
    arrived = max(end for _, end in run.spans[facts.TRANSFER])
    start, end = min(arrived, seal[0], last), max(own, commit[1])
    pad = 0.35 * (end - start)
    axes.set_xlim(start - pad, end + 2 * pad)
    axes.set_ylim(-0.6, 5.1)
    _ticks(axes, run, 4, 0.8)
    axes.annotate("", (own, 4), (last, 4), arrowprops={"arrowstyle": "<->", "color": INK, "shrinkA": 3, "shrinkB": 3})
    # above, since a short wait leaves no room between the tokens
    _beside(axes, (last + own) / 2, 4.75, f"the client waits {own - last:.2f} s", ha="center", offset=0)
    _row(axes, 3, facts.TRANSFER, run.spans[facts.TRANSFER], "all KV of the prompt is here")
    _row(axes, 2, facts.SEAL, [seal], "prefill worker asked to stop, and stopped")
    tokens = run.handoff["replayed"]
    words = f"decode worker rebuilds the KV of {tokens} token{'s' * (tokens != 1)}"
    _row(axes, 1, facts.REPLAY, run.spans[facts.REPLAY], words)
    axes.plot(commit[0], 0, marker="D", color=INK, markersize=8)
    _beside(axes, commit[0], 0, "decode worker takes over", offset=9)
    axes.set_yticks([4, 3, 2, 1, 0], ["tokens", "KV transfer", "seal", "replay", "commit"], size=11)
    axes.tick_params(axis="y", length=0)
    axes.text(-0.135, 1.13, "The switch, enlarged", transform=axes.transAxes, size=12, weight="bold", color=INK)
    _seconds(axes, "seconds since the client sent the request")


def _row(axes: Axes, y: float, name: str, spans: Sequence[tuple[float, float]], label: str) -> None:
    """Draw `spans` in a row of the enlarged switch with `label` after the last one; nothing if there are none."""
    if spans:
        axes.broken_barh([(start, end - start) for start, end in spans], (y - 0.3, 0.6), color=WORK[name], linewidth=0)
        _beside(axes, max(end for _, end in spans), y, label)


def _beside(axes: Axes, x: float, y: float, label: str, ha: str = "left", offset: float = 6) -> None:
    """Write `label` at (x, y), `offset` points to the right."""
    axes.annotate(label, (x, y), (offset, 0), textcoords="offset points", ha=ha, va="center", size=10.5, color=INK)


def _connect(figure: plt.Figure, lanes: Axes, switch: Axes) -> None:
    """Show in the lowest lane which part the panel below enlarges."""
    left, right = switch.get_xlim()
    lanes.axvspan(left, right, 0, 1 / lanes.get_ylim()[1], color="#000000", alpha=0.06, linewidth=0)
    for x, corner in ((left, 0), (right, 1)):
        ends = {"axesA": lanes, "coordsA": "data", "axesB": switch, "coordsB": "axes fraction"}
        figure.add_artist(ConnectionPatch((x, 0), (corner, 1), **ends, color=FAINT, linewidth=0.8, linestyle=":"))
