"""Carries patches to another state of SGLang, hook by hook, by three-way merges.

A patch holds line numbers of the pinned release and no context. Here the release's file, that file
with one more hunk, and the other state's file are merged by `git merge-file`, so that a hunk finds
its place wherever the lines around it are the same in both.
"""

import ast
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from fork import ForkError, base
from fork.patch import Patch, blobs, hunks

APPLIES, MOVED, CONFLICT = "applies", "applies, moved", "conflict"
# Text of python/sglang/<file>, or None when there is no such file.
Reader = Callable[[str], str | None]


@dataclass(frozen=True)
class Hook:
    """A hunk and where it goes. `place` names the function, class or assignment that it is in;
    `line` is the line after which it goes in the pinned release, without any patch, `there` the
    same in the other state, None for a conflict; `why` says what a conflict is, for the user."""

    patch: str
    path: str
    place: str
    lines: int
    line: int
    there: int | None
    why: str = ""

    @property
    def result(self) -> str:
        if self.there is None:
            return CONFLICT
        return APPLIES if self.there == self.line else MOVED


@dataclass
class Text:
    """A file's lines, each with its newline, and of which of them patches are the source."""

    lines: list[str]
    patched: list[bool] = field(default_factory=list)

    def __post_init__(self):
        self.patched = self.patched or [False] * len(self.lines)

    def __str__(self) -> str:
        return "".join(self.lines)

    def insert(self, after: int, lines: list[str]) -> None:
        self.lines[after:after] = lines
        self.patched[after:after] = [True] * len(lines)

    def unpatched(self, after: int) -> int:
        """The line number less the patches' lines before it."""
        return self.patched[:after].count(False)


@dataclass
class Carried:
    """What became of the patches. `hooks` has all their hunks, in order. For each patch carried,
    by name: `files` has the texts of its files after it, `diffs` for each of its files the text
    before it and the hunks, as fork.patch.hunks gives them."""

    hooks: list[Hook] = field(default_factory=list)
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    diffs: dict[str, dict[str, tuple[str, list]]] = field(default_factory=dict)

    @property
    def conflicts(self) -> list[Hook]:
        return [hook for hook in self.hooks if hook.there is None]


def carry(
    patches: list[Patch], release: Reader, other: Reader, left_out: Collection[str] = ()
) -> Carried:
    """Carry the patches, made for the release, to the other state; those in left_out (names) stay
    behind.

    Raises ForkError when a patch wasn't made for the release and the patches before it.
    """
    done = Carried()
    ours: dict[str, Text] = {}
    theirs: dict[str, Text | None] = {}
    for patch in patches:
        out = patch.name in left_out
        expected = blobs(patch.diff)
        for path, found in hunks(patch.diff).items():
            if path not in ours:
                text, there = release(path), other(path)
                if text is None or _sha256(text) != patch.pristine[path]:
                    raise ForkError(f"patch {patch.name} wasn't made for {path} of {base.RELEASE}.")
                ours[path] = Text(split(text))
                theirs[path] = None if there is None else Text(split(there))
            if blob(str(ours[path])) != expected[path]:
                raise ForkError(
                    f"patch {patch.name} was made upon another {path} than the patches before it "
                    "give: run `python -m fork tree`, which says what to do."
                )
            before = theirs[path] and str(theirs[path])
            hooks, moved = _carry_file(patch.name, path, found, ours[path], theirs[path], out)
            if out:
                continue
            done.hooks += hooks
            if theirs[path]:
                done.files.setdefault(patch.name, {})[path] = str(theirs[path])
                done.diffs.setdefault(patch.name, {})[path] = (before, moved)
    return done


def _carry_file(name: str, path: str, found: list, ours: Text, theirs: Text | None, out: bool):
    """Put one patch's hunks of a file into both texts; out: into ours alone."""
    hooks, moved, shift, moved_shift = [], [], 0, 0
    for after, lines in found:
        before, after = str(ours), after + shift
        line = ours.unpatched(after)
        ours.insert(after, lines)
        shift += len(lines)
        if out:
            continue
        there, why = None, f"there is no {path}"
        if theirs:
            there, why = _merge(theirs, before, str(ours), lines)
        if there is not None:
            moved.append((there - moved_shift, lines))
            moved_shift += len(lines)
            at, there = there, theirs.unpatched(there)
            theirs.insert(at, lines)
        hooks.append((after, Hook(name, path, "", len(lines), line, there, why)))
    places = _Places(str(ours))
    return [_placed(hook, places.of(after + 1, hook.lines), theirs) for after, hook in hooks], moved


