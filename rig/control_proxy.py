"""A bad network for the handoff's control channel: loses, repeats, delays and reorders whole messages between two workers.

A process of its own, `control_proxy.py DIRECTORY TO_PREFILL TO_DECODE`, with one PULL socket per direction. The workers
advertise these two endpoints instead of their own (`rig/plugin/control_endpoint.py`). All meet in a directory:

    prefill, decode   a worker's real endpoint, written by the plugin
    faults            the chances, written by `ControlProxy.set`
    counts            what was done so far, written by the proxy after each message
"""

import dataclasses
import heapq
import itertools
import json
import os
import pathlib
import random
import sys
import time

DIRECTIONS = ("prefill", "decode")  # by who receives
WAKE_MS = 20
DEAD_AFTER_MS = 2000


@dataclasses.dataclass(frozen=True)
class Faults:
    """What happens to messages. Each chance is a probability, drawn for each message and kind by itself.

    Attributes:
        drop: chance that a message is lost.
        double: chance that it comes a second time, up to `seconds` later.
        delay: chance that it's late by up to `seconds`, and all behind it with it.
        reorder: chance that it's late by up to `seconds`, while those behind it overtake.
        seconds: bound of the above.
        seed: with the same seed, the n-th message of a direction after `ControlProxy.set` meets the same fate.
    """

    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0
    seconds: float = 0.3
    seed: int = 0


class Direction:
    """Decides on the messages of one direction. Does no I/O.

    Attributes:
        counts: passed (sent on, copies too), drop, double, delay, reorder, overtaken: sent after a later one, and
            full: lost since the worker's queue had no place, without a fault of ours.
    """

    def __init__(self, name: str):
        self._name = name
        self.counts = dict.fromkeys(("passed", "drop", "double", "delay", "reorder", "overtaken", "full"), 0)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._copies, self._arrived, self._newest_sent = itertools.count(), itertools.count(), -1
        self.set(Faults())

    def set(self, faults: Faults) -> None:
        """Use these from the next message on."""
        self._faults, self._draw, self._not_before = faults, random.Random(f"{self._name} {faults.seed}"), 0.0

    def take(self, now: float, frame: bytes) -> None:
        """A message has come at `now`, in seconds."""
        faults, number = self._faults, next(self._arrived)
        # always the same number of draws, so that one kind's chance doesn't change another's fate
        kinds = ("drop", "double", "delay", "reorder")
        hit = {kind: self._draw.random() < getattr(faults, kind) for kind in kinds}
        late = {kind: self._draw.random() * faults.seconds for kind in kinds}
        if hit["drop"]:
            self.counts["drop"] += 1
            return
        for kind in kinds:
            self.counts[kind] += hit[kind]
        self._not_before = max(self._not_before, now + hit["delay"] * late["delay"])
        at = self._not_before
        self._wait(at + hit["reorder"] * late["reorder"], number, frame)
        if hit["double"]:
            self._wait(at + late["double"], number, frame)

    def due(self, now: float) -> list[bytes]:
        """Return what's to be sent on by `now`, in this order, and forget it."""
        frames = []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, number, frame = heapq.heappop(self._waiting)
            self.counts["passed"] += 1
            self.counts["overtaken"] += number < self._newest_sent
            self._newest_sent = max(self._newest_sent, number)
            frames.append(frame)
        return frames

    def next_at(self) -> float | None:
        """Return when the next message is due, in seconds, or None."""
        return self._waiting[0][0] if self._waiting else None

    def _wait(self, at: float, number: int, frame: bytes) -> None:
        # messages due at the same time keep their order
        heapq.heappush(self._waiting, (at, next(self._copies), number, frame))


class ControlProxy:
    """The rig's hand on a running proxy."""

    def __init__(self, directory: pathlib.Path, to_prefill: str, to_decode: str):
        """Args: `to_prefill` and `to_decode` are the endpoints where the proxy listens, tcp://host:port."""
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.endpoints = {"prefill": to_prefill, "decode": to_decode}

    def command(self) -> list[str]:
        """Return the proxy's command line."""
        return [sys.executable, __file__, str(self.directory), *self.endpoints.values()]

    def env(self, worker: str) -> dict[str, str]:
        """Return the variables by which the worker "prefill" or "decode" is reached through the proxy."""
        return {"RIG_CONTROL_ADVERTISE": self.endpoints[worker], "RIG_CONTROL_REAL": str(self.directory / worker)}

    def set(self, **faults) -> None:
        """Set the chances, see `Faults`; what isn't named is 0. Holds for every message that comes after this."""
        _write(self.directory / "faults", dataclasses.asdict(Faults(**faults)))

    def counts(self) -> dict[str, int]:
        """Return what was done since the start, both directions together; see `Direction.counts`."""
        try:
            return json.loads((self.directory / "counts").read_text())
        except FileNotFoundError:
            return {}


def run(directory: pathlib.Path, endpoints: dict[str, str]) -> None:
    """Pass messages on for ever."""
    import zmq

    context, poller = zmq.Context(), zmq.Poller()
    directions = {name: Direction(name) for name in DIRECTIONS}
    inward, outward = {}, {}
    for name in DIRECTIONS:
        inward[name] = context.socket(zmq.PULL)
        inward[name].bind(endpoints[name])
        poller.register(inward[name], zmq.POLLIN)
    faults_at = None
    while True:
        now = time.monotonic()
        waits = [max(0, direction.next_at() - now) for direction in directions.values() if direction.next_at() is not None]
        ready = dict(poller.poll(min([WAKE_MS, *(1000 * wait for wait in waits)])))
        faults, faults_at = _read_if_newer(directory / "faults", faults_at)
        if faults is not None:
            for direction in directions.values():
                direction.set(Faults(**faults))
        busy = False
        for name, direction in directions.items():
            if inward[name] in ready:
                direction.take(time.monotonic(), inward[name].recv())
                busy = True
            for frame in direction.due(time.monotonic()):
                if name not in outward:
                    outward[name] = context.socket(zmq.PUSH)
                    # As the workers' own sockets: a cut must not last longer for the proxy than for them.
                    outward[name].set(zmq.TCP_MAXRT, DEAD_AFTER_MS)
                    outward[name].set(zmq.CONNECT_TIMEOUT, DEAD_AFTER_MS)
                    outward[name].connect((directory / name).read_text())
                try:
                    outward[name].send(frame, zmq.NOBLOCK)
                except zmq.Again:
                    direction.counts["full"] += 1
                busy = True
        if busy:
            both = [direction.counts for direction in directions.values()]
            _write(directory / "counts", {key: sum(counts[key] for counts in both) for key in both[0]})


def _write(path: pathlib.Path, value: dict) -> None:
    """Replace a file at once, so that readers see the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(value))
    new.rename(path)


def _read_if_newer(path: pathlib.Path, seen):
    """Return the content and a mark to be passed as `seen` next time; None and `seen` when it's the same file as then."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None, seen
    mark = (status.st_ino, status.st_mtime_ns)
    return (None, seen) if mark == seen else (json.loads(path.read_text()), mark)


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]), dict(zip(DIRECTIONS, sys.argv[2:])))
