"""The two ways between workers: control messages, which may be lost, and the KV, which is not."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Dict, Iterator, List, Optional

from .core import messages
from .costs import Network
from .events import Clock
from .faults import Faults

SUCCESS, FAILED = "success", "failed"


class Channel:
    """A worker's end of the control channel: what SessionTable asks of HandoffChannel.

    Frames are really encoded and decoded, so the wire's bounds hold here too.
    """

    def __init__(self, control: Control, endpoint: str, accepts: tuple, wake: Callable[[], None]) -> None:
        self.endpoint = endpoint
        self._control, self._accepts, self._wake = control, accepts, wake
        self._arrived: List[bytes] = []
        control.doors[endpoint] = self

    def deliver(self, frame: bytes) -> None:
        self._arrived.append(frame)
        self._wake()

    def receive(self) -> Iterator[object]:
        arrived, self._arrived = self._arrived, []
        for frame in arrived:
            message = messages.decode(frame)
            if isinstance(message, self._accepts):
                yield message
            else:
                self.drop("role")

    def send(self, endpoint: str, message: object) -> None:
        self._control.send(self.endpoint, endpoint, messages.encode(message))

    def drop(self, reason: str, detail: str = "") -> None:
        self._control.dropped[reason] += 1

    def close(self) -> None:
        self._control.doors.pop(self.endpoint, None)


class Control:
    """The control network. Faults drop, double, delay and thereby reorder frames."""

    def __init__(self, clock: Clock, network: Network, faults: Faults) -> None:
        self._clock, self._network, self._faults = clock, network, faults
        self.doors: Dict[str, Channel] = {}
        self.sent = 0
        self.dropped: Counter[str] = Counter()  # what was not obeyed, by reason

    def send(self, source: str, target: str, frame: bytes) -> None:
        self.sent += 1
        for extra in self._faults.deliveries(self._clock.now, source, target):
            self._clock.after(self._network.control + extra, self._arrive, target, frame)

    def _arrive(self, target: str, frame: bytes) -> None:
        door = self.doors.get(target)  # none: the process has ended
        if door is not None:
            door.deliver(frame)


class Transfer:
    """The prompt KV of one request, chunk by chunk.

    Each side learns the end for itself. ``writing`` chunks are on the wire: as long as there is
    one, neither side's rows may be freed (IMMUTABLE).
    """

    __slots__ = ("writing", "p_state", "d_state", "sent", "on_p", "on_d")

    def __init__(self, on_p: Callable[[], None], on_d: Callable[[], None]) -> None:
        self.writing = 0
        self.p_state: Optional[str] = None
        self.d_state: Optional[str] = None
        self.sent = False  # the last chunk is on its way or there
        self.on_p, self.on_d = on_p, on_d


class Nic:
    """What carries the KV out of one prefill worker: one chunk after the other."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self._clock, self._network = clock, network
        self._free_at = 0.0

    def send(self, transfer: Transfer, size: float, last: bool, stall: float = 0.0) -> None:
        """Queue one chunk of ``size`` bytes; ``stall`` (s) is a fault."""
        if transfer.p_state is not None:
            return
        transfer.writing += 1
        self._free_at = max(self._free_at, self._clock.now) + size / self._network.kv_rate + stall
        transfer.sent |= last
        self._clock.at(self._free_at, self._written, transfer, last)

    def _written(self, transfer: Transfer, last: bool) -> None:
        transfer.writing -= 1
        if last and transfer.p_state is None:
            transfer.p_state = SUCCESS
            self._clock.after(self._network.kv_latency, self.tell_d, transfer, SUCCESS)
        transfer.on_p()
        transfer.on_d()

    def tell_d(self, transfer: Transfer, state: str) -> None:
        if transfer.d_state is None:
            transfer.d_state = state
            transfer.on_d()

    def fail(self, transfer: Transfer, d_after: float) -> None:
        """The transfer breaks; P sees it now, D ``d_after`` seconds later."""
        if transfer.p_state is None:
            transfer.p_state = FAILED
            self._clock.after(d_after, self.tell_d, transfer, FAILED)
            transfer.on_p()

    def cancel(self, transfer: Transfer) -> None:
        """D gives the transfer up: failed at once there, also when it had succeeded; P hears of it."""
        transfer.d_state = FAILED
        self._clock.after(self._network.control, self._cancelled, transfer)
        transfer.on_d()

    def _cancelled(self, transfer: Transfer) -> None:
        if transfer.p_state is None:
            transfer.p_state = FAILED
            transfer.on_p()
