"""The product's protocol core, loaded by path: neither SGLang nor torch is needed to check it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Dict, Sequence, Tuple

CORE = Path(__file__).resolve().parents[4] / "python/sglang/srt/disaggregation/handoff"
FILES = ("log", "messages", "timing", "cost", "pace", "prefill_machine", "decode_machine")
_numbers = itertools.count()


def load(changes: Sequence[Tuple[str, str, str]] = ()) -> SimpleNamespace:
    """Every public name of the core, from a copy of its own.

    Args:
        changes: (file, old text, new text) of a mutant.

    Raises:
        ValueError: ``old text`` is not in the file exactly once, so the mutant is out of date.
    """
    package = f"handoff_core_{next(_numbers)}"
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = []
    names: Dict[str, object] = {}
    for name in FILES:
        path = CORE / f"{name}.py"
        source = path.read_text()
        for file, old, new in changes:
            if file != name:
                continue
            if source.count(old) != 1:
                raise ValueError(f"{path.name} holds this {source.count(old)} times, not once:\n{old}")
            source = source.replace(old, new)
        module = ModuleType(f"{package}.{name}")
        module.__package__ = package
        sys.modules[module.__name__] = module
        exec(compile(source, str(path), "exec"), vars(module))
        names |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
    return SimpleNamespace(**names)
