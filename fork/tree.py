"""build/tree: SGLang with patches/ applied, one git commit each, and our files linked in.

In its git repository, tag `exported` is the last commit that patches/ is known to hold, and
info/exclude lists the links to our files: it is the record of what was linked.
"""

import fcntl
import hashlib
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from fork import ROOT, ForkError, base
from fork.git import git
from fork.patch import Patch, read_patch
from fork.repo import EXCLUDED, check_shadowing, commit_patches, make_repo

TREE = ROOT / "build/tree"
PATCHES = ROOT / "patches"
OURS = ROOT / "python"


def read_patches() -> list[Patch]:
    """The patches in order. Raises ForkError when one isn't of the format."""
    return [read_patch(path) for path in sorted(PATCHES.glob("*.patch"))]


def our_files() -> dict[str, Path]:
    """Maps each path in the tree, like sglang/srt/..., to our file under python/ there."""
    found = {path.relative_to(OURS).as_posix(): path for path in files_in(OURS / "sglang")}
    return dict(sorted(found.items()))


def files_in(folder: Path) -> list[Path]:
    """The source files in a folder of this repository, in order: no caches, no editor's backups."""
    found = []
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [
            Path(at, name)
            for name in files
            if not name.endswith((".pyc", "~")) and not name.startswith(".")
        ]
    return sorted(found)


def is_of_base() -> bool:
    """Whether build/tree exists and was made from the base pinned now."""
    mark = TREE / ".git/handoff-base"
    return mark.exists() and mark.read_text() == _base_mark()


def _base_mark() -> str:
    return f"{base.VERSION} {base.PINS['sha256'][base.wheel_name()]}"


def is_rebasing() -> bool:
    """Whether a git rebase in build/tree has stopped for the developer."""
    return any((TREE / ".git" / name).exists() for name in ("rebase-merge", "rebase-apply"))


def edits() -> str:
    """What of build/tree isn't in patches/, as a line to show; empty when nothing."""
    if is_rebasing():
        return "an unfinished git rebase"
    if changed := git(TREE, "status", "--porcelain", "--untracked-files=all").splitlines():
        return "uncommitted edits: " + ", ".join(line[3:] for line in changed[:5])
    if git(TREE, "rev-parse", "HEAD") != git(TREE, "rev-parse", "exported^{commit}"):
        return "commits that aren't in patches/"
    return ""


def digest() -> str:
    """Changes whenever the patches do."""
    texts = [f"{path.name}\n{path.read_text()}" for path in sorted(PATCHES.glob("*.patch"))]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@contextmanager
def locked():
    """One process at a time changes build/tree and patches/."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build/.tree.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def update(force: bool = False) -> str:
    """Bring build/tree up to date with the base, patches/ and python/; says what was done.

    force: make it anew, losing edits in it.
    Raises ForkError when that would overwrite edits, or when a patch or one of our files doesn't
    fit the base; build/tree then stays as it was.
    """
    with locked():
        wheel = base.fetch()
        if force or not is_of_base():
            _make(wheel, force)
            done = "made"
        elif (TREE / ".git/handoff-patches").read_text() == digest():
            done = "up to date"
        else:
            head = commit_patches(TREE, read_patches())
            if git(TREE, "rev-parse", "HEAD") != head:
                _refuse_edits()
                git(TREE, "reset", "--quiet", "--hard", head)
            mark_exported(TREE, head)
            done = "patched anew"
        link_ours()
        found = edits()
        return f"{TREE}: {done}" + (f"; it has {found}" if found else "")


def mark_exported(repo: Path, head: str) -> None:
    """Note that commit head of the repo is what patches/ now holds."""
    git(repo, "tag", "--force", "exported", head)
    (repo / ".git/handoff-patches").write_text(digest())


def _make(wheel: Path, force: bool) -> None:
    if (TREE / ".git").exists() and not force:
        _refuse_edits()
    new = TREE.with_name("tree.new")
    shutil.rmtree(new, ignore_errors=True)
    make_repo(new, wheel)
    check_shadowing(new, our_files())
    head = commit_patches(new, read_patches())
    git(new, "reset", "--quiet", "--hard", head)
    (new / ".git/handoff-base").write_text(_base_mark())
    mark_exported(new, head)
    if TREE.exists():
        shutil.rmtree(TREE)
    new.rename(TREE)


def _refuse_edits() -> None:
    if found := edits():
        raise ForkError(
            f"{TREE} has {found}, which making it anew would lose. Keep them with `python -m fork "
            "patches` (--help says how), or lose them with `python -m fork tree --force`."
        )


def link_ours() -> None:
    """Make the links in build/tree to our files anew: new ones made, stale ones removed.

    Raises ForkError when one of our files has the place of another file.
    """
    ours = our_files()
    check_shadowing(TREE, ours)
    exclude = TREE / ".git/info/exclude"
    linked = exclude.read_text().splitlines()[len(EXCLUDED) :]
    for path in (TREE / name.lstrip("/") for name in linked if name.lstrip("/") not in ours):
        if path.is_symlink():
            path.unlink()
        while not any(kid.name != "__pycache__" for kid in path.parent.glob("*")):
            path = path.parent
            shutil.rmtree(path, ignore_errors=True)
    for name, source in ours.items():
        link, target = TREE / name, os.path.relpath(source, (TREE / name).parent)
        if link.is_symlink() and os.readlink(link) == target:
            continue
        if link.exists() and not link.is_symlink():
            raise ForkError(
                f"{link} is in the place of the link to {source}: move what you want of it there, "
                "delete it and run again."
            )
        link.unlink(missing_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    exclude.write_text("\n".join([*EXCLUDED, *(f"/{name}" for name in ours)]) + "\n")
