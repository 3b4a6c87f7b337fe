"""make rebase: the table, its exit status, what it finds missing, and --write."""

import hashlib
import re
import zipfile

import pytest

from fork import base
from fork_copy import UPSTREAM

OTHER = "0.5.1"


@pytest.fixture
def release(copy):
    """Makes another release for the copy: the pinned one's files, with changes."""

    def make(changes: dict[str, str]) -> None:
        name = copy.wheel.name.replace(base.UPSTREAM, OTHER, 1)
        with zipfile.ZipFile(copy.wheel.with_name(name), "w") as archive:
            for path, text in (UPSTREAM | changes).items():
                archive.writestr(path, text)

    copy.write("python/sglang/srt/handoff/ours.py", "from sglang.srt.b import c\nfrom sglang.srt import a\n")
    return make


def rows(said: str) -> list[tuple[str, ...]]:
    return re.findall(r"^(\w+)  +(\S+)  +(\S+)  +(\d+)  +(\d*) *(\S.*)$", said, re.MULTILINE)


def test_on_the_same_files_all_applies(copy, release):
    release({})
    before = copy.snapshot()
    said = copy.run("rebase", OTHER)
    assert rows(said) == [("one", "a.py", "module", "10", "10", "applies"), ("two", "a.py", "module", "5", "5", "applies"),
                          ("two", "b.py", "module", "2", "2", "applies")]  # fmt: skip
    assert f"sglang {OTHER}: 3 hooks: 3 applies\n" in said
    assert copy.snapshot() == before


def test_moved_and_conflicting_hooks_are_told_apart_and_fail(copy, release):
    release({
        "sglang/srt/a.py": "new = 1\n" + UPSTREAM["sglang/srt/a.py"],
        "sglang/srt/b.py": UPSTREAM["sglang/srt/b.py"].replace("    return 'é'\n", "    return 'è'\n"),
    })  # fmt: skip
    before = copy.snapshot()
    said = copy.run("rebase", OTHER, code=1)
    assert [row[3:] for row in rows(said)] == [("10", "11", "applies, moved"), ("5", "6", "applies, moved"), ("2", "", "conflict")]  # fmt: skip
    assert "== two: python/sglang/srt/b.py, module\n" in said and "return 'è'" in said
    assert "3 hooks: 2 applies, moved, 1 conflict\n" in said
    assert "patches/ stays as it is" in copy.run("rebase", OTHER, "--write", code=1)
    assert copy.snapshot() == before


@pytest.mark.parametrize(
    ("text", "name"),
    [("def b():\n    return 'é'\n", "sglang.srt.b.c"), (None, "sglang.srt.b.c")],
)
def test_what_our_files_import_and_the_release_hasnt_is_named_and_fails(copy, release, text, name):
    copy.run("tree")
    (copy.patches / "0002-two.patch").unlink()
    release({} if text is None else {"sglang/srt/b.py": text})
    if text is None:
        copy.write("python/sglang/srt/handoff/ours.py", "from sglang.srt.b.c import d\n")
        name = "sglang.srt.b.c.d"
    said = copy.run("rebase", OTHER, code=1)
    assert f"python/sglang/srt/handoff/ours.py: {name}\n" in said and "1 of our imports missing" in said


def test_write_gives_patches_that_fit_once_that_release_is_pinned(copy, release):
    """And they are as `python -m fork patches` writes them."""
    copy.insert(34, "fourth = 4\nfifth = 5")
    copy.run("patches", "--into", "two")
    moved = {"sglang/srt/a.py": "new = 1\n" + UPSTREAM["sglang/srt/a.py"]}
    release(moved)
    wanted = "new = 1\n" + (copy.tree / "sglang/srt/a.py").read_text()
    said = copy.run("rebase", OTHER, "--write")
    assert re.findall(r"^patches/.*", said, re.MULTILINE) == ["patches/0001-one.patch", "patches/0002-two.patch"]
    name = copy.wheel.name.replace(base.UPSTREAM, OTHER, 1)
    sha = hashlib.sha256(copy.wheel.with_name(name).read_bytes()).hexdigest()
    assert f'"{name}" = "{sha}"' in said
    # The same files as a wheel of the pinned name stand for pinning it.
    written = {name: text.replace(f"Base: sglang {OTHER}\n".encode(), f"Base: {base.RELEASE}\n".encode())
               for name, text in copy.snapshot().items()}  # fmt: skip
    assert written != copy.snapshot()
    copy.pin(UPSTREAM | moved)
    copy.run("tree", "--force")
    assert (copy.tree / "sglang/srt/a.py").read_text() == wanted
    copy.run("patches")
    assert copy.snapshot() == written


def test_write_refuses_while_the_tree_has_edits(copy, release):
    release({})
    copy.insert(20, "precious = 1")
    before = copy.snapshot()
    assert "uncommitted edits" in copy.run("rebase", OTHER, "--write", code=1)
    assert copy.snapshot() == before


def test_a_text_that_is_no_version_is_refused(copy):
    assert "is no version of" in copy.run("rebase", "../x", code=1)
