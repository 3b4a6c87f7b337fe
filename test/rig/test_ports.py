"""Ports for servers are nobody's."""

import socket

import pytest

from rig import ports


def test_a_port_is_given_once_and_is_none_that_the_kernel_gives():
    given = [ports.free_port() for _ in range(200)]
    assert len(set(given)) == len(given)
    assert not set(given) & set(ports.ephemeral())


@pytest.mark.parametrize("text, low, high", [("32768 60999", 20000, 32767), ("1024 60000", 60001, 65535), ("1024 65535", 1024, 65535)])
def test_whatever_the_kernel_takes(monkeypatch, tmp_path, text, low, high):
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    (tmp_path / "range").write_text(text)
    assert all(low <= ports.free_port() <= high for _ in range(100))


def test_one_that_is_taken_is_passed_over(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        free = ports.free_port()
        monkeypatch.setattr(ports, "_given", set())
        draws = iter([taken.getsockname()[1], free, free])
        monkeypatch.setattr(ports._draw, "choice", lambda candidates: next(draws))
        assert ports.free_port() == free
        with pytest.raises(StopIteration):  # that one has been given now
            ports.free_port()


def test_none_is_free(monkeypatch):
    monkeypatch.setattr(ports, "_free", lambda port: False)
    with pytest.raises(OSError, match="no free TCP port"):
        ports.free_port()
