"""A git checkout of SGLang for the tests: a wheel's files under python/, on branch main."""

import os
import subprocess
from pathlib import Path


class FakeCheckout:
    def __init__(self, root: Path, files: dict[str, str] | None = None):
        """Commit what is in root, or these files of python/."""
        self.root = root
        for name, text in (files or {}).items():
            self.write(f"python/{name}", text)
        self.git("init", "--quiet", "--initial-branch", "main", "--template=")
        self.commit("Release")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(text.encode())

    def git(self, *args: str) -> str:
        user = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for role in "AUTHOR", "COMMITTER":
            user |= {f"GIT_{role}_NAME": "A Developer", f"GIT_{role}_EMAIL": "a@example.org"}
        run = subprocess.run(["git", *args], cwd=self.root, env=os.environ | user, check=True, stdout=subprocess.PIPE)
        return run.stdout.decode()

    def commit(self, message: str) -> None:
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--message", message)

    def state(self) -> tuple[str, ...]:
        """Branches, current branch, index and work tree: what may not change."""
        return tuple(self.git(*args.split()) for args in (
            "for-each-ref", "symbolic-ref HEAD", "ls-files --stage", "status --porcelain --ignored"))  # fmt: skip

    def show(self, path: str, branch="seamless-handoff") -> str:
        return self.git("show", f"{branch}:{path}")
