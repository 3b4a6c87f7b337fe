"""Processes forked from the warm one are what they would be if started plainly, only sooner."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rig import network, ports, servers
from rig.process import Process, ProcessDied, wait_ended

# timeit is a module that runs what it's told
SAY = "-n1", "-r1"
LOADED = "import sys; print('torch' in sys.modules, 'sglang' in sys.modules)"
ENV = servers.worker_env(servers.Options(), "http://127.0.0.1")


def forked(tmp_path, *module: str, env=ENV) -> Process:
    return Process("worker", [sys.executable, "-m", *module], tmp_path / "log", env, forked=True)


def ended(process: Process) -> str:
    process._popen.wait(60)
    return process.log.read_text()


@pytest.mark.parametrize("more", ["", "/tmp/a:/tmp/b"])
def test_the_import_path_is_a_plain_processs(tmp_path, more):
    env = ENV | {"PYTHONPATH": os.pathsep.join(filter(None, (ENV["PYTHONPATH"], more)))}
    plain = subprocess.run([sys.executable, "-m", "site"], env=os.environ | env, capture_output=True, text=True)
    assert ended(forked(tmp_path, "site", env=env)) == plain.stdout


def test_arguments_and_session_are_its_own(tmp_path):
    show = "import os, sys; print(sys.argv[-1], __name__, os.getsid(0) == os.getpid())"
    expected = subprocess.run(
        [sys.executable, "-m", "timeit", *SAY, show], env=os.environ | ENV, capture_output=True, text=True, start_new_session=True
    )
    assert ended(forked(tmp_path, "timeit", *SAY, show)).splitlines()[0] == expected.stdout.splitlines()[0]


def test_the_environment_is_its_own_and_what_sglang_sets(tmp_path):
    show = "import os; print(*os.environ)"
    one, other = (
        set(ended(forked(tmp_path, "timeit", *SAY, show, env=ENV | {name: "x"})).splitlines()[0].split()) for name in ("ONE", "OTHER")
    )
    assert one - other == {"ONE"} and other - one == {"OTHER"}
    assert one >= {*os.environ, *ENV, "TRITON_CACHE_DIR"}


def test_sglang_and_torch_are_there_already(tmp_path):
    assert ended(forked(tmp_path, "timeit", *SAY, LOADED)).startswith("True True")


def test_one_that_would_have_imported_something_else_is_started_plainly(tmp_path):
    other = tmp_path / "other"
    (other / "sglang").mkdir(parents=True)
    for number, change in enumerate((
        {"SGLANG_USE_CPU_ENGINE": "0"},
        {"SGLANG_TEST_RETRACT": "1"},
        {"PYTHONPATH": "/tmp/a"},
        {"PYTHONPATH": f"{ENV['PYTHONPATH']}:{other}"},
    )):  # fmt: skip
        (tmp_path / str(number)).mkdir()
        show = LOADED + "; import os; print(sorted(os.environ.items()), os.getsid(0) == os.getpid())"
        env = os.environ | ENV | change
        loaded, rest = ended(forked(tmp_path / str(number), "timeit", *SAY, show, env=ENV | change)).splitlines()[:2]
        assert loaded == "False False" and rest == f"{sorted(env.items())} True"


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
