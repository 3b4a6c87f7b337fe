"""Machines with small round deadlines, and the means to see that nothing in one has changed."""

from __future__ import annotations

import copy
from typing import Any, Dict, List

from sglang.srt.disaggregation.handoff.decode_machine import DecodeMachine
from sglang.srt.disaggregation.handoff.log import HandoffLog
from sglang.srt.disaggregation.handoff.pace import SealNow
from sglang.srt.disaggregation.handoff.messages import Message
from sglang.srt.disaggregation.handoff.prefill_machine import PrefillMachine
from sglang.srt.disaggregation.handoff.timing import Timing

ROOM, NONCE = 7, bytes(range(16))
P_ENDPOINT, D_ENDPOINT = "tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002"
FINGERPRINT = b"same-cfg"
TIMING = Timing(resend=1.0, lease=4.0, margin=1.0, seal=2.0, commit=10.0, silence=8.0)
# The two workers' clocks have nothing in common; a machine that compares them goes wrong.
P_EPOCH, D_EPOCH = 100.0, 70_000.0


def prefill_machine(**changes: Any) -> PrefillMachine:
    """P, with its prompt computed and t1 not sampled yet."""
    return PrefillMachine(**{
        "room": ROOM, "nonce": NONCE, "endpoint": P_ENDPOINT, "prompt_len": 5, "cached_tokens": 2,
        "fingerprint": FINGERPRINT, "budget": 100, "prefill_us": 1234, "timing": TIMING,
    } | changes)  # fmt: skip


def decode_machine(**changes: Any) -> DecodeMachine:
    """D, with its offer on the way."""
    return DecodeMachine(**{
        "room": ROOM, "nonce": NONCE, "prompt_len": 5, "fingerprint": FINGERPRINT,
        "vocab_size": 1000, "timing": TIMING, "seal_lag": 2, "max_rounds_before_seal": 3,
    } | changes)  # fmt: skip


def everything(machine: Any) -> Dict[str, Any]:
    """A deep copy of every field; ``rejected`` is left out, it is a figure."""
    fields = copy.deepcopy(vars(machine))
    fields.pop("rejected", None)
    for name, value in fields.items():
        if isinstance(value, (HandoffLog, SealNow)):
            fields[name] = vars(value)
    return fields


def only(messages: List[Message], kind: type) -> Message:
    """The one message of ``kind`` in ``messages``."""
    (found,) = [m for m in messages if isinstance(m, kind)]
    return found


def kinds(messages: List[Message]) -> List[str]:
    return [type(m).__name__ for m in messages]
