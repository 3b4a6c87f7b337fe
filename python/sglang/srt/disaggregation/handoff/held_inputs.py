"""Inputs of the scheduler that wait until no request is being handed over."""

from __future__ import annotations

from typing import Any, List, Tuple

from sglang.srt.managers.io_struct import (
    BeginWeightUpdateReqInput,
    EndWeightUpdateReqInput,
    ShutdownReq,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromIPCReqInput,
    UpdateWeightsFromTensorReqInput,
)

WEIGHT_UPDATES = (
    BeginWeightUpdateReqInput,
    EndWeightUpdateReqInput,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromIPCReqInput,
    UpdateWeightsFromTensorReqInput,
)
UPDATE_WAIT = 30.0  # seconds, at most: a decode worker that is full may keep its requests waiting for minutes
SHUTDOWN_WAIT = 8.0  # the tokenizer manager kills a scheduler 15 s after it has asked it to end


class HeldInputs:
    """Keeps the inputs of these kinds, in their order, for a bounded time."""

    def __init__(self) -> None:
        self._held: List[Tuple[float, Any]] = []  # until when, seconds

    def pass_on(self, inputs: List[Any], live: bool, now: float) -> List[Any]:
        """What of ``inputs``, and of those held before, the scheduler is to see now. A shutdown takes
        the place of the updates that were held with it: there would be no time for them.

        Args:
            live: requests are being handed over.
            now: seconds, monotonic.
        """
        if not live and not self._held:
            return inputs
        others = []
        for one in inputs:
            if isinstance(one, ShutdownReq):
                self._held.append((now + SHUTDOWN_WAIT, one))
            elif isinstance(one, WEIGHT_UPDATES):
                self._held.append((now + UPDATE_WAIT, one))
            else:
                others.append(one)
        if live and not any(until <= now for until, _ in self._held):
            return others
        passed, self._held = [one for _, one in self._held], []
        shutdowns = [one for one in passed if isinstance(one, ShutdownReq)]
        return others + (shutdowns or passed)
