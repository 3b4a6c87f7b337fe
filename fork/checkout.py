"""A git checkout of SGLang that belongs to the user: read at its HEAD, and given one new branch.

Its work tree, index and current branch are never touched: commits are made beside them.
"""

import re
import tempfile
from pathlib import Path

from fork import ForkError
from fork.git import git

# Every release has had them.
MARKS = ("python/sglang/__init__.py", "python/sglang/srt/server_args.py")


class Checkout:
    """The checkout at a path.

    Raises ForkError when it is no git checkout of SGLang, or isn't clean.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            top = Path(self._git("rev-parse", "--show-toplevel"))
            self.head = self._git("rev-parse", "HEAD^{commit}")
        except (ForkError, NotADirectoryError, FileNotFoundError) as error:
            raise ForkError(f"{path} is no git checkout of SGLang with a commit in it.") from error
        if top.resolve() != path.resolve():
            raise ForkError(f"{path} is a folder of the checkout {top}: say that one.")
        self.files = self._list()
        if not set(MARKS) <= self.files.keys():
            raise ForkError(
                f"{path} is no checkout of SGLang: its HEAD has no {' or no '.join(MARKS)}. Say "
                "the folder of `git clone https://github.com/sgl-project/sglang`."
            )
        if changed := self._git("status", "--porcelain").splitlines():
            names = ", ".join(line[3:] for line in changed[:5])
            raise ForkError(
                f"{path} isn't clean: {names}. Commit or stash that first (`git stash "
                "--include-untracked`): the branch is made from the last commit."
            )

    def _git(self, *args: str, **how) -> str:
        return git(self.path, *args, as_user=True, **how)

    def _list(self) -> dict[str, tuple[str, str]]:
        """Mode and object id of each file at HEAD."""
        found = {}
        for line in self._git("ls-tree", "-r", "-z", self.head).split("\0")[:-1]:
            mode, _, blob, path = re.split("[ \t]", line, maxsplit=3)
            found[path] = (mode, blob)
        return found

    def read(self, path: str) -> str | None:
        """Text of a file at HEAD; None when there is no such file."""
        if path not in self.files:
            return None
        return self._git("cat-file", "blob", self.files[path][1], strip=False)

    def describe(self) -> str:
        """The commit at HEAD, for the user: its tag or id, and its branch."""
        name = self._git("describe", "--tags", "--always", "HEAD")
        branch = self._git("branch", "--show-current")
        return f"{name} ({branch})" if branch else name

    def refuse_branch(self, branch: str) -> None:
        """Raises ForkError when the branch exists or can't be a branch's name."""
        try:
            self._git("check-ref-format", "--branch", branch)
        except ForkError as error:
            raise ForkError(f"{branch!r} can't be the name of a branch.") from error
        if self._git("branch", "--list", branch):
            raise ForkError(
                f"{self.path} has a branch {branch}: name another (BRANCH=...), or delete it "
                f"(`git -C {self.path} branch -D {branch}`)."
            )

    def write(self, branch: str, commits: list[tuple[str, dict[str, tuple[str, str]]]]) -> str:
        """Make the branch of commits upon HEAD, each (message, {path: (mode, text)}); "" for a
        mode keeps the one there. Returns the last commit's id."""
        with tempfile.TemporaryDirectory() as tmp:
            index = Path(tmp, "index")
            self._git("read-tree", self.head, index=index)
            head = self.head
            for message, files in commits:
                lines = []
                for path, (mode, text) in files.items():
                    blob = self._git("hash-object", "-w", "--stdin", "--no-filters", stdin=text)
                    lines.append(f"{mode or self.files[path][0]} {blob}\t{path}\n")
                self._git("update-index", "--index-info", index=index, stdin="".join(lines))
                files = self._git("write-tree", index=index)
                head = self._git("commit-tree", files, "-p", head, stdin=message + "\n")
        self._git("branch", "--no-track", branch, head)
        return head
