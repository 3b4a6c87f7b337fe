"""make pr: the branch in a checkout of SGLang, and what is refused."""

import ast
import os
import re
import shutil
import subprocess
import sys

import pytest

from fork import base, placement, pr, tree
from fork.git import git
from fork_checkout import FakeCheckout
from fork_copy import ROOT, UPSTREAM

CHECKOUT = UPSTREAM | {"sglang/srt/server_args.py": "args = 1\n"}
USER = {"GIT_AUTHOR_NAME": "A Developer", "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A Developer", "GIT_COMMITTER_EMAIL": "a@example.org"}  # fmt: skip


# The repository's own patches and files


@pytest.fixture(scope="module")
def upstream(tmp_path_factory) -> FakeCheckout:
    """The pinned release as a checkout."""
    root = tmp_path_factory.mktemp("upstream") / "sglang"
    base.unpack(base.fetch(), root / "python")
    shutil.rmtree(root / f"python/{base.NAME}-{base.UPSTREAM}.dist-info")
    return FakeCheckout(root)


@pytest.fixture(scope="module")
def branches(upstream) -> list[str]:
    """The branch as it is made by default, and one with all patches."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in USER.items():
            patch.setenv(key, value)
        made = {"seamless-handoff": pr.LEFT_OUT, "all": ()}
        for branch, left_out in made.items():
            before = upstream.state()[1:]
            pr.make(upstream.root, branch, left_out)
            assert upstream.state()[1:] == before
        return list(made)


@pytest.fixture(scope="module")
def expected(upstream, tmp_path_factory) -> str:
    """A tree as `make tree` gives it: the release, the patches by line numbers, our files."""
    index = tmp_path_factory.mktemp("expected") / "index"
    git(upstream.root, "read-tree", "main", index=index)
    for patch in tree.read_patches():
        git(upstream.root, "apply", "--cached", "--unidiff-zero", "-", stdin=patch.diff, index=index)
    for path in tree.our_files().values():
        blob = git(upstream.root, "hash-object", "-w", str(path))
        name = path.relative_to(ROOT).as_posix()
        git(upstream.root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", index=index)
    return git(upstream.root, "write-tree", index=index)


def test_with_all_patches_the_branch_is_the_tree(upstream, branches, expected):
    assert upstream.git("diff", "--stat", expected, "all", "--", "python") == ""
    assert upstream.git("diff", "--stat", "main", "all", "--", "python") != ""


def test_by_default_it_is_the_tree_less_the_patches_that_stay(upstream, branches, expected):
    stay = [patch for patch in tree.read_patches() if patch.name in pr.LEFT_OUT]
    assert [patch.name for patch in stay] == list(pr.LEFT_OUT)
    found = changes(upstream.git("diff", "--unified=0", "seamless-handoff", expected, "--", "python"))
    assert found == [line for patch in stay for line in changes(patch.diff)]


def changes(diff: str) -> list[str]:
    """Files and changed lines of a diff."""
    return [line for line in diff.splitlines() if re.match(r"(\+\+\+ )|[-+](?!\+\+|--)", line)]


def test_outside_python_there_are_only_our_files_byte_for_byte(upstream, branches):
    going = placement.benchmarks() | placement.tests() | placement.docs()
    entries = upstream.git("ls-tree", "-r", "seamless-handoff").split("\n")[:-1]
    made = {name: entry.split()[2] for entry, name in (line.split("\t") for line in entries)}
    assert {name for name in made if not name.startswith("python/")} == going.keys()
    for name, path in going.items():
        assert made[name] == upstream.git("hash-object", "--no-filters", str(path)).strip(), name


def test_each_commit_compiles_and_finds_what_it_imports(upstream, branches):
    commits = upstream.git("rev-list", "--reverse", "main..seamless-handoff").split()
    assert len(commits) > 5
    for commit in commits:
        names = set(upstream.git("ls-tree", "-r", "--name-only", commit).split())
        for path in upstream.git("diff-tree", "-r", "--no-commit-id", "--name-only", commit).split():
            if path.startswith("python/") and path.endswith(".py"):
                text = upstream.git("show", f"{commit}:{path}")
                compile(text, path, "exec")
                assert missing(text, names) == [], f"{path} at {commit}"


def missing(text: str, names: set[str]) -> list[str]:
    """The handoff's modules, imported anywhere in the text, that aren't among the files."""
    modules = {n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module}
    files = {f"python/{m.replace('.', '/')}" for m in modules if "handoff" in m or "short_extend" in m}
    return sorted(f for f in files if f"{f}.py" not in names and f"{f}/__init__.py" not in names)


def test_a_missing_module_is_found():
    assert missing("def f():\n    from sglang.srt.handoff_x import y\n", {"python/sglang/srt/a.py"})


def test_the_commits_have_the_patches_subjects_and_reasons_and_the_users_name(upstream, branches):
    log = upstream.git("log", "--reverse", "--format=%an <%ae>%x00%B%x01", "main..seamless-handoff")
    commits = [entry.strip().split("\0") for entry in log.split("\1")[:-1]]
    assert {who for who, _ in commits} == {"A Developer <a@example.org>"}
    messages = [message.strip() for _, message in commits]
    patches = [p.message for p in tree.read_patches() if p.name not in pr.LEFT_OUT]
    assert [m for m in messages if m in patches] == patches
    assert all("\n\n" in message for message in messages)


@pytest.mark.timeout(900)
def test_our_tests_run_in_the_branch(upstream, branches):
    """All can be imported; those of the machines, and of what the patches add to SGLang's options, are run."""
    folder = upstream.root.parent / "seamless-handoff"
    upstream.git("worktree", "add", "--quiet", str(folder), "seamless-handoff")
    quick = " or ".join(f"test_{name}.py" for name in ("prefill_machine", "decode_machine", "eligibility", "cuda_graphs"))
    code = f"""
import sglang.srt.environ, pytest, sys
assert sglang.srt.environ.__file__.startswith({str(folder)!r})
sys.exit(pytest.main(sys.argv[1:]))
"""
    tests = [name for name in placement.tests() if "/test_" in name]
    run = [sys.executable, "-B", "-c", code, "-q", "-p", "no:cacheprovider", "-k", quick, *tests]
    env = os.environ | {"PYTHONPATH": str(folder / "python")}
    ran = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout and " error" not in ran.stdout


