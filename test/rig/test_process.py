"""Processes of the rig: ports, deaths, ends."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rig import ports
from rig.process import NotReady, Process, ProcessDied, wait_ended

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_death_while_starting_shows_the_log(tmp_path):
    process = Process("worker", [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"], tmp_path / "log")
    with pytest.raises(ProcessDied, match=r"worker .* code 3(.|\n)*no such model"):
        process.wait_ready(f"http://127.0.0.1:{ports.free_port()}/health", timeout=30)


def test_log_tail_is_short(tmp_path):
    long = "import sys; [print(i, 'x' * 10_000) for i in range(100)]"
    process = Process("worker", [sys.executable, "-c", long], tmp_path / "log")
    wait_ended(process.pid)
    assert "99 xxx" in process.tail() and len(process.tail()) < 20_000


def test_silence_while_starting_shows_the_log(tmp_path):
    process = Process("worker", [sys.executable, "-uc", "print('loading'); import time; time.sleep(60)"], tmp_path / "log")
    with pytest.raises(NotReady, match=r"within 1 s(.|\n)*loading"):
        process.wait_ready(f"http://127.0.0.1:{ports.free_port()}/health", timeout=1)
    process.stop()


def test_ready_when_healthy(tmp_path):
    port = ports.free_port()
    process = Process("server", [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], tmp_path / "log")
    process.wait_ready(f"http://127.0.0.1:{port}/", timeout=30)
    assert process.alive() and process.ready_after > 0
    process.stop()
    assert not process.alive()


def test_start_again_after_a_crash(tmp_path):
    command = [sys.executable, "-uc", "import os, time; print(os.environ['NAME']); time.sleep(60)"]
    process = Process("worker", command, tmp_path / "log", {"NAME": "x"})
    first = process.pid
    with pytest.raises(RuntimeError, match="still runs"):
        process.start_again()
    process.kill()
    process.start_again()
    assert process.alive() and process.pid != first
    while "x\n" not in process.log.read_text():
        time.sleep(0.02)
    process.stop()
    assert not process.alive()


def test_stop_ends_children_and_the_deaf(tmp_path):
    deaf = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += f"print(subprocess.Popen({SLEEP!r}).pid, flush=True); time.sleep(60)"
    process = Process("deaf", [sys.executable, "-c", deaf], tmp_path / "log")
    while not (child := process.log.read_text()):
        time.sleep(0.02)
    process.stop(timeout=0.5)
    assert not process.alive()
    wait_ended(int(child))
    process.stop()  # nothing left to do


def test_processes_end_with_a_killed_rig(tmp_path):
    rig = f"from rig.process import Process; import time; print(Process('x', {SLEEP!r}, {str(tmp_path / 'log')!r}).pid, flush=True); "
    owner = subprocess.Popen([sys.executable, "-c", rig + "time.sleep(60)"], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_ended(pid)


def test_only_the_main_thread_starts_processes(tmp_path):
    errors = []

    def start():
        with pytest.raises(RuntimeError, match="main thread") as error:
            Process("x", SLEEP, tmp_path / "log")
        errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert errors
