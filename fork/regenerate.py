"""build/tree back to patches/: edits are folded into commits, and each commit becomes a patch."""

import re

from fork import ForkError, base
from fork.git import git
from fork.patch import Patch, blobs, check_message, insertions
from fork.repo import commit_patches, pristine_sha256
from fork.tree import PATCHES, TREE, is_of_base, is_rebasing, locked, mark_exported, read_patches

TRAILER = re.compile(r"\n*^Patch: (.+)\n*", re.MULTILINE)
UNFOLDED = ("fixup! ", "squash! ", "amend! ")


def regenerate(into: str = "", new: str = "", message: str = "") -> list[str]:
    """Write patches/ from the commits in build/tree; returns the names of files that changed.

    Uncommitted edits go into the patch `into`, or into a patch `new` with that message, or, when
    neither is given, each into the only patch that edits its file. Fixup commits are folded in.
    Raises ForkError when edits have no clear place, a rebase stops, or the result isn't made of
    insertions only; patches/ then stays as it was, and so do uncommitted edits unless a rebase
    stopped.
    """
    with locked():
        if not is_of_base():
            raise ForkError(f"There is no build/tree of {base.VERSION}: run `python -m fork tree`.")
        if is_rebasing():
            raise ForkError(
                f"A git rebase is unfinished in {TREE}: resolve its conflicts, `git add` them, "
                "`git rebase --continue` (or `--abort`), then run this again."
            )
        start = git(TREE, "rev-parse", "HEAD")
        _commit_edits(into, new, message)
        moved = False
        try:
            moved = _move_upon_patches()
            patches = _fold_and_export()
        except ForkError:
            if not moved and not is_rebasing():
                git(TREE, "reset", "--quiet", start)
            raise
        head = commit_patches(TREE, patches)
        if git(TREE, "diff", "--stat", head, "HEAD"):
            raise ForkError(f"The patches of {TREE} don't give its files: report this.")
        changed = write(patches)
        git(TREE, "reset", "--quiet", "--keep", head)
        mark_exported(TREE, head)
        return changed


def _fold_and_export() -> list[Patch]:
    if any(subject.startswith(UNFOLDED) for _, subject in _log()):
        _rebase("--interactive", "--autosquash", "--empty=drop", "base")
    patches = [patch for commit, _ in _log() if (patch := _export(commit)).diff]
    names = [patch.name for patch in patches]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ForkError(f"Two commits in {TREE} give a patch {min(twice)}: squash or reword one.")
    return patches


def _log() -> list[tuple[str, str]]:
    """Id and subject of each commit after base, oldest first."""
    if merges := git(TREE, "rev-list", "--merges", "base..HEAD").split():
        raise ForkError(f"{merges[0][:10]} in {TREE} is a merge: rebase it, one commit per patch.")
    lines = git(TREE, "log", "--reverse", "--format=%H %s", "base..HEAD").splitlines()
    return [(line[:40], line[41:]) for line in lines]


def _name(commit: str) -> str:
    """The patch name of a commit: its trailer Patch, or else made from the subject."""
    text = git(TREE, "log", "-1", "--format=%B", commit)
    if trailer := TRAILER.search(text):
        return trailer[1]
    return re.sub(r"[^a-z0-9]+", "-", text.partition("\n")[0].lower()).strip("-")[:50]


def _commit_edits(into: str, new: str, message: str) -> None:
    status = git(TREE, "status", "--porcelain", "--untracked-files=all").splitlines()
    if stray := [line[3:] for line in status if line.startswith("??")]:
        raise ForkError(
            f"{TREE} has new files: {', '.join(stray)}. Move them to python/ or delete them."
        )
    edited = git(TREE, "diff", "--name-only", "HEAD").splitlines()
    if (into or new) and not edited:
        raise ForkError(f"{TREE} has no uncommitted edits for --into or --new.")
    patches = {
        _name(commit): commit for commit, subject in _log() if not subject.startswith(UNFOLDED)
    }
    if new:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", new) or new in patches:
            raise ForkError(
                f"--new {new}: a new patch's name is of a-z, 0-9 and -, and not in use."
            )
        check_message(new, message)
        git(TREE, "commit", "--quiet", "--all", "--message", f"{message.strip()}\n\nPatch: {new}")
    elif into:
        into = re.sub(r"^(\d{4}-)?(.+?)(\.patch)?$", r"\2", into.rpartition("/")[2])
        if into not in patches:
            raise ForkError(f"--into {into}: no such patch; there are: {', '.join(patches)}.")
        git(TREE, "commit", "--quiet", "--all", "--fixup", patches[into])
    elif edited:
        _fold_by_file(edited, patches)


