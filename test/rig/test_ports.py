"""Ports for servers are nobody's."""

import socket
import subprocess
import sys

import pytest

from rig import ports
from rig.servers import ROOT


def test_a_port_is_given_once():
    given = [ports.free_port() for _ in range(200)]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("text, low, high", [("32768 60999", 20000, 32767), ("1024 60000", 60001, 65535), ("1024 65535", 1024, 65535)])
def test_it_is_none_of_the_kernels_if_there_are_others(monkeypatch, tmp_path, text, low, high):
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    (tmp_path / "range").write_text(text)
    assert all(low <= ports.free_port() <= high for _ in range(100))


def drawn(monkeypatch, *draws: int) -> int:
    """The port that is given when these are drawn."""
    left = iter(draws)
    monkeypatch.setattr(ports._draw, "choice", lambda candidates: next(left))
    return ports.free_port()


def test_one_that_is_taken_or_was_given_is_passed_over(monkeypatch):
    given = ports.free_port()
    with socket.socket() as taken:
        taken.bind(("", 0))
        with pytest.raises(StopIteration):
            drawn(monkeypatch, taken.getsockname()[1], given)


def test_one_of_another_rig_is_passed_over(monkeypatch):
    """Which has been given it, and may not listen yet."""
    code = "from rig import ports; print(ports.free_port(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rig:
        port = int(rig.stdout.readline())
        with pytest.raises(StopIteration):
            drawn(monkeypatch, port)
        rig.communicate("\n")
    assert drawn(monkeypatch, port) == port


def test_none_is_free(monkeypatch):
    monkeypatch.setattr(ports, "_free", lambda port: False)
    with pytest.raises(OSError, match="no free TCP port"):
        ports.free_port()
