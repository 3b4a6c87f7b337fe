"""The benchmark of the short extend: its own check passes, and without a GPU it measures nothing and says so."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[3] / "benchmark/handoff/bench_short_extend.py"


def run(*args):
    return subprocess.run([sys.executable, BENCH, *args], capture_output=True, text=True)


def test_check_passes():
    done = run("--check")
    assert done.returncode == 0 and done.stdout.startswith("right: "), done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is something to measure")
def test_without_a_gpu_nothing_is_measured(tmp_path):
    done = run("--out", tmp_path / "out")
    assert done.returncode == 2 and "No CUDA GPU" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_table_shows_what_was_not_measured():
    spec = importlib.util.spec_from_file_location("bench_short_extend", BENCH)
    bench = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = bench
    spec.loader.exec_module(bench)
    place = {"prefix": 4096, "new": 8, "batch": 1}
    rows = [place | {"kernel": name, "not_measured": "ImportError: no"} for name in bench.COLUMNS]
    rows[0] = place | {"kernel": "short extend", "microseconds": 12.34, "fraction_of_floor": 0.5}
    head = {"gpu": "a GPU", "date": "a day", "torch": "1", "triton": "2", "copy_gb_per_second": 3.0}
    text = bench.table(head | {"rows": rows})
    assert "| 4096 | 8 | 1 | 12.3 (0.50) | - | - | - |" in text
    assert "- FA3: ImportError: no" in text and "a GPU, a day" in text
