"""What is read of the environment, and what is set, is known."""

import os

import pytest

from rig.reads import Reads

KNOWN = {"SET": "1", "OTHER": "2", "GONE": "3"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in KNOWN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ABSENT", raising=False)


@pytest.mark.parametrize(
    "read", [lambda: os.environ["SET"], lambda: os.environ.get("SET"), lambda: os.getenv("SET", "x"), lambda: "SET" in os.environ]
)
def test_one_that_was_read_must_be_the_same(read):
    with Reads() as reads:
        read()
    assert reads.same(KNOWN) and reads.same({"SET": "1"})
    assert not reads.same({"SET": "2"}) and not reads.same({})


def test_one_that_was_looked_for_must_be_absent():
    with Reads() as reads:
        os.environ.get("ABSENT")
    assert reads.same({}) and not reads.same({"ABSENT": ""})


def test_going_through_all_reads_none():
    with Reads() as reads:
        list(os.environ.items()), list(os.environ.values())
    assert reads.same({})
    with Reads() as reads:
        dict(os.environ)
    assert reads.same(os.environ) and not reads.same({})


def test_one_that_was_read_while_going_through_all_was_read():
    with Reads() as reads:
        for name in os.environ:
            os.environ.get("SET" if name != "SET" else "ABSENT")
        assert [os.environ.get("OTHER") for name in os.environ if name == "OTHER"] == ["2"]
    assert reads.same({"SET": "1"})
    assert not reads.same({}) and not reads.same({"SET": "1", "ABSENT": ""})


def test_what_was_set_is_no_part_of_what_was_found(monkeypatch):
    with Reads() as reads:
        os.environ["ABSENT"], os.environ["SET"] = "new", "new"
        assert os.environ["ABSENT"] == os.environ["SET"] == "new"
        monkeypatch.delenv("GONE")
    del os.environ["ABSENT"]
    assert reads.changes == {"ABSENT": "new", "SET": "new", "GONE": None}
    again = {"SET": "1", "GONE": "3", "MORE": "4"}
    reads.make_changes(again)
    assert again == {"SET": "new", "ABSENT": "new", "MORE": "4"}
    assert reads.same({"SET": "1", "GONE": "3"}) and not reads.same({"SET": "new", "GONE": "3"})


def test_outside_nothing_is_noted():
    with Reads() as reads:
        pass
    os.environ.get("SET")
    assert reads.same({}) and reads.changes == {}
