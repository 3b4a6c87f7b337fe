"""The benchmark suite, short, on real workers: behind every router, and by the GPU command's own way of starting them."""

import json

import pytest

from benchmark.handoff.suite import __main__ as suite
from benchmark.handoff.suite import report
from rig import servers

pytestmark = pytest.mark.real


def run(monkeypatch, folder, *arguments):
    """Run the suite; return its figures by case, arm and router."""
    monkeypatch.setattr("sys.argv", ["suite", *map(str, arguments), "--repeats", "1", "--out", str(folder)])
    assert suite.main() == 0, "an error, a leak or a different answer"
    result = json.loads((folder / report.FIGURES).read_text())
    return result, {(row["case"], row["arm"], row["router"]): row["all"] for row in result["rows"]}


def test_a_short_run_through_every_router_is_whole(tmp_path, monkeypatch):
    arguments = ["--arms", "unified", "handoff", "--routers", *servers.ROUTERS, "--size", 0.3, "--rate", 6, "--link-mbit", 160]
    result, rows = run(monkeypatch, tmp_path, *arguments)
    closed = "expected: closed loop, 1 at once"
    assert {router for case, arm, router in rows if (case, arm) == (closed, "PD + handoff")} == set(servers.ROUTERS)
    assert {router for case, arm, router in rows if (case, arm) == (closed, "unified x2")} == {"sglang", "smg"}
    assert len({case for case, _, _ in rows}) == 5
    for row in rows.values():
        assert row["whole"] + row["cancelled"] == row["requests"] > 1 and row["ttft"]["p50"]["value"] > 0
    handed_over = sum(row["outcomes"].get("committed", 0) for (_, arm, _), row in rows.items() if arm == "PD + handoff")
    assert handed_over > 5
    assert any(row["cancelled"] for row in rows.values()), "the hard mix has clients that go away"
    assert result["compared"] > 20
    _, blocks = report.load_raw([tmp_path / report.RAW])
    assert sum(len(block.samples) for block in blocks) == sum(row["requests"] for row in rows.values())
    assert all((tmp_path / name).exists() for name in (report.TEXT, "distributions.png", "prompts.png"))


def test_the_gpu_command_starts_and_measures_an_arm(tmp_path, monkeypatch):
    options = servers.Options(env={"SGLANG_PLUGINS": "fast_start"})
    for name, value in servers.worker_env(options, "http://127.0.0.1").items():
        monkeypatch.setenv(name, value)
    on_cpu = ["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32", "--disable-overlap-schedule"]
    on_cpu += [
        "--max-total-tokens",
        "16384",
        "--sleep-on-idle",
        "--skip-server-warmup",
        "--disaggregation-decode-retraction-backup",
        "cpu_tensor",
    ]
    arguments = ["--on", "gpu", "--arms", "handoff", "--model", servers.TINY, "--backend", "mooncake_tcp", "--ids", 10, 500]
    arguments += [f"--worker-arg={one}" for one in on_cpu]
    _, rows = run(
        monkeypatch, tmp_path, *arguments, "--traffic", "expected", "--prompts", 512, 1024, "--concurrency", 1, "--size", 0.1
    )
    assert {case for case, _, _ in rows} == {
        "512 tokens: closed loop, 1 at once",
        "1024 tokens: closed loop, 1 at once",
        "expected: Poisson, 1/s",
    }
    assert all(row["whole"] == row["requests"] > 1 for row in rows.values())
    assert "Public, H20, 1 at once, 16384 tokens: unified TTFT 2299.78 ms" in (tmp_path / report.TEXT).read_text()
