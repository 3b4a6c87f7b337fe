"""Inputs of the scheduler that wait until no request is being handed over."""

from __future__ import annotations

from typing import Any, List, Optional

from sglang.srt.managers.io_struct import (
    ShutdownReq,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromIPCReqInput,
    UpdateWeightsFromTensorReqInput,
)

# The tokenizer manager kills a scheduler 15 s after it has asked it to end.
SHUTDOWN_WAIT = 10.0  # seconds

HELD = (
    ShutdownReq,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromIPCReqInput,
    UpdateWeightsFromTensorReqInput,
)


class HeldInputs:
    """Keeps the inputs of these kinds, in their order. A session ends by its own deadlines, so they wait
    no longer than those; a shutdown no longer than ``SHUTDOWN_WAIT``."""

    def __init__(self) -> None:
        self._held: List[Any] = []
        self._shutdown_at: Optional[float] = None  # seconds, when it is passed on at the latest

    def pass_on(self, inputs: List[Any], live: bool, now: float) -> List[Any]:
        """What of ``inputs``, and of those held before, the scheduler is to see now.

        Args:
            live: requests are being handed over.
            now: seconds, monotonic.
        """
        if not live and not self._held:
            return inputs
        held = [one for one in inputs if isinstance(one, HELD)]
        others = [one for one in inputs if not isinstance(one, HELD)]
        self._held += held
        if self._shutdown_at is None and any(isinstance(one, ShutdownReq) for one in held):
            self._shutdown_at = now + SHUTDOWN_WAIT
        if live and (self._shutdown_at is None or now < self._shutdown_at):
            return others
        passed, self._held, self._shutdown_at = self._held, [], None
        return others + passed
