"""The copy of the repository that the tests of the fork tool share."""

import shutil
from pathlib import Path

import pytest

from fork import base
from fork_copy import Copy


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A copy with its tree and two patches: one of a.py, a later one of a.py and b.py."""
    copy = Copy(tmp_path_factory.mktemp("made") / "copy")
    copy.insert(10, "first = 1")
    copy.new("one")
    copy.insert(5, "second = 2")
    copy.insert(2, "third = 'ü'", "b")
    copy.new("two")
    return copy.root


@pytest.fixture
def copy(made, tmp_path) -> Copy:
    root = shutil.copytree(made, tmp_path / "copy", symlinks=True)
    copy = Copy.__new__(Copy)
    copy.root, copy.tree, copy.patches = root, root / "build/tree", root / "patches"
    copy.wheel = root / "build/base" / base.wheel_name()
    return copy
