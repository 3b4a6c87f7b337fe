"""Which of our files go upstream, and which stay because they need the rig."""

import ast
from functools import cache
from pathlib import Path

from fork import ROOT
from fork.tree import OURS, files_in

# Real workers on one CPU machine, our demo and this tool.
STAY = ("rig", "demo", "fork", "cpu")
# Without servers; the other tests are of whole servers, or of the rig.
TESTS = ("test/srt/handoff", "test/srt/kernels")
DOCS = ("docs/seamless_handoff*.md", "examples/monitoring/**/seamless-handoff*")


def product() -> dict[str, Path]:
    """Our files under python/, by path in a checkout."""
    return _by_path(files_in(OURS / "sglang"))


def benchmarks() -> dict[str, Path]:
    """Each package, and each script with what goes of its imports, in benchmark/handoff that needs
    nothing of the rig. The README and the results are about those that stay."""
    folder = ROOT / "benchmark/handoff"
    files = [path for path in files_in(folder) if path.suffix == ".py" and not needs_rig(path)]
    used = {found for path in files for module in _imports(path) for found in _local(module, path)}
    return _by_path(
        path for path in files if path.parent != folder or path in used or "__main__" in path.read_text()
    )


def tests() -> dict[str, Path]:
    """All files of the test folders but those that need the rig."""
    files = [path for folder in TESTS for path in files_in(ROOT / folder)]
    return _by_path(path for path in files if not needs_rig(path))


def docs() -> dict[str, Path]:
    """The documents, with the dashboard and the alerts where upstream keeps its own."""
    return _by_path(sorted(path for pattern in DOCS for path in ROOT.glob(pattern)))


def left_out() -> list[str]:
    """Our tests, benchmarks and folders that stay, sorted."""
    going = benchmarks() | tests()
    stay = [f"{name}/" for name in STAY if (ROOT / name).is_dir()]
    for folder in "benchmark/handoff", "test/srt":
        stay += [path for path in _by_path(files_in(ROOT / folder)) if path not in going]
    return sorted(stay)


def needs_rig(path: Path) -> bool:
    """Whether the file, a file that it imports, or one of its package comes to import the rig, or
    stands with the tests of whole servers, which stay."""
    seen, todo = set(), [path]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.parent == ROOT / "test/srt":
            return True
        if (path.parent / "__init__.py").exists():
            todo += path.parent.glob("*.py")
        for module in _imports(path):
            if module.partition(".")[0] in STAY:
                return True
            todo += _local(module, path)
    return False


@cache
def _imports(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def _local(module: str, importer: Path) -> list[Path]:
    """Our file of that name, as it is found from the importer's folder or one above it."""
    at = importer.parent
    while at.is_relative_to(ROOT):
        here = at.joinpath(*module.split("."))
        for found in here.with_name(here.name + ".py"), here / "__init__.py":
            if found.exists():
                return [found]
        at = at.parent
    return []


def _by_path(files) -> dict[str, Path]:
    return {path.relative_to(ROOT).as_posix(): path for path in files}
