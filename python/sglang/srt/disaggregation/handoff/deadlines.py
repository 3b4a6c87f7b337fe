"""Which deadline of the protocol has fired, seen from outside a machine."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional, Union

from .decode_machine import DecodeMachine, DecodeState
from .messages import AbortReason
from .prefill_machine import HOLD_LEASE, PrefillMachine, PrefillState

LEASE, SEAL, COMMIT, SILENCE = "lease", "seal", "commit", "silence"
PREFILL_DEADLINES = (LEASE, COMMIT, SILENCE)
DECODE_DEADLINES = (LEASE, SEAL, SILENCE)


class Facts(NamedTuple):
    """What a deadline changes. ``on_its_own``: P holds since its lease is over, D goes on without P."""

    state: Enum
    on_its_own: bool


def facts(machine: Union[PrefillMachine, DecodeMachine]) -> Facts:
    """To be taken before and after a ``tick``."""
    on_its_own = HOLD_LEASE in machine.holds if isinstance(machine, PrefillMachine) else machine.alone
    return Facts(machine.state, on_its_own)


def fired(before: Facts, machine: Union[PrefillMachine, DecodeMachine]) -> Optional[str]:
    """The deadline that fired in the ``tick`` since ``before``, or None.

    P's lease: it pauses. P's commit and silence: it gives up. D's seal: P didn't stop when asked, or
    what it had logged didn't come; D's lease: P was silent before. Both times D takes over alone.
    """
    after = facts(machine)
    if isinstance(machine, PrefillMachine):
        if after.state is PrefillState.ABORTED and before.state is not PrefillState.ABORTED:
            if machine.abort_reason is not AbortReason.TIMEOUT:
                return None
            return COMMIT if before.state is PrefillState.SEALED else SILENCE
        return LEASE if after.on_its_own and not before.on_its_own else None
    if after.on_its_own and not before.on_its_own:
        return LEASE if before.state is DecodeState.REPLAYING else SEAL
    return None
