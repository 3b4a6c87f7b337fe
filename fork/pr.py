"""Writes the handoff into a git checkout of SGLang, as a branch for a pull request.

One commit per patch, each with those of our files that its lines call; before them the package
that needs no patch, after them benchmarks, docs and tests.
"""

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fork import ForkError, base, placement, tree
from fork.carry import Hook, carry
from fork.checkout import Checkout
from fork.patch import Patch
from fork.rebase import wheel_reader

BRANCH = "seamless-handoff"
# For our rig alone: upstream may want it, as a change of its own. docs/upstream_patch.md says why.
LEFT_OUT = ("cpu-pd",)
PACKAGE = """Seamless handoff: log, messages, state machines, channel

The protocol by which a prefill worker that decodes on hands a request over to the decode
worker. Nothing calls it yet. docs/seamless_handoff.md says how it works."""
BENCHMARKS = """Seamless handoff: benchmarks

The time of the replay's attention kernel, and a simulator that runs the protocol's own state
machines over many requests, faults and link speeds in virtual time."""
TESTS = """Seamless handoff: tests

All run without a GPU and without a server; some need hypothesis. test/srt/handoff/checker
takes the two state machines through the interleavings of messages and faults."""
DOCS = """Seamless handoff: docs, dashboard, alerts

How it works, when it takes part, settings, security, numerics, operation."""


@dataclass(frozen=True)
class Made:
    """The branch made upon `upon`: its commits' subjects and the number of files of each."""

    branch: str
    upon: str
    commits: list[tuple[str, int]]
    moved: list[Hook]


class Conflicts(ForkError):
    """Hooks that don't fit the checkout; it was left as it was."""

    def __init__(self, checkout: Path, upon: str, hooks: list[Hook]):
        self.hooks = hooks
        files = list(dict.fromkeys(hook.path for hook in hooks))
        lines = [f"{len(hooks)} hooks in {len(files)} files don't fit {upon}:"]
        for file in files:
            lines.append(f"\n{file}")
            for hook in (hook for hook in hooks if hook.path == file):
                where = f"line {hook.line} of {base.RELEASE}"
                lines += [f"  {hook.patch}: {hook.place}, {where}", hook.why]
        super().__init__(
            "\n".join(lines)
            + f"\n\n{checkout} is as it was; no branch was made. What to do: go back to the "
            f"release (`git -C {checkout} switch --detach v{base.UPSTREAM}`), run this again, where "
            f"all applies, then put the branch upon {upon} by `git rebase`, which stops at these "
            "places and lets you resolve them."
        )


def make(path: Path, branch: str = BRANCH, left_out: Collection[str] = LEFT_OUT) -> Made:
    """Make the branch in the checkout at path. The checkout itself stays on its branch.

    left_out: names of patches that stay behind.
    Raises ForkError when it isn't a clean checkout of SGLang, has the branch or the handoff, or a
    patch in left_out doesn't exist; Conflicts when hooks don't fit. Nothing is written then.
    """
    checkout = Checkout(path)
    checkout.refuse_branch(branch)
    patches = tree.read_patches()
    names = [patch.name for patch in patches]
    if unknown := set(left_out) - set(names):
        raise ForkError(f"There is no patch {min(unknown)} to leave out: {', '.join(names)}.")
    product, others = placement.product(), (
        (BENCHMARKS, placement.benchmarks()),
        (DOCS, placement.docs()),
        (TESTS, placement.tests()),
    )
    for file in [*product, *(file for _, files in others for file in files)]:
        if checkout.read(file) is not None:
            raise ForkError(
                f"{path} has a {file} at {checkout.describe()}: it holds the handoff already, or a "
                "file of that name. Switch to a commit without it."
            )
    done = carry(patches, wheel_reader(base.fetch()), checkout.read, left_out)
    if done.conflicts:
        raise Conflicts(path, checkout.describe(), done.conflicts)
    kept = [patch for patch in patches if patch.name not in left_out]
    with_patch = assign(kept, product)
    commits = [(PACKAGE, _new(with_patch[""]))]
    for patch in kept:
        edited = {file: ("", text) for file, text in done.files[patch.name].items()}
        commits.append((patch.message, edited | _new(with_patch[patch.name])))
    commits += [(message, _new(files)) for message, files in others]
    commits = [(message, files) for message, files in commits if files]
    checkout.write(branch, commits)
    moved = [hook for hook in done.hooks if hook.there != hook.line]
    subjects = [(message.partition("\n")[0], len(files)) for message, files in commits]
    return Made(branch, checkout.describe(), subjects, moved)


def assign(patches: list[Patch], product: dict[str, Path]) -> dict[str, dict[str, Path]]:
    """Our product files by the patch that they go with, "" for before all patches.

    A file goes with the first patch whose lines name it, or name a file that imports it. The
    handoff's package and what no patch comes to name go before.
    """
    package = "python/sglang/srt/disaggregation/handoff/"
    left = {file: path for file, path in product.items() if not file.startswith(package)}
    found: dict[str, dict[str, Path]] = {"": {f: p for f, p in product.items() if f not in left}}
    for patch in patches:
        text = "\n".join(re.findall(r"^\+(?!\+\+ ).*", patch.diff, re.MULTILINE))
        todo = [file for file in left if re.search(rf"\b{re.escape(Path(file).stem)}\b", text)]
        goes = found[patch.name] = {}
        while todo:
            if (file := todo.pop()) in left:
                goes[file] = left.pop(file)
                imported = _imported(goes[file])
                todo += [f for f in left if f.removesuffix(".py").replace("/", ".") in imported]
    found[""] |= left
    return found


def _imported(path: Path) -> set[str]:
    """The modules that a file imports, as python.sglang...."""
    if path.suffix != ".py":
        return set()
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {f"python.{node.module}"}
            found |= {f"python.{node.module}.{alias.name}" for alias in node.names}
    return found


def hook_table() -> dict[tuple[str, str], int]:
    """Lines inserted by the patches that go, by file under python/sglang and function there."""
    release = wheel_reader(base.fetch())
    table: dict[tuple[str, str], int] = {}
    for hook in carry(tree.read_patches(), release, release, LEFT_OUT).hooks:
        key = hook.path.removeprefix("python/sglang/"), hook.place
        table[key] = table.get(key, 0) + hook.lines
    return table


def _new(files: dict[str, Path]) -> dict[str, tuple[str, str]]:
    return {
        file: (
            "100755" if path.stat().st_mode & 0o100 else "100644",
            path.read_bytes().decode(errors="surrogateescape"),
        )
        for file, path in sorted(files.items())
    }


def report(path: Path, made: Made) -> str:
    """What was made, what moved and what stayed, for the user."""
    lines = [f"{path}: branch {made.branch} upon {made.upon}, {len(made.commits)} commits:"]
    lines += [f"  {subject} ({count} file{'s'[: count > 1]})" for subject, count in made.commits]
    if made.moved:
        lines.append(f"{len(made.moved)} hooks are at another line than in {base.RELEASE}.")
    lines += ["", "Not in it, because they need our CPU rig or are it:"]
    lines += [f"  {file}" for file in placement.left_out()]
    lines += ["", f"Look: git -C {path} log -p --reverse HEAD..{made.branch}"]
    return "\n".join(lines)
