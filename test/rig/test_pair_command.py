"""`make pair`: what it prints works, and Ctrl-C ends all of it."""

import json
import re
import signal
import subprocess
import sys

import pytest

from rig import servers

pytestmark = pytest.mark.real


def test_a_pair_is_kept_up_until_ctrl_c():
    rig = subprocess.Popen(
        [sys.executable, "-m", "rig"],
        cwd=servers.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        # as a shell starts what is to run in the background
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        printed = ""
        while "Ctrl-C" not in printed:
            line = rig.stdout.readline()
            assert line, f"ended with {rig.wait()}: {printed}"
            printed += line
        ask, info, metrics = (line for line in printed.splitlines() if line.startswith("curl"))
        run = lambda command: subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=180).stdout
        record = json.loads(run(ask))["meta_info"]["handoff"]
        assert record["outcome"] in ("committed", "finished")
        assert "'peers'" in run(info)
        assert re.search(r'handoff_requests_total{.*outcome="(committed|finished)".*} 1', run(metrics))
        workers = re.findall(r"http://127\.0\.0\.1:\d+", printed)
    finally:
        rig.send_signal(signal.SIGINT)
        assert rig.wait(timeout=180) == 0
    for url in set(workers):
        assert subprocess.run(["curl", "-s", f"{url}/health"], timeout=10).returncode == 7, "nobody listens any more"
