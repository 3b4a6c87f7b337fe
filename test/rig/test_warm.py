"""Processes forked from the warm one are what they would be if started plainly, only sooner."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rig import network, ports
from rig.process import Process, ProcessDied, wait_ended

# timeit is a module that runs what it's told
SAY = "-n1", "-r1"
SHOW = "import os, sys; print(os.environ.get('NAME'), len(os.environ), sys.argv[-1], __name__, os.getsid(0) == os.getpid())"


def forked(tmp_path, *module: str, env=None) -> Process:
    return Process("worker", [sys.executable, "-m", *module], tmp_path / "log", env, forked=True)


def ended(process: Process) -> str:
    process._popen.wait(60)
    return process.log.read_text()


@pytest.mark.parametrize("path", ["", "/tmp/a:/tmp/b"])
def test_the_import_path_is_a_plain_processs(tmp_path, path):
    plain = subprocess.run([sys.executable, "-m", "site"], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert ended(forked(tmp_path, "site", env={"PYTHONPATH": path})) == plain.stdout


def test_environment_arguments_and_session_are_its_own(tmp_path):
    env = {"NAME": "x", "OMP_NUM_THREADS": "1"}
    expected = subprocess.run(
        [sys.executable, "-m", "timeit", *SAY, SHOW], env=os.environ | env, capture_output=True, text=True, start_new_session=True
    )
    assert ended(forked(tmp_path, "timeit", *SAY, SHOW, env=env)).splitlines()[0] == expected.stdout.splitlines()[0]


def test_torch_is_there_already(tmp_path):
    assert ended(forked(tmp_path, "timeit", *SAY, "import sys; print('torch' in sys.modules, 'sglang' in sys.modules)")).startswith("True False")


def test_its_title_can_be_set_as_schedulers_do(tmp_path):
    show = "import setproctitle; setproctitle.setproctitle('a scheduler'); print(open('/proc/self/cmdline').read().strip(chr(0)))"
    assert ended(forked(tmp_path, "timeit", *SAY, show)).startswith("a scheduler\n")


def test_an_error_is_in_the_log_and_the_code(tmp_path):
    process = forked(tmp_path, "timeit", *SAY, "import os; os._exit(3)")
    wait_ended(process.pid, timeout=60)
    with pytest.raises(ProcessDied, match="code 3"):
        process.check_alive()
    process = forked(tmp_path, "no_such_module")
    wait_ended(process.pid, timeout=60)
    with pytest.raises(ProcessDied, match="No module named no_such_module"):
        process.check_alive()


def test_ends_and_starts_again(tmp_path):
    port = ports.free_port()
    process = forked(tmp_path, "http.server", str(port), "--bind", "127.0.0.1")
    for _ in range(2):
        process.wait_ready(f"http://127.0.0.1:{port}/", timeout=60)
        process.kill()
        assert process._popen.poll() == -signal.SIGKILL and not process.alive()
        process.start_again()
    process.stop()
    assert not process.alive()


def test_dies_with_the_rig(tmp_path):
    """However the rig ends: here by SIGKILL."""
    rig = "import pathlib, sys, time; from rig.process import Process\n"
    rig += f"p = Process('w', [sys.executable, '-m', 'timeit', 'import time; time.sleep(99)'], pathlib.Path({str(tmp_path / 'log')!r}), forked=True)\n"
    rig += "print(p.pid, flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", rig], stdout=subprocess.PIPE, text=True) as started:
        pid = int(started.stdout.readline())
        started.kill()
    wait_ended(pid, timeout=30)


@pytest.mark.skipif(network.problem() is not None, reason=str(network.problem()))
def test_on_a_host_of_its_own(tmp_path):
    net = network.Network()
    try:
        port = ports.free_port()
        serve = [sys.executable, "-m", "http.server", str(port), "--bind", net.addresses["decode"]]
        process = Process("worker", net.command("decode", serve), tmp_path / "log", forked=True)
        process.wait_ready(f"http://{net.addresses['decode']}:{port}/", timeout=60)
        process.stop()
    finally:
        net.close()
    assert time.monotonic() - process.started_at < 60
