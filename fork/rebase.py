"""Tries patches/ on another release of SGLang: what applies, what moved, what conflicts where."""

import ast
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fork import ForkError, base, tree
from fork.carry import CONFLICT, Carried, Reader, blob, carry
from fork.patch import Patch
from fork.regenerate import write


@dataclass(frozen=True)
class Trial:
    """`carried` says how the patches fit; `missing` names what our files import that the release
    hasn't, one line each."""

    version: str
    carried: Carried
    missing: list[str]

    @property
    def fits(self) -> bool:
        return not self.carried.conflicts and not self.missing


def try_release(version: str) -> Trial:
    """Carry the patches to that release; nothing is written but the wheel under build/base.

    Raises ForkError when pip can't get it, or the patches aren't those of the pinned release.
    """
    release, other = wheel_reader(base.fetch()), wheel_reader(base.fetch_other(version))
    done = carry(tree.read_patches(), release, other)
    patched = {path: text for files in done.files.values() for path, text in files.items()}
    return Trial(version, done, missing_imports(lambda path: patched.get(path) or other(path)))


def wheel_reader(wheel: Path) -> Reader:
    """Reads python/sglang/... from a wheel."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())

    def read(path: str) -> str | None:
        name = path.removeprefix("python/")
        return archive.read(name).decode(errors="surrogateescape") if name in names else None

    return read


def missing_imports(other: Reader) -> list[str]:
    """What our files import of SGLang that isn't there, as `our file: module.name`, sorted."""
    ours = tree.our_files()
    missing, known = set(), {}

    def names(module: str) -> set[str] | None:
        """The names that a module binds anywhere; {"*"} when it can't be told; None: no module."""
        if module not in known:
            file = module.replace(".", "/")
            paths = (f"{file}.py", f"{file}/__init__.py")
            texts = [ours[p].read_text() if p in ours else other(f"python/{p}") for p in paths]
            text = next((text for text in texts if text is not None), None)
            known[module] = None if text is None else _bound(text)
        return known[module]

    for path, source in ours.items():
        for node in ast.walk(ast.parse(source.read_text())) if path.endswith(".py") else ():
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("sglang"):
                continue
            found = names(node.module)
            for alias in node.names:
                there = found is not None and ({"*", alias.name} & found)
                if not there and names(f"{node.module}.{alias.name}") is None:
                    missing.add(f"python/{path}: {node.module}.{alias.name}")
    return sorted(missing)


def _bound(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
            if node.name == "__getattr__":
                found.add("*")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
    return found


def table(trial: Trial) -> str:
    """The hooks, one a line, the conflicts with git's marks, and the sum."""
    head = ("patch", "file (srt/ ...)", "hook", base.UPSTREAM, trial.version, "")
    rows = [
        (h.patch, h.path.removeprefix("python/sglang/").removeprefix("srt/"), h.place, str(h.line),
         "" if h.there is None else str(h.there), h.result)
        for h in trial.carried.hooks
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in (head, *rows)]
    for hook in trial.carried.conflicts:
        lines += ["", f"== {hook.patch}: {hook.path}, {hook.place}", hook.why]
    if trial.missing:
        lines += ["", f"Our files import what {trial.version} hasn't:", *trial.missing]
    return "\n".join([*lines, "", summary(trial)])


def summary(trial: Trial) -> str:
    results = [hook.result for hook in trial.carried.hooks]
    counts = ", ".join(f"{results.count(r)} {r}" for r in dict.fromkeys(sorted(results)))
    missing = f"; {len(trial.missing)} of our imports missing" if trial.missing else ""
    return f"{base.NAME} {trial.version}: {len(results)} hooks: {counts}{missing}"


def write_patches(trial: Trial) -> list[str]:
    """Write patches/ as they are for that release; returns the names of the files that changed.

    Raises ForkError, with patches/ as it was, when a hook conflicts or build/tree has edits.
    """
    if trial.carried.conflicts:
        raise ForkError(
            f"patches/ stays as it is, since hooks conflict. Move the patches of these ({CONFLICT} "
            "above) out of patches/, run this again, pin the release, and make their edits in "
            "build/tree (`python -m fork patches --new`)."
        )
    with tree.locked():
        if tree.is_of_base() and (found := tree.edits()):
            raise ForkError(f"{tree.TREE} has {found}: run `python -m fork patches` first.")
        pristine = wheel_reader(base.fetch_other(trial.version))
        return write([_rewritten(patch, trial, pristine) for patch in tree.read_patches()])


def _rewritten(patch: Patch, trial: Trial, pristine: Reader) -> Patch:
    diff, hashes = [], {}
    for path, (before, hunks) in trial.carried.diffs[patch.name].items():
        after = trial.carried.files[patch.name][path]
        mode = f"index {blob(before)}..{blob(after)} 100644"
        diff += [f"diff --git a/{path} b/{path}", mode, f"--- a/{path}", f"+++ b/{path}"]
        shift = 0
        for line, lines in hunks:
            size = f",{len(lines)}" if len(lines) > 1 else ""
            diff.append(f"@@ -{line},0 +{line + shift + 1}{size} @@")
            diff += [f"+{line}".removesuffix("\n") for line in lines]
            shift += len(lines)
        data = pristine(path).encode(errors="surrogateescape")
        hashes[path] = hashlib.sha256(data).hexdigest()
    release = f"{base.NAME} {trial.version}"
    return Patch(patch.name, patch.message, release, hashes, "\n".join(diff) + "\n")


def pins(version: str) -> str:
    """What to pin in fork/base.toml for that release, as lines to show."""
    wheel = base.fetch_other(version)
    with wheel.open("rb") as file:
        sha = hashlib.file_digest(file, "sha256").hexdigest()
    return f'version = "{version}"\n"{wheel.name}" = "{sha}"'