def test_what_needs_the_rig_stays_and_is_named():
    going, stay = placement.benchmarks() | placement.tests(), placement.left_out()
    assert "test/srt/handoff/test_log.py" in going and "benchmark/handoff/bench_short_extend.py" in going
    assert "benchmark/handoff/simulator/core.py" in going and "test/srt/handoff/checker/golden/normal.txt" in going
    for name in "test/srt/test_seamless_handoff.py", "test/srt/handoff/test_soak.py", "benchmark/handoff/soak/plan.py":
        assert name in stay and name not in going
    assert {"rig/", "demo/", "fork/", "cpu/"} <= set(stay)


# A made-up release in a copy of the repository


@pytest.fixture
def checkout(copy, tmp_path) -> FakeCheckout:
    copy.write("docs/seamless_handoff.md", "# Docs\n")
    for name, text in {
        "test/srt/handoff/test_core.py": "from handoff_parts import x\n",
        "test/srt/handoff/handoff_parts.py": "x = 1\n",
        "test/srt/handoff/test_real.py": "def test():\n    from real_parts import x\n",
        "test/srt/handoff/real_parts.py": "from rig import servers as x\n",
        "test/srt/helper_of_none.py": "",
        "benchmark/handoff/alone.py": "import parts\n\nif __name__ == '__main__':\n    pass\n",
        "benchmark/handoff/parts.py": "",
        "benchmark/handoff/of_others.py": "",  # what imports it stays
        "benchmark/handoff/soak/__init__.py": "",
        "benchmark/handoff/soak/plan.py": "",
        "benchmark/handoff/soak/run.py": "import rig.stack\n",
    }.items():
        copy.write(name, text)
    copy.insert(30, "for_the_rig = 1")
    copy.new("cpu-pd")
    return FakeCheckout(tmp_path / "sglang", CHECKOUT)


def make(copy, checkout, *args: str, code: int = 0) -> str:
    return copy.run("pr", str(checkout.root), *args, code=code, **USER)


def test_the_branch_has_patches_our_files_and_tests_and_the_checkout_is_as_it_was(copy, checkout):
    before = checkout.state()[1:]
    said = make(copy, checkout)
    assert checkout.state()[1:] == before
    assert checkout.git("branch", "--format=%(refname:short)").split() == ["main", "seamless-handoff"]
    assert checkout.show("python/sglang/srt/b.py").encode() == (copy.tree / "sglang/srt/b.py").read_bytes()
    assert "for_the_rig" not in checkout.show("python/sglang/srt/a.py")
    added = checkout.git("diff", "--name-only", "--diff-filter=A", "main", "seamless-handoff").split()
    assert added == ["benchmark/handoff/alone.py", "benchmark/handoff/parts.py", "docs/seamless_handoff.md",
                     "python/sglang/srt/handoff/ours.py", "test/srt/handoff/handoff_parts.py", "test/srt/handoff/test_core.py"]  # fmt: skip
    for name in "test/srt/handoff/test_real.py", "benchmark/handoff/soak/plan.py", "benchmark/handoff/of_others.py", "fork/":
        assert f"  {name}\n" in said


def test_a_patch_that_stays_goes_when_asked_for(copy, checkout):
    make(copy, checkout, "--with", "cpu-pd")
    assert checkout.show("python/sglang/srt/a.py") == (copy.tree / "sglang/srt/a.py").read_text()


