"""A machine's fields as one hashable value, and back. No field can be missed.

Instants become ages in ticks, so that two worlds that differ only in when they began are one. An
age past the last deadline that looks at it is cut to that deadline: no comparison can tell. An instant
that no deadline looks at in the machine's state is taken as old; ``Machines`` makes sure of that claim by
trying every call on every machine that was taken as the same.
"""

from __future__ import annotations

from enum import Enum
from math import ceil
from types import SimpleNamespace
from typing import Any, Dict, Tuple

import msgspec

TICK = 1.0  # seconds
# What the two workers' clocks show, in seconds. They have nothing in common, so a machine that
# compares its own time with the other's goes wrong here.
NOW = {"P": 1_000.0, "D": 50_000.0}
# Figures for people: no decision reads them.
FIGURES = frozenset({"rejected"})
# The states in which an instant is looked at, or kept for a state that does.
LOOKED_AT = {
    ("P", "_sent_at"): {"bridging", "paused", "sealed"},
    ("P", "_heard_stamp"): {"bridging", "paused", "sealed"},
    ("P", "_still_since"): {"bridging", "paused", "sealed"},
    ("D", "_sent_at"): {"relaying", "relay_only", "replaying", "sealing", "finished"},
    ("D", "_asked_at"): {"sealing"},
    ("D", "_echoed_at"): {"relaying", "replaying", "sealing", "draining"},
    ("D", "_heard_at"): {"relaying", "replaying", "sealing", "draining", "relay_only", "finished"},
    ("D", "_grown_at"): {"relay_only"},
    ("D", "_aborted_on_p_at"): {"relaying", "relay_only", "finished", "aborted"},
}
# Never changed after it was made, so a reference is a copy.
FIXED = (type(None), bool, int, str, bytes, tuple, Enum)


class Snapshots:
    """Freezes and thaws the machines of one core.

    Raises:
        TypeError: from ``freeze``, for a field of a kind that this file does not know.
    """

    def __init__(self, core: SimpleNamespace, timing: Any) -> None:
        self.core = core
        stamp = ceil(timing.lease + timing.silence)
        # Ticks after which an instant's age makes no more difference, by field.
        self.ages = {
            "P": {"_sent_at": ceil(timing.resend), "_still_since": ceil(max(timing.commit, timing.silence))},
            "D": {
                "_sent_at": ceil(timing.silence),
                "_asked_at": ceil(timing.seal),
                "_heard_at": ceil(max(timing.silence, timing.seal)),
                "_grown_at": ceil(timing.silence),
                "_echoed_at": ceil(timing.lease + timing.margin),
                "_aborted_on_p_at": ceil(timing.silence),
            },
        }
        # The same for stamps: microseconds on P's clock, on P, in Append and in Ack.
        self.stamps = {"P": {"_heard_stamp": stamp}, "D": {}}
        self.stamp_age = stamp
        self._names: Dict[str, Tuple[str, ...]] = {}

    def freeze(self, role: str, machine: Any) -> Tuple[Any, ...]:
        fields = vars(machine)
        names = self._names.setdefault(role, tuple(sorted(fields.keys() - FIGURES)))
        if len(names) != len(fields) - len(FIGURES & fields.keys()):
            raise TypeError(f"{role}'s machine has got new fields: {sorted(fields.keys() - FIGURES - set(names))}")
        return (role, *(self._freeze(role, name, fields[name]) for name in names))

    def settle(self, frozen: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """The same machine with every instant that its state does not look at taken as old."""
        role, names = frozen[0], self._names[frozen[0]]
        state = frozen[1 + names.index("state")].value
        last = self.ages[role] | self.stamps[role]
        return (role, *(
            last[name] if name in last and value is not None and state not in LOOKED_AT[role, name] else value
            for name, value in zip(names, frozen[1:], strict=True)
        ))  # fmt: skip

    def _freeze(self, role: str, name: str, value: Any) -> Any:
        if name in self.ages[role]:
            return None if value is None else min(ceil((NOW[role] - value) / TICK), self.ages[role][name])
        if name in self.stamps[role]:
            return self.age_of(value)
        if isinstance(value, self.core.HandoffLog):
            ids, closed_at = value._ids, value._closed_at
            assert vars(value).keys() == {"_ids", "_closed_at"}
            return (tuple(ids), closed_at)
        if isinstance(value, set):
            return frozenset(value)
        if isinstance(value, int) and not isinstance(value, Enum) and abs(value) > 10_000:
            raise TypeError(f"{role}'s field {name} looks like a stamp: {value}; say when its age stops to matter")
        if isinstance(value, FIXED) or isinstance(value, (self.core.Timing, self.core.SealNow, msgspec.Struct)):
            return value
        raise TypeError(f"{role}'s field {name} holds a {type(value).__name__}: {value}; say how it is kept")

    def thaw(self, machine: Any, frozen: Tuple[Any, ...]) -> None:
        """Make ``machine`` what was frozen."""
        role = frozen[0]
        fields = vars(machine)
        for name, value in zip(self._names[role], frozen[1:], strict=True):
            if name in self.ages[role]:
                value = None if value is None else NOW[role] - value * TICK
            elif name in self.stamps[role]:
                value = self.stamp_of(value)
            elif isinstance(value, frozenset):
                value = set(value)
            elif name == "log":
                log = self.core.HandoffLog()
                log._ids.extend(value[0])
                log._closed_at = value[1]
                value = log
            fields[name] = value

    def older(self, frozen: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """The same machine a tick later."""
        role = frozen[0]
        last = self.ages[role] | self.stamps[role]
        return (role, *(
            min(value + 1, last[name]) if name in last and value is not None else value
            for name, value in zip(self._names[role], frozen[1:], strict=True)
        ))  # fmt: skip

    def age_of(self, stamp: int) -> int:
        return min(ceil((NOW["P"] - stamp / 1e6) / TICK), self.stamp_age)

    def stamp_of(self, age: int) -> int:
        return int((NOW["P"] - age * TICK) * 1e6)
