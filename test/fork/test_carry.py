"""Three-way merges of hunks: each finds its place, or says where and why not."""

import hashlib

import pytest

from fork import ForkError, base
from fork.carry import APPLIES, CONFLICT, MOVED, blob, carry
from fork.patch import Patch, blobs, hunks

PATH = "python/sglang/a.py"
RELEASE = "import os\n\n\nclass A:\n    x = 1\n\n    def f(self):\n        a = 1\n        b = 2\n        return a\n\n    def g(self):\n        return 3\n"  # fmt: skip


def patch(before: str, *inserted: tuple[int, str], name="one") -> tuple[Patch, str]:
    """A patch that inserts each text after a line of `before`, and the text with it."""
    lines, shift, diff = before.split("\n"), 0, ""
    for after, text in inserted:
        added = text.split("\n")[:-1]
        diff += f"@@ -{after},0 +{after + shift + 1},{len(added)} @@\n"
        diff += "".join(f"+{line}\n" for line in added)
        lines[after + shift : after + shift] = added
        shift += len(added)
    after = "\n".join(lines)
    head = f"diff --git a/{PATH} b/{PATH}\nindex {blob(before)}..{blob(after)} 100644\n"
    head += f"--- a/{PATH}\n+++ b/{PATH}\n"
    sha = hashlib.sha256(RELEASE.encode()).hexdigest()
    return Patch(name, "Subject\n\nWhy.", base.RELEASE, {PATH: sha}, head + diff), after


def carried(other: str | None, *patches: Patch, left_out=()):
    return carry(list(patches), {PATH: RELEASE}.get, {PATH: other}.get, left_out)


def test_hunks_and_blobs_are_read_from_a_diff():
    one, after = patch(RELEASE, (5, "    y = 2\n"), (8, "        c = 3\n        d = 4\n"))
    assert hunks(one.diff) == {
        PATH: [(5, ["    y = 2\n"]), (8, ["        c = 3\n", "        d = 4\n"])]
    }
    assert blobs(one.diff) == {PATH: blob(RELEASE)}
    assert after.split("\n")[5] == "    y = 2" and after.split("\n")[9:11] == ["        c = 3", "        d = 4"]


def test_on_the_release_every_hunk_applies_where_it_was_made():
    one, after = patch(RELEASE, (5, "    y = 2\n"), (8, "        c = 3\n"))
    two, last = patch(after, (0, "import re\n"), name="two")
    done = carried(RELEASE, one, two)
    assert [(h.patch, h.place, h.line, h.there, h.result) for h in done.hooks] == [
        ("one", "A", 5, 5, APPLIES), ("one", "A.f", 8, 8, APPLIES), ("two", "imports", 0, 0, APPLIES)]  # fmt: skip
    assert done.files == {"one": {PATH: after}, "two": {PATH: last}}


def test_a_hunk_follows_its_lines_when_others_come_before_them():
    one, _ = patch(RELEASE, (8, "        c = 3\n"))
    moved = RELEASE.replace("import os\n", "import os\nimport re\nimport sys\n")
    done = carried(moved, one)
    (hook,) = done.hooks
    assert (hook.line, hook.there, hook.result) == (8, 10, MOVED)
    assert done.files["one"][PATH] == moved.replace("a = 1\n", "a = 1\n        c = 3\n")


def test_a_changed_neighbour_is_a_conflict_that_names_function_and_lines():
    one, _ = patch(RELEASE, (5, "    y = 2\n"), (8, "        c = 3\n"))
    done = carried(RELEASE.replace("        b = 2\n", "        b = 5\n"), one)
    assert [(h.place, h.result) for h in done.hooks] == [("A", APPLIES), ("A.f", CONFLICT)]
    (conflict,) = done.conflicts
    assert "b = 5" in conflict.why and "c = 3" in conflict.why and "<<<<<<< there" in conflict.why
    assert "y = 2" in done.files["one"][PATH] and "c = 3" not in done.files["one"][PATH]


def test_a_function_that_is_gone_is_said_to_be_gone():
    one, _ = patch(RELEASE, (8, "        c = 3\n"))
    (conflict,) = carried(RELEASE.replace("def f(self)", "def h(self)").replace("a = 1", "z = 1"), one).conflicts
    assert conflict.why.startswith("there is no A.f\n")


def test_a_file_that_is_gone_is_a_conflict_for_all_its_hunks():
    one, _ = patch(RELEASE, (5, "    y = 2\n"), (8, "        c = 3\n"))
    done = carried(None, one)
    assert [h.why for h in done.conflicts] == [f"there is no {PATH}"] * 2 and done.files == {}


def test_a_hunk_after_one_that_conflicts_still_finds_its_place():
    one, after = patch(RELEASE, (8, "        c = 3\n"))
    two, _ = patch(after, (13, "        e = 5\n"), name="two")
    done = carried(RELEASE.replace("        b = 2\n", "        b = 5\n"), one, two)
    assert [h.result for h in done.hooks] == [CONFLICT, APPLIES]
    assert "def g(self):\n        e = 5\n" in done.files["two"][PATH]


def test_a_patch_left_out_leaves_no_line_and_the_later_ones_fit():
    one, after = patch(RELEASE, (5, "    y = 2\n"))
    two, _ = patch(after, (9, "        c = 3\n"), name="two")
    done = carried(RELEASE, one, two, left_out={"one"})
    assert done.files == {"two": {PATH: RELEASE.replace("a = 1\n", "a = 1\n        c = 3\n")}}
    assert [(h.patch, h.line, h.there) for h in done.hooks] == [("two", 8, 8)]


def test_lines_that_begin_as_the_next_ones_do_go_in_whole():
    one, _ = patch(RELEASE, (11, "    def e(self):\n        return 4\n\n"))
    moved = "\n" + RELEASE
    done = carried(moved, one)
    assert done.files["one"][PATH] == moved.replace("    def g", "    def e(self):\n        return 4\n\n    def g")
    assert done.diffs["one"][PATH] == (moved, [(12, ["    def e(self):\n", "        return 4\n", "\n"])])


def test_lines_that_are_there_already_are_no_second_time_inserted():
    one, after = patch(RELEASE, (8, "        c = 3\n"))
    assert "already" in carried(after, one).conflicts[0].why


def test_line_ends_and_other_bytes_are_kept():
    odd = RELEASE.replace("b = 2\n", "b = '\x0c\udce9'\r\n")
    sha = hashlib.sha256(odd.encode(errors="surrogateescape")).hexdigest()
    one, after = patch(odd, (5, "    y = 2\n"))
    one = Patch(one.name, one.message, one.release, {PATH: sha}, one.diff)
    done = carry([one], {PATH: odd}.get, {PATH: "\r\n" + odd}.get)
    assert done.files["one"][PATH] == "\r\n" + after


def test_a_patch_of_another_release_or_order_is_refused():
    one, after = patch(RELEASE, (5, "    y = 2\n"))
    two, _ = patch(after, (9, "        c = 3\n"), name="two")
    with pytest.raises(ForkError, match="two was made upon another"):
        carried(RELEASE, two)
    with pytest.raises(ForkError, match="one wasn't made for"):
        carry([one], {PATH: RELEASE + "z = 1\n"}.get, {PATH: RELEASE}.get)
