"""The simulator still says what was measured at the points of benchmark/handoff/agreement."""

import dataclasses
import json

import pytest

from benchmark.handoff.agreement import figures, points, report, simulated
from rig import servers

MEASURED = servers.ROOT / "benchmark/handoff/results/2026-12-01-cpu/agreement" / report.JSON
ROWS = json.loads(MEASURED.read_text())["rows"]


def test_what_was_measured_are_the_points():
    """A point that is changed has to be measured again."""
    measured = [row["point"] for row in ROWS]
    assert measured == [dataclasses.asdict(point) for point in points.POINTS for _ in points.ARMS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['point']['name']}, {row['arm']}")
def test_the_simulator_agrees(row):
    """The rate, and how long t1 and a whole answer take."""
    found = simulated.simulate(points.Point(**row["point"]), row["arm"])
    for figure in ("tokens/s", "TTFT p50", "whole answer p50"):
        assert abs(report.error(row["measured"][figure], found[figure])) < 0.15, figure


def test_figures_by_hand():
    found = figures.of([1.0, 2.0], [], [3.0, 5.0], 7.0)
    assert found == {
        "TTFT p50": 1000.0, "TTFT p95": 2000.0, "gap at the switch p50": None, "gap at the switch p95": None,
        "whole answer p50": 3000.0, "whole answer p95": 5000.0, "tokens/s": 7.0,
    }  # fmt: skip


def test_a_link_takes_as_long_as_the_point_says():
    point = points.POINTS[0]
    assert points.PROMPT * 2048 / point.network.kv_rate == pytest.approx(point.prompt_on_link)


def test_the_simulator_overshoots_by_its_share():
    assert report.error(100.0, 110.0) == pytest.approx(0.1)