def test_the_same_again_gives_the_same_files(copy, checkout):
    make(copy, checkout)
    make(copy, checkout, "--branch", "again")
    assert checkout.git("rev-parse", "again^{tree}") == checkout.git("rev-parse", "seamless-handoff^{tree}")


def test_a_branch_that_exists_is_refused(copy, checkout):
    make(copy, checkout)
    before = checkout.state()
    assert "has a branch seamless-handoff" in make(copy, checkout, code=1)
    assert checkout.state() == before


def test_a_checkout_that_holds_it_already_is_refused(copy, checkout):
    make(copy, checkout)
    checkout.git("switch", "--quiet", "seamless-handoff")
    assert "holds the handoff already" in make(copy, checkout, "--branch", "again", code=1)


def test_a_checkout_that_moved_on_gets_the_same_lines_in_other_places(copy, checkout):
    moved = "moved = 1\n" * 7 + UPSTREAM["sglang/srt/a.py"].replace("a30 = 30\n", "a30 = 31\n")
    checkout.write("python/sglang/srt/a.py", moved)
    checkout.commit("Upstream goes on")
    said = make(copy, checkout)
    assert "2 hooks are at another line than in" in said
    wanted = moved.replace("a5 = 5\n", "second = 2\na5 = 5\n").replace("a10 = 10\n", "first = 1\na10 = 10\n")
    assert checkout.show("python/sglang/srt/a.py") == wanted


def test_conflicts_are_reported_file_by_file_and_nothing_is_made(copy, checkout):
    checkout.write("python/sglang/srt/a.py", UPSTREAM["sglang/srt/a.py"].replace("a10 = 10\n", "a10 = 11\n"))
    checkout.git("rm", "--quiet", "python/sglang/srt/b.py")
    checkout.commit("Upstream goes on")
    before = checkout.state()
    objects = checkout.git("count-objects")
    said = make(copy, checkout, code=1)
    assert "2 hooks in 2 files don't fit" in said
    assert "python/sglang/srt/a.py\n  one: module, line 10 of" in said
    assert "first = 1" in said and "a10 = 11" in said
    assert "there is no python/sglang/srt/b.py" in said
    assert f"switch --detach v{base.UPSTREAM}" in said and "git rebase" in said
    assert checkout.state() == before and checkout.git("count-objects") == objects


@pytest.mark.parametrize("how", ["changed", "staged", "untracked"])
def test_a_checkout_that_isnt_clean_is_refused(copy, checkout, how):
    checkout.write("python/sglang/srt/new.py" if how == "untracked" else "python/sglang/srt/b.py", "x = 1\n")
    if how == "staged":
        checkout.git("add", "--all")
    before = checkout.state()
    assert "isn't clean: " in make(copy, checkout, code=1)
    assert checkout.state() == before


def test_a_folder_that_is_no_checkout_of_sglang_is_refused(copy, checkout, tmp_path):
    assert "is no git checkout" in copy.run("pr", str(tmp_path), code=1)
    assert "is no git checkout" in copy.run("pr", str(tmp_path / "nowhere"), code=1)
    assert "is a folder of the checkout" in copy.run("pr", str(checkout.root / "python"), code=1)
    other = FakeCheckout(tmp_path / "other", {"other/a.py": "a = 1\n"})
    assert "no checkout of SGLang" in copy.run("pr", str(other.root), code=1)


def test_a_detached_head_stays_detached(copy, checkout):
    checkout.git("switch", "--quiet", "--detach")
    make(copy, checkout)
    assert checkout.git("rev-parse", "--abbrev-ref", "HEAD").strip() == "HEAD"
    assert checkout.git("merge-base", "main", "seamless-handoff") == checkout.git("rev-parse", "main")


def test_a_file_of_ours_goes_with_the_patch_that_calls_it_and_takes_what_it_imports(tmp_path):
    files = {
        "sglang/srt/disaggregation/handoff/log.py": "",
        "sglang/srt/managers/my_mixin.py": "from sglang.srt.managers.my_part import x\n",
        "sglang/srt/managers/my_part.py": "from sglang.srt.disaggregation.handoff import log\n",
        "sglang/srt/unnamed.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    product = {f"python/{name}": tmp_path / name for name in files}

    def patch(name: str, line: str):
        return type("P", (), {"name": name, "diff": f"+++ b/python/sglang/srt/my_part.py\n@@ -1,0 +2 @@\n+{line}\n"})

    patches = [patch("flag", "flag = 1"), patch("mixin", "from sglang.srt.managers.my_mixin import M")]
    goes = pr.assign(patches, product)
    assert {name: sorted(p.rpartition("/")[2] for p in found) for name, found in goes.items()} == {
        "": ["log.py", "unnamed.py"], "flag": [], "mixin": ["my_mixin.py", "my_part.py"]}  # fmt: skip
