"""The fork tool: most tests run it in a small copy of the repository upon a made-up base wheel."""

import csv
import hashlib
import os
import re
import shutil
import subprocess
import venv
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from fork import ForkError, base, tree
from fork.patch import read_patch
from fork_copy import ROOT, UPSTREAM, Copy

DIST_INFO = f"{base.NAME}-{base.VERSION}.dist-info"


# The repository's own patches and files


def test_patches_hold_only_insertions_and_no_text_of_sglang():
    for path in sorted((ROOT / "patches").glob("*")):
        read_patch(path)
        _, diff = path.read_text().split("\ndiff --git ", 1)
        for line in diff.split("\n")[1:-1]:
            assert re.match(r"\+|(diff --git|index|---) \S|@@ -\d+,0 \+\d+(,\d+)? @@$", line), (
                f"{path.name}: {line}"
            )


def test_patches_apply_to_the_pinned_release_and_regenerate_identically(tmp_path):
    root = tmp_path / "copy"
    for folder in ("fork", "patches", "python"):
        if (ROOT / folder).exists():
            shutil.copytree(ROOT / folder, root / folder)
    (root / "build/base").mkdir(parents=True)
    (root / "build/base" / base.wheel_name()).symlink_to(base.fetch())
    copy = Copy.__new__(Copy)
    copy.root, copy.patches = root, root / "patches"
    before = copy.snapshot()
    copy.run("tree")
    assert copy.run("patches") == "patches/ is unchanged\n"
    assert copy.snapshot() == before


