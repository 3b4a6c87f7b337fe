"""Network namespaces of the rig: reachable, shaped, cut off, and always taken away."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from rig import network, ports
from rig.network import Network
from rig.process import Process, wait_ended

pytestmark = pytest.mark.skipif(network.problem() is not None, reason=str(network.problem()))


def _names() -> set[str]:
    namespaces = json.loads(subprocess.check_output(["ip", "-json", "netns", "list"]) or "[]")
    links = json.loads(subprocess.check_output(["ip", "-json", "link", "show"]))
    return {entry["name"] for entry in namespaces} | {entry["ifname"] for entry in links}


@contextlib.contextmanager
def _server(net: Network, host: str, folder, size: int):
    """Serve a file of `size` bytes on `host`; yields its URL."""
    (folder / "file").write_bytes(os.urandom(size))
    port = ports.free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--directory", str(folder)]
    process = Process(host, net.command(host, command), folder.parent / f"{host}.log")
    try:
        process.wait_ready(f"http://{net.addresses[host]}:{port}/", timeout=30)
        yield f"http://{net.addresses[host]}:{port}/file"
    finally:
        process.stop()


def _seconds(url: str) -> float:
    start = time.monotonic()
    urllib.request.urlopen(url, timeout=30).read()
    return time.monotonic() - start


def test_rate_holds_and_changes_live(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    with contextlib.closing(Network(link_mbit=16)) as net, _server(net, "prefill", folder, size=2_000_000) as url:
        assert 0.8 < _seconds(url) < 2.5  # 2 MB are 1 s at 16 Mbit/s
        net.set_rate(None)
        assert _seconds(url) < 0.5


def test_only_the_prefill_host_is_shaped(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    with contextlib.closing(Network(link_mbit=1)) as net, _server(net, "decode", folder, size=2_000_000) as url:
        assert _seconds(url) < 2


def test_host_cut_off_and_back(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    with contextlib.closing(Network()) as net, _server(net, "decode", folder, size=10) as url:
        net.down("decode")
        with pytest.raises(OSError):
            urllib.request.urlopen(url, timeout=1)
        net.up("decode")
        assert _seconds(url) < 20


def test_two_hosts_cut_from_each_other_only(tmp_path):
    """A stream under way stalls while they are cut, and is complete after; a third host sees nothing of it."""
    folder = tmp_path / "www"
    folder.mkdir()
    read = "import sys, urllib.request as u; print(len(u.urlopen(sys.argv[1], timeout=20).read()), flush=True)"
    with contextlib.closing(Network(link_mbit=16)) as net, _server(net, "prefill", folder, size=1_000_000) as url:
        far = subprocess.Popen(net.command("decode", [sys.executable, "-c", read, url]), stdout=subprocess.PIPE, text=True)
        time.sleep(0.3)
        net.cut("decode", "prefill")
        assert _seconds(url) < 5
        time.sleep(0.5)
        assert far.poll() is None
        net.heal("decode", "prefill")
        assert far.communicate(timeout=20)[0] == "1000000\n"


def test_close_leaves_nothing():
    before = _names()
    net = Network(link_mbit=40)
    assert _names() - before
    net.close()
    net.close()
    assert _names() == before


def test_leftovers_of_a_killed_run_go_at_the_next_start():
    before = _names()
    crashed = "from rig.network import Network; import subprocess, time; n = Network(40); "
    crashed += "print(subprocess.Popen(n.command('decode', ['sleep', '60'])).pid, flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", crashed], stdout=subprocess.PIPE, text=True)
    left_inside = int(owner.stdout.readline())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert _names() - before
    Network().close()
    assert _names() == before
    wait_ended(left_inside)


def test_networks_of_the_living_stay():
    with contextlib.closing(Network()) as one, contextlib.closing(Network()) as two:
        assert network.remove_leftovers() == []
        assert not set(one.addresses.values()) & set(two.addresses.values())
