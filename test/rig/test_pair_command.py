"""`make pair`: what it prints works, and Ctrl-C ends all of it."""

import contextlib
import json
import re
import signal
import subprocess
import sys

import pytest

from rig import servers

pytestmark = pytest.mark.real


@contextlib.contextmanager
def kept_up(*args: str):
    """`make pair`: yield the lines that it prints; then Ctrl-C, after which nobody may listen any more."""
    rig = subprocess.Popen(
        [sys.executable, "-m", "rig", *args],
        cwd=servers.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        # as a shell starts what is to run in the background
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    printed = ""
    try:
        while "Ctrl-C" not in printed:
            line = rig.stdout.readline()
            assert line, f"ended with {rig.wait()}: {printed}"
            printed += line
        yield printed.splitlines()
    finally:
        rig.send_signal(signal.SIGINT)
        assert rig.wait(timeout=180) == 0
    for url in set(re.findall(r"http://127\.0\.0\.1:\d+", printed)):
        assert subprocess.run(["curl", "-s", f"{url}/health"], timeout=10).returncode == 7, "nobody listens any more"


def run(command: str) -> str:
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=180).stdout


def test_the_first_request_is_handed_off():
    with kept_up() as lines:
        ask, info, metrics = (line for line in lines if line.startswith("curl"))
        record = json.loads(run(ask))["meta_info"]["handoff"]
        assert record["outcome"] == "committed" and record["tokens_bridged"] > 0
        assert "'peers'" in run(info)
        assert re.search(r'handoff_requests_total{.*outcome="committed".*} 1', run(metrics))


def test_one_worker_without_the_handoff_and_more_arguments():
    with kept_up("--off", "prefill", "--", "--enable-request-time-stats-logging") as lines:
        ask, info, metrics = (line for line in lines if line.startswith("curl"))
        assert json.loads(run(ask))["meta_info"]["handoff"]["reason"] == "not_opened"
        assert "'not_opened': 1" in run(info)
        (log,) = (line.split()[-1] for line in lines if line.startswith("decode"))
        assert "handoff=ordinary (not_opened)" in run(f"cat {log}")
        assert subprocess.run(metrics, shell=True, capture_output=True).returncode == 1, "nothing of P's"
