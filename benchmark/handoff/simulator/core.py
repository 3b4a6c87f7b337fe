"""The product's protocol core and session table, loaded by path: no SGLang, torch or zmq needed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

HANDOFF = Path(__file__).resolve().parents[3] / "python/sglang/srt/disaggregation/handoff"
_PACKAGE = "handoff_core_simulated"


def _load() -> ModuleType:
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(HANDOFF)]
    sys.modules[_PACKAGE] = package
    # sessions.py names it in annotations only; it imports zmq and SGLang.
    stub = ModuleType(f"{_PACKAGE}.channel")
    stub.HandoffChannel = object
    sys.modules[stub.__name__] = stub
    for name in ("log", "messages", "timing", "cost", "pace", "admission", "worth", "prefill_machine", "decode_machine", "sessions"):
        setattr(package, name, importlib.import_module(f"{_PACKAGE}.{name}"))
    return package


_core = sys.modules.get(_PACKAGE) or _load()
messages = _core.messages
AbortReason, EndReason = messages.AbortReason, messages.EndReason
DecodeMachine, DecodeState = _core.decode_machine.DecodeMachine, _core.decode_machine.DecodeState
PrefillMachine, PrefillState = _core.prefill_machine.PrefillMachine, _core.prefill_machine.PrefillState
HOLD_KV, OPEN_STATES = _core.prefill_machine.HOLD_KV, _core.prefill_machine.OPEN_STATES
Session, SessionTable = _core.sessions.Session, _core.sessions.SessionTable
Timing = _core.timing.Timing
SEAL_LAG, SealAhead = _core.pace.SEAL_LAG, _core.pace.SealAhead
LateSeals, LinearCost = _core.pace.LateSeals, _core.cost.LinearCost
ReplayWorth = _core.worth.ReplayWorth
admission = _core.admission
