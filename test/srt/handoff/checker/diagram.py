"""The transitions that a machine's file states at its head, and their picture."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Iterator, Set, Tuple

_LINE = re.compile(r"^    ([A-Z_, ]+) -> ([A-Z_, ]+): (.+)$", re.MULTILINE)


MACHINES = (("prefill_machine", "BRIDGING"), ("decode_machine", "OFFERED"))


def docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text()), clean=False)


def stated(text: str) -> Iterator[Tuple[str, str, str]]:
    """(from, to, why) of every transition in a module's docstring."""
    for sources, targets, why in _LINE.findall(text):
        for source in sources.split(", "):
            for target in targets.split(", "):
                yield source, target, why


def seen(machines: Any, role: str) -> Set[Tuple[str, str]]:
    """The transitions that single calls of the explored machines have made."""
    facts = machines.facts
    made = ((facts[before], facts[after]) for (before, _, _), (after, _, _) in machines._calls.items())
    return {(a.state.upper(), b.state.upper()) for a, b in made if a.role == role and a.state != b.state}


def mermaid(text: str, first: str) -> str:
    """A state diagram. The ends that most states have are notes, so that the rest can be seen."""
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    edges = list(stated(text))
    lines += [f"    {source} --> {target}: {why}" for source, target, why in edges if target not in ("FINISHED", "ABORTED")]
    ends = {target for _, target, _ in edges} - {source for source, _, _ in edges} | {"FINISHED"}
    lines += [f"    {end} --> [*]" for end in sorted(ends)]
    for end in ("FINISHED", "ABORTED"):
        whys = {why for _, target, why in edges if target == end}
        sources = ", ".join(source for source, target, _ in edges if target == end)
        lines.append(f"    note right of {end}: from {sources} ({', '.join(sorted(whys))})")
    return "\n".join(lines) + "\n"
