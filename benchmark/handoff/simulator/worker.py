"""What both workers share: a process that can restart, its clock, its session table, its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core import SessionTable
from .invariants import Slots
from .link import Channel

if TYPE_CHECKING:
    from .world import World


class Worker:
    """One scheduler process. Subclasses give ``_pass``, one turn of the scheduler loop."""

    role = ""
    accepts: tuple = ()

    def __init__(self, world: World, number: int, rows: int) -> None:
        self.world, self.clock, self.number, self._rows = world, world.clock, number, rows
        self.host = f"{self.role}{number}"
        # The clocks of two workers have nothing in common, and run a little apart.
        self._clock_zero = world.rng.uniform(10, 1e5)
        self._clock_speed = 1 + world.rng.uniform(-1e-4, 1e-4)
        self.epoch = 0
        self._begin()

    def _begin(self) -> None:
        """A new process: nothing of the one before is known."""
        self.epoch += 1
        # Every second process gets the port of the one before, and then what was meant for that one.
        endpoint = f"tcp://{self.host}:{self.epoch // 2 % 65536}"
        self.channel = Channel(self.world.control, endpoint, self.accepts, self.wake)
        self.table = SessionTable(self.channel, self.world.timing, self.local())
        self.slots = Slots(self.host, self._rows)
        self._timer = self._again = False

    def local(self) -> float:
        """This worker's monotonic clock, in seconds."""
        return self._clock_zero + self.clock.now * self._clock_speed

    def wake(self) -> None:
        """Something has come that the scheduler loop would see at its next turn."""
        raise NotImplementedError

    def _hear(self) -> None:
        """The intake of one turn: messages, and the tick if it's due."""
        for event in self.table.poll(self.local()):
            self.table.handle(event)

    def _sleep(self) -> None:
        """The end of one turn: see to it that there is another when there must be."""
        if self._again:
            self._again = False
            self.clock.after(self.world.network.poll, self._alarm, self.epoch, False)
        if len(self.table) and not self._timer:
            self._timer = True
            # A little late, so that the table finds its tick due by the worker's own clock.
            self.clock.after(self.world.timing.resend * 0.5005, self._alarm, self.epoch, True)

    def _alarm(self, epoch: int, timer: bool) -> None:
        if epoch != self.epoch:
            return
        if timer:
            self._timer = False
        self.wake()
