"""Runs git so that neither the user's settings nor a calling git hook change what it does."""

import os
import subprocess
from pathlib import Path

from fork import ForkError

WHO, WHEN = "handoff", "2000-01-01T00:00:00Z"
# What of the environment says who the user is and how they set up git.
USERS = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG")


def git(
    repo: Path,
    *args: str,
    stdin: str = "",
    index: Path | None = None,
    strip: bool = True,
    as_user: bool = False,
) -> str:
    """Output of a git command in repo, less the last newline if strip. Same input, same commit ids.

    index: another index file to use instead of the repository's.
    as_user: with the user's settings and name, at this time: for a repository of theirs.
    Raises ForkError with git's message when it fails.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    if as_user:
        env |= {k: v for k, v in os.environ.items() if k.startswith(USERS)}
    else:
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        env |= {"GIT_EDITOR": "true", "GIT_SEQUENCE_EDITOR": "true"}
        for role in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{role}_NAME": WHO, f"GIT_{role}_EMAIL": "", f"GIT_{role}_DATE": WHEN}
    if index:
        env["GIT_INDEX_FILE"] = str(index)
    try:
        ran = subprocess.run(
            ["git", *args],
            cwd=repo,
            env=env,
            input=stdin.encode(errors="surrogateescape"),
            capture_output=True,
        )
    except FileNotFoundError as error:
        raise ForkError(f"{error.filename} is missing: install git.") from error
    if ran.returncode:
        said = (ran.stdout + ran.stderr).decode(errors="replace").strip()
        raise ForkError(f"git {args[0]} failed in {repo}:\n{said}")
    output = ran.stdout.decode(errors="surrogateescape")
    return output.removesuffix("\n") if strip else output
