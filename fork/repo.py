"""A git repository of the unpacked base: tag `pristine` is the release as it is, tag `base` the
same with the fork's version, and upon that one commit per patch."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from fork import ForkError, base
from fork.git import WHO, git
from fork.patch import Patch, blobs

EXCLUDED = ["__pycache__/", "*.pyc"]


def make_repo(folder: Path, wheel: Path) -> None:
    """Unpack the base wheel into folder, a git repository with tags pristine and base."""
    base.unpack(wheel, folder)
    git(folder, "init", "--quiet", "--initial-branch", "handoff", "--template=")
    (folder / ".git/info").mkdir()
    (folder / ".git/info/exclude").write_text("\n".join(EXCLUDED) + "\n")
    for key, value in {"user.name": WHO, "user.email": "", "commit.gpgSign": "false",
                       "core.autocrlf": "false", "core.hooksPath": os.devnull}.items():  # fmt: skip
        git(folder, "config", key, value)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", base.RELEASE)
    git(folder, "tag", "pristine")
    base.set_version(folder)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", f"Version {base.VERSION}")
    git(folder, "tag", "base")


def commit_patches(repo: Path, patches: list[Patch]) -> str:
    """Id of the last of one commit per patch upon tag base. Index, files and branch of the repo
    are left as they are.

    Raises ForkError when a patch was made for other files than it meets.
    """
    index = repo / ".git/handoff-index"
    git(repo, "read-tree", "base", index=index)
    head = git(repo, "rev-parse", "base^{commit}")
    for patch in patches:
        check_pristine(repo, patch)
        for path, blob in blobs(patch.diff).items():
            staged = git(repo, "ls-files", "--stage", in_tree(path), index=index)
            if staged.split()[1] != blob:
                raise ForkError(
                    f"patch {patch.name} was made upon another {path} than the patches before it "
                    "give, so its line numbers don't hold: two changes of patches/ were merged. "
                    "Take one side's patches/, run `python -m fork tree`, make the other side's "
                    "edits in build/tree and run `python -m fork patches`."
                )
        git(repo, "apply", "--cached", "--unidiff-zero", "--whitespace=nowarn", "-p2", "-",
            stdin=patch.diff, index=index)  # fmt: skip
        files = git(repo, "write-tree", index=index)
        message = f"{patch.message}\n\nPatch: {patch.name}\n"
        head = git(repo, "commit-tree", files, "-p", head, stdin=message)
    index.unlink()
    return head


def check_pristine(repo: Path, patch: Patch) -> None:
    """Raises ForkError when a file that the patch edits isn't the one of its release."""
    for path, expected in patch.pristine.items():
        found = pristine_sha256(repo, path)
        if found != expected:
            raise ForkError(
                f"patch {patch.name} was made for {path} of {patch.release} (sha256 {expected}), "
                f"but the base {base.RELEASE} has {f'sha256 {found}' if found else 'none'}. "
                f"Either pin {patch.release} in fork/base.toml again, or move the patch out of "
                "patches/, run `python -m fork tree`, make its edits again in build/tree and run "
                f"`python -m fork patches --new {patch.name} -m MESSAGE`."
            )


def pristine_sha256(repo: Path, path: str) -> str:
    """sha256 of python/sglang/... in the release; empty when it has no such file."""
    if not git(repo, "ls-tree", "pristine", in_tree(path)):
        return ""
    blob = git(repo, "cat-file", "blob", f"pristine:{in_tree(path)}", strip=False)
    return hashlib.sha256(blob.encode(errors="surrogateescape")).hexdigest()


def in_tree(path: str) -> str:
    return path.removeprefix("python/")


def check_shadowing(repo: Path, ours: Iterable[str]) -> None:
    """Raises ForkError when one of our files has the place of a file of SGLang."""
    upstream = git(repo, "ls-tree", "-r", "-z", "--name-only", "base").split("\0")
    if shadows := set(ours) & set(upstream):
        raise ForkError(
            f"python/{min(shadows)} would replace that file of {base.RELEASE}: rename ours, or "
            "edit SGLang's in build/tree and run `python -m fork patches`."
        )