def _fold_by_file(edited: list[str], patches: dict[str, str]) -> None:
    touching = {
        file: [name for name, commit in patches.items() if file in _touched(commit)]
        for file in edited
    }
    if unclear := [file for file, names in touching.items() if len(names) != 1]:
        raise ForkError(
            "It isn't clear which patch these uncommitted edits belong to:\n"
            + "".join(
                f"  {file}: {', '.join(touching[file]) or 'in no patch yet'}\n" for file in unclear
            )
            + "Say --into PATCH, or --new NAME -m 'subject' -m 'why', or commit them in build/tree."
        )
    for name in {names[0]: None for names in touching.values()}:
        files = [file for file in edited if touching[file] == [name]]
        git(TREE, "commit", "--quiet", "--fixup", patches[name], "--", *files)


def _touched(commit: str) -> list[str]:
    return git(TREE, "diff-tree", "-r", "--no-commit-id", "--name-only", commit).splitlines()


def _move_upon_patches() -> bool:
    """When patches/ changed since the tree was made (a git pull): put the tree's newer commits
    upon the patches as they are now. Says whether there was something to do."""
    head, old = commit_patches(TREE, read_patches()), git(TREE, "rev-parse", "exported^{commit}")
    if head == old or _is_ancestor(head):
        return False
    if not _is_ancestor(old):
        raise ForkError(
            f"patches/ changed since {TREE} was made, and its commits were rewritten since. Put "
            "the old patches/ back (`git stash -- patches`), run this again, then merge the two."
        )
    _rebase("--onto", head, old)
    return True


def _is_ancestor(commit: str) -> bool:
    return git(TREE, "merge-base", commit, "HEAD") == commit


def _rebase(*args: str) -> None:
    try:
        git(TREE, "rebase", "--quiet", *args)
    except ForkError as error:
        raise ForkError(
            f"{error}\nYour edits are safe as commits. In {TREE}: resolve the conflict, `git add` "
            "the files, `git rebase --continue`; then run `python -m fork patches` again."
        ) from error


def _export(commit: str) -> Patch:
    name = _name(commit)
    message = TRAILER.sub("", git(TREE, "log", "-1", "--format=%B", commit)).strip()
    check_message(name, message)
    diff = git(
        TREE, "diff-tree", "-r", "-p", "--unified=0", "--no-commit-id", "--full-index",
        "--no-renames", "--no-ext-diff", "--no-textconv", "--minimal", "--indent-heuristic",
        "--src-prefix=a/python/", "--dst-prefix=b/python/", commit, strip=False,
    )  # fmt: skip
    diff = insertions(name, diff)
    pristine = {path: pristine_sha256(TREE, path) for path in blobs(diff)}
    return Patch(name, message, base.RELEASE, pristine, diff)


def write(patches: list[Patch]) -> list[str]:
    """Make patches/ hold exactly these; returns the names of the files that changed."""
    wanted = {f"{n:04}-{patch.name}.patch": patch.text() for n, patch in enumerate(patches, 1)}
    PATCHES.mkdir(exist_ok=True)
    old = {path.name: path.read_bytes().decode() for path in PATCHES.glob("*.patch")}
    changed = [name for name in wanted.keys() | old.keys() if wanted.get(name) != old.get(name)]
    for name in sorted(changed):
        path = PATCHES / name
        path.write_bytes(wanted[name].encode()) if name in wanted else path.unlink()
    return sorted(changed)
