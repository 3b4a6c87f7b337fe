"""The benchmark suite, short, on real workers behind every router."""

import json

import pytest

from benchmark.handoff.suite import __main__ as suite
from benchmark.handoff.suite import report
from rig import servers

pytestmark = pytest.mark.real


def test_a_short_run_through_every_router_is_whole(tmp_path, monkeypatch):
    arguments = ["--arms", "unified", "handoff", "--routers", *servers.ROUTERS, "--repeats", "1", "--size", "0.4"]
    monkeypatch.setattr("sys.argv", ["suite", *arguments, "--out", str(tmp_path)])
    assert suite.main() == 0, "an error, a leak or a different answer"
    result = json.loads((tmp_path / report.FIGURES).read_text())
    rows = {(row["case"], row["arm"], row["router"]): row["all"] for row in result["rows"]}
    closed = "expected: closed loop, 1 at once"
    assert {router for case, arm, router in rows if (case, arm) == (closed, "PD + handoff")} == set(servers.ROUTERS)
    assert {router for case, arm, router in rows if (case, arm) == (closed, "unified x2")} == {"sglang", "smg"}
    assert len({case for case, _, _ in rows}) == 5
    for (case, arm, _), row in rows.items():
        assert row["whole"] + row["cancelled"] == row["requests"] > 1 and row["ttft"]["p50"]["value"] > 0
        if arm == "PD + handoff":
            assert row["outcomes"].get("committed", 0) > 0, f"{case}: nothing was handed over"
    assert any(row["cancelled"] for row in rows.values()), "the hard mix has clients that go away"
    assert result["compared"] > 20
    _, blocks = report.load_raw([tmp_path / report.RAW])
    assert sum(len(block.samples) for block in blocks) == sum(row["requests"] for row in rows.values())
    assert all((tmp_path / name).exists() for name in (report.TEXT, "distributions.png", "prompts.png"))