def significant(text: str) -> list[str]:
    """Lines that say something: no blank lines, comments, imports, lone names or brackets."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if not re.fullmatch(r"#.*|(import|from) .*|\w*\W*", line)]


def copied_runs(ours: dict[str, str], upstream, length: int = 12):
    """Our files that share `length` consecutive significant lines with an upstream file."""
    shingles, known = {}, set()
    for name, text in ours.items():
        lines = significant(text)
        known.update(lines)
        for at in range(len(lines) - length + 1):
            shingles[tuple(lines[at : at + length])] = name
    for theirs, text in upstream:
        run: list[str] = []
        for line in significant(text):
            run = [*run[1 - length :], line] if line in known else []
            if name := shingles.get(tuple(run)):
                yield f"{name} has lines of {theirs}, from {run[0]!r}"


def pristine_python(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                yield name, archive.read(name).decode(errors="replace")


def test_our_files_copy_no_upstream_file():
    ours = {
        n: p.read_text(errors="replace") for n, p in tree.our_files().items() if n.endswith(".py")
    }
    assert list(copied_runs(ours, pristine_python(base.fetch()))) == []


def test_a_copied_run_is_found_whatever_its_indentation_and_comments():
    run = [f"x{n} = f({n})" for n in range(12)]
    ours = "y = 1\n" + "\n    # ours\n\n".join("    " + line for line in run)
    assert list(copied_runs({"ours": ours}, [("theirs", "z = f()\n" + "\n".join(run))]))
    assert not list(
        copied_runs({"ours": ours}, [("theirs", "\n".join(run[:6] + ["z = f()"] + run[6:]))])
    )


# The wheel


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """The real wheel."""
    backend = pytest.importorskip("fork.backend")
    folder = tmp_path_factory.mktemp("wheel")
    return folder / backend.build_wheel(folder)


def test_wheel_is_base_and_patches_and_our_files(built):
    assert built.name == base.wheel_name().replace(base.UPSTREAM, base.VERSION)
    with zipfile.ZipFile(base.fetch()) as pristine, zipfile.ZipFile(built) as wheel:
        theirs = {n.replace(f"{base.UPSTREAM}.dist-info", f"{base.VERSION}.dist-info"): n
                  for n in pristine.namelist() if not n.endswith("/")}  # fmt: skip
        ours = tree.our_files()
        assert sorted(wheel.namelist()) == sorted(theirs.keys() | ours.keys())
        for name, path in ours.items():
            assert wheel.read(name) == path.read_bytes()
        changed = {name for name, old in theirs.items() if wheel.read(name) != pristine.read(old)}
        patched = {file for patch in tree.read_patches() for file in patch.pristine}
        versioned = {"sglang/_version.py", f"{DIST_INFO}/METADATA", f"{DIST_INFO}/RECORD"}
        assert changed == {file.removeprefix("python/") for file in patched} | versioned
        for file in changed - versioned:
            lines = iter(wheel.read(file).splitlines())
            assert all(line in lines for line in pristine.read(file).splitlines()), (
                f"{file} lost a line"
            )
        assert not [
            name for name in wheel.namelist() if name.split("/")[0] not in ("sglang", DIST_INFO)
        ]


def test_wheel_record_and_version_are_right(built):
    with zipfile.ZipFile(built) as wheel:
        rows = {
            row[0]: row[1:]
            for row in csv.reader(wheel.read(f"{DIST_INFO}/RECORD").decode().splitlines())
        }
        assert sorted(rows) == sorted(wheel.namelist())
        assert rows.pop(f"{DIST_INFO}/RECORD") == ["", ""]
        for name, (sha, size) in rows.items():
            digest = (
                urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).decode().rstrip("=")
            )
            assert (sha, size) == (f"sha256={digest}", str(wheel.getinfo(name).file_size)), name
        assert f"\nVersion: {base.VERSION}\n" in wheel.read(f"{DIST_INFO}/METADATA").decode()
        version = {}
        exec(wheel.read("sglang/_version.py"), version)
        assert version["__version__"] == base.VERSION
        assert version["__version_tuple__"] == (*map(int, base.UPSTREAM.split(".")), base.LOCAL)


def test_wheel_is_made_of_patches_not_of_uncommitted_edits_and_is_reproducible(copy):
    first = copy.build("build_wheel").read_bytes()
    copy.insert(1, "uncommitted = 1")
    os.utime(copy.root / "python/sglang/srt/handoff/ours.py", (1e9, 1e9))
    again = copy.build("build_wheel")
    assert again.read_bytes() == first
    with zipfile.ZipFile(again) as wheel:
        assert b"first = 1" in wheel.read("sglang/srt/a.py")


def test_editable_install_imports_the_tree(copy, tmp_path):
    wheel = copy.build("build_editable")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True
    )
    code = (
        "import importlib.metadata as m, sglang.srt.a as a, sglang.srt.handoff.ours as o;"
        "print(a.__file__, a.first, o.__file__, o.ours, m.version('sglang'))"
    )
    copy.write("python/sglang/srt/handoff/ours.py", "ours = 'live'\n")
    said = subprocess.run(
        [python, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    )
    srt = copy.tree / "sglang/srt"
    assert said.stdout.split() == [
        f"{srt}/a.py",
        "1",
        f"{srt}/handoff/ours.py",
        "live",
        base.VERSION,
    ]
    assert (tmp_path / "venv/bin/sglang").exists()


def test_a_source_archive_is_refused_with_the_way_out():
    with pytest.raises(ForkError, match="python -m build --wheel"):
        pytest.importorskip("fork.backend").build_sdist("out")


# The base


def test_a_wheel_with_another_hash_is_refused(copy):
    copy.wheel.write_bytes(copy.wheel.read_bytes() + b"!")
    said = copy.run("tree", code=1)
    assert f"{copy.wheel.name} isn't the pinned release" in said and f"Delete {copy.wheel}" in said


def test_no_pinned_wheel_for_this_machine_is_an_error(monkeypatch):
    monkeypatch.setattr(base.platform, "machine", lambda: "s390x")
    with pytest.raises(ForkError, match="no wheel for Python .* s390x.*pins: sglang-"):
        base.wheel_name()


def test_another_pristine_file_is_refused_naming_file_both_releases_and_what_to_do(copy):
    copy.pin(UPSTREAM | {"sglang/srt/b.py": "moved = 1\n" + UPSTREAM["sglang/srt/b.py"]})
    patch = copy.patches / "0002-two.patch"
    patch.write_text(patch.read_text().replace(f"Base: {base.RELEASE}", "Base: sglang 0.5.22"))
    said = copy.run("tree", code=1)
    assert "patch two was made for python/sglang/srt/b.py of sglang 0.5.22" in said
    assert f"the base {base.RELEASE} has" in said
    assert "pin sglang 0.5.22" in said and "python -m fork patches --new two" in said
    assert "third" in (copy.tree / "sglang/srt/b.py").read_text()


# Patch files


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("@@ -10,0 +11 @@\n", "@@ -10,0 +11 @@ a9 = 9\n", "text after the second @@"),
        ("@@ -10,0 +11 @@\n", "@@ -10 +11,2 @@\n a9 = 9\n", "a.py line 10: a line is deleted"),
        ("@@ -10,0 +11 @@\n", "@@ -10 +10 @@\n-a9 = 9\n", "a.py line 10: a line is deleted"),
        ("+first = 1\n", "+first = 1\n\\ No newline at end of file\n", "newline"),
        ("--- a/python/sglang/srt/a.py", "--- /dev/null", "new files go to python/sglang"),
        ("\n\nIt is needed.", "", "says why"),
        (" python/sglang/srt/a.py\n\n", " python/sglang/srt/z.py\n\n", "aren't those of its diff"),
        ("Pristine-sha256: ", "Pristine: ", "not a patch"),
    ],
)  # fmt: skip
def test_a_patch_of_another_format_is_refused(copy, old, new, error):
    patch = copy.patches / "0001-one.patch"
    text = patch.read_text()
    assert old in text
    patch.write_text(text.replace(old, new))
    with pytest.raises(ForkError, match=re.escape(error)):
        read_patch(patch)


def test_patches_of_two_merged_branches_are_refused(copy):
    (copy.patches / "0001-one.patch").unlink()
    assert "patch two was made upon another python/sglang/srt/a.py" in copy.run("tree", code=1)


# The tree


def test_tree_has_one_commit_per_patch_upon_the_pristine_release(copy):
    assert copy.git("log", "--format=%s").split("\n")[:-1] == [
        "Add two", "Add one", f"Version {base.VERSION}", base.RELEASE]  # fmt: skip
    for name, text in UPSTREAM.items():
        assert copy.git("show", f"pristine:{name}").encode() == text.encode().replace(
            b"\r\n", b"\n"
        )
    assert copy.git("status", "--porcelain") == ""
    lines = UPSTREAM["sglang/srt/a.py"].splitlines()
    lines[10:10], lines[5:5] = ["first = 1"], ["second = 2"]
    assert (copy.tree / "sglang/srt/a.py").read_text().splitlines() == lines


def test_tree_again_changes_nothing(copy):
    before = (copy.tree / "sglang/srt/a.py").stat().st_mtime_ns
    assert "up to date" in copy.run("tree")
    assert (copy.tree / "sglang/srt/a.py").stat().st_mtime_ns == before


def test_tree_follows_our_files(copy):
    assert (copy.tree / "sglang/srt/handoff/ours.py").is_symlink()
    (copy.root / "python/sglang/srt/handoff/ours.py").unlink()
    copy.write("python/sglang/srt/new/file.py", "")
    copy.run("tree")
    assert not (copy.tree / "sglang/srt/handoff").exists()
    assert (copy.tree / "sglang/srt/new/file.py").is_symlink()
    assert copy.git("status", "--porcelain") == ""


def test_our_file_in_the_place_of_an_upstream_one_is_refused(copy):
    copy.write("python/sglang/srt/b.py", "")
    assert "python/sglang/srt/b.py would replace that file" in copy.run("tree", code=1)
    assert "third" in (copy.tree / "sglang/srt/b.py").read_text()


@pytest.mark.parametrize("committed", [False, True])
def test_tree_doesnt_overwrite_edits(copy, committed):
    copy.insert(20, "precious = 1")
    if committed:
        copy.git("commit", "--quiet", "--all", "--message", "Precious")
    assert "up to date; it has" in copy.run("tree")
    (copy.patches / "0002-two.patch").unlink()
    said = copy.run("tree", code=1)
    assert "`python -m fork patches`" in said and "--force" in said
    assert "precious" in (copy.tree / "sglang/srt/a.py").read_text()
    copy.run("tree", "--force")
    assert "precious" not in (copy.tree / "sglang/srt/a.py").read_text()


def test_tree_takes_pulled_patches(copy):
    two = copy.patches / "0002-two.patch"
    text = two.read_bytes()
    two.unlink()
    assert "patched anew" in copy.run("tree")
    assert "second" not in (copy.tree / "sglang/srt/a.py").read_text()
    two.write_bytes(text)
    copy.run("tree")
    assert "second" in (copy.tree / "sglang/srt/a.py").read_text()


def test_a_calling_git_hook_doesnt_lead_the_tool_astray(copy):
    copy.insert(30, "hooked = 1")
    copy.run("patches", "--into", "one", GIT_DIR="/nowhere", GIT_INDEX_FILE="/nowhere/index")
    assert b"+hooked = 1" in copy.snapshot()["0001-one.patch"]


# patches


def test_patches_round_trip_is_identical(copy):
    before = copy.snapshot()
    assert copy.run("patches") == "patches/ is unchanged\n"
    shutil.rmtree(copy.tree)
    copy.run("tree")
    assert copy.run("patches") == "patches/ is unchanged\n"
    assert copy.snapshot() == before


def test_an_edit_goes_into_the_only_patch_of_its_file(copy):
    copy.insert(0, "only = 1", "b")
    assert copy.run("patches") == "patches/0002-two.patch\n"
    assert b"+only = 1" in copy.snapshot()["0002-two.patch"]
    assert copy.git("log", "--format=%s", "base..").split("\n")[:-1] == ["Add two", "Add one"]


def test_an_edit_without_a_clear_place_is_refused_naming_candidates(copy):
    copy.insert(20, "unclear = 1")
    before = copy.snapshot()
    said = copy.run("patches", code=1)
    assert "sglang/srt/a.py: one, two" in said and "--into" in said and "--new" in said
    assert copy.snapshot() == before


@pytest.mark.parametrize("how", ["one", "0001-one", "patches/0001-one.patch", "fixup"])
def test_an_edit_goes_into_the_patch_that_is_named_and_later_patches_still_fit(copy, how):
    copy.insert(1, "early = 1")
    if how == "fixup":
        copy.git("commit", "--quiet", "--all", "--fixup", "HEAD~1")
    copy.run("patches", *([] if how == "fixup" else ["--into", how]))
    assert b"+early = 1" in copy.snapshot()["0001-one.patch"]
    assert b"@@ -6,0 +7 @@\n+second = 2" in copy.snapshot()["0002-two.patch"]
    text = (copy.tree / "sglang/srt/a.py").read_text()
    copy.run("tree", "--force")
    assert (copy.tree / "sglang/srt/a.py").read_text() == text


def test_a_commit_becomes_a_patch_named_after_its_subject(copy):
    copy.insert(1, "mine = 1")
    copy.git("commit", "--quiet", "--all", "--message", "Count What's lost", "--message", "Why.")
    assert copy.run("patches") == "patches/0003-count-what-s-lost.patch\n"


def test_a_commit_dropped_in_the_tree_drops_its_patch(copy):
    copy.git("rebase", "--quiet", "--onto", "HEAD~2", "HEAD~1")
    assert (
        copy.run("patches")
        == "patches/0001-one.patch\npatches/0001-two.patch\npatches/0002-two.patch\n"
    )
    assert list(copy.snapshot()) == ["0001-two.patch"]
    copy.run("tree", "--force")
    assert "first" not in (copy.tree / "sglang/srt/a.py").read_text()


def test_a_deletion_is_refused_naming_file_and_line_and_the_edit_is_kept(copy):
    path = copy.tree / "sglang/srt/b.py"
    edited = path.read_bytes().replace(b"def c", b"def d")
    path.write_bytes(edited)
    before, head = copy.snapshot(), copy.git("rev-parse", "HEAD")
    assert "python/sglang/srt/b.py line 5: a line is deleted" in copy.run("patches", code=1)
    assert copy.snapshot() == before
    assert copy.git("rev-parse", "HEAD") == head and path.read_bytes() == edited


def test_a_tree_of_another_base_gives_no_patches(copy):
    copy.pin(UPSTREAM | {"sglang/srt/b.py": "moved = 1\n"})
    assert "There is no build/tree" in copy.run("patches", code=1)


def test_a_new_file_in_the_tree_is_refused(copy):
    (copy.tree / "sglang/srt/z.py").write_text("")
    assert "sglang/srt/z.py. Move them to python/" in copy.run("patches", code=1)
    copy.git("add", "sglang/srt/z.py")
    copy.git("commit", "--quiet", "--message", "New file", "--message", "Why.")
    assert "new files go to python/sglang" in copy.run("patches", code=1)


def test_commits_are_put_upon_pulled_patches(copy):
    mine = shutil.copytree(copy.root, copy.root.parent / "mine", symlinks=True)
    copy.insert(30, "pulled = 1")
    copy.run("patches", "--into", "one")
    pulled = copy.snapshot()
    shutil.rmtree(copy.patches)
    copy.root, copy.tree, copy.patches = mine, mine / "build/tree", mine / "patches"
    copy.insert(20, "local = 1")
    for name, text in pulled.items():
        (copy.patches / name).write_bytes(text)
    copy.run("patches", "--into", "two")
    patches = copy.snapshot()
    assert patches["0001-one.patch"] == pulled["0001-one.patch"]
    assert b"+local = 1" in patches["0002-two.patch"] and b"pulled" not in patches["0002-two.patch"]


def test_a_stopped_rebase_is_explained_and_goes_on_when_resolved(copy):
    copy.insert(12, "conflict = 1")
    copy.new("three")
    before = copy.snapshot()
    path = copy.tree / "sglang/srt/a.py"
    path.write_text(path.read_text().replace("conflict = 1", "conflict = 2"))
    said = copy.run("patches", "--into", "one", code=1)
    assert "safe" in said and "git rebase --continue" in said and copy.snapshot() == before
    assert "rebase is unfinished" in copy.run("patches", code=1)
    copy.git("rebase", "--abort")
    copy.git("reset", "--quiet", "--hard", "HEAD~1")
    assert copy.run("patches") == "patches/ is unchanged\n"