def _placed(hook: Hook, place: str, theirs: Text | None) -> Hook:
    """The hook with its place, and a word on whether a conflict's place exists at all."""
    why, name = hook.why, re.escape(place.rpartition(".")[2])
    named = place not in ("imports", "module")
    known = re.compile(rf"(def|class) {name}\b|^{name}\b", re.MULTILINE)
    if hook.there is None and theirs and named and not known.search(str(theirs)):
        why = f"there is no {place}\n{why}"
    return replace(hook, place=place, why=why)


def _merge(theirs: Text, before: str, after: str, lines: list[str]) -> tuple[int | None, str]:
    """The line after which the lines go in their text, or None and the conflict."""
    with tempfile.TemporaryDirectory() as tmp:
        for name, text in ("theirs", str(theirs)), ("before", before), ("after", after):
            Path(tmp, name).write_bytes(_bytes(text))
        labels = ["there", base.RELEASE, "patch"]
        merge = ["git", "merge-file", "-p", "-q", "--diff3"]
        merge += [part for label in labels for part in ("-L", label)]
        try:
            merge += ["theirs", "before", "after"]
            ran = subprocess.run(merge, cwd=tmp, capture_output=True)
        except FileNotFoundError as error:
            raise ForkError("git is missing: install git.") from error
    merged = ran.stdout.decode(errors="surrogateescape")
    if ran.returncode > 127 or ran.returncode < 0:
        raise ForkError(f"git merge-file failed:\n{ran.stderr.decode(errors='replace')}")
    if ran.returncode:
        return None, _conflict(merged)
    merged = split(merged)
    pairs = enumerate(zip(theirs.lines, merged))
    first = next((n for n, (a, b) in pairs if a != b), len(theirs.lines))
    # Where the lines begin as what follows them does, several places give the same text.
    for at in range(first, max(first - len(lines), 0) - 1, -1):
        if merged[at : at + len(lines)] == lines and theirs.lines[at:] == merged[at + len(lines) :]:
            return at, ""
    return None, "the lines are there already, or the merge changed more than them"


def _conflict(merged: str, most: int = 24) -> str:
    """The first conflict that git marked, cut to `most` lines."""
    lines = split(merged)
    start = next(n for n, line in enumerate(lines) if line.startswith("<<<<<<< there"))
    end = next(n for n, line in enumerate(lines) if n > start and line.startswith(">>>>>>> patch"))
    shown = lines[start : end + 1]
    if len(shown) > most:
        shown = [*shown[: most // 2], f"... {len(shown) - most} lines ...\n", *shown[-most // 2 :]]
    return "".join(shown).rstrip("\n")


class _Places:
    """Names the function, class or assignment that a line of a Python text is in."""

    def __init__(self, text: str):
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError):
            self.tree = None

    def of(self, line: int, count: int) -> str:
        """Where the `count` lines from that one are, but for what they define themselves."""
        names, body = [], self.tree.body if self.tree else []
        while node := next((n for n in body if self._first(n) <= line <= n.end_lineno), None):
            new = line <= self._first(node) and node.end_lineno < line + count
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or new:
                return ".".join(names) or self._named(node, new)
            names.append(node.name)
            body = node.body
        return ".".join(names) or "module"

    @staticmethod
    def _first(node: ast.stmt) -> int:
        return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])

    @staticmethod
    def _named(node: ast.stmt, new: bool) -> str:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return "imports"
        if new:
            return "module"
        target = getattr(node, "target", None) or next(iter(getattr(node, "targets", [])), None)
        return target.id if isinstance(target, ast.Name) else "module"


def split(text: str) -> list[str]:
    """The lines as git counts them, each with its newline."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def blob(text: str) -> str:
    """Git's name of a file with this text."""
    data = _bytes(text)
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(_bytes(text)).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
