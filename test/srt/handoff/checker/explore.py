"""Breadth first through every state that a scenario can reach; the first violation has the shortest trace.

TERMINATES: from every state, with no more faults, two fair runs are followed to their end: one that takes
what is ready in a fixed order, one in the reverse order, each letting the clock move when nothing else
is left. A run that comes back to a state of its own never ends.
"""

from __future__ import annotations

from array import array
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import events, invariants
from .machines import Machines, NotTheSame, Violation
from .scenario import Scenario
from .world import World, first_world

# A fair run that is longer than this goes nowhere.
LONGEST_RUN = 400
# Where a fair run goes next: nowhere, or not looked at yet.
NOWHERE, UNKNOWN = -1, -3


class Result(NamedTuple):
    """``trace``: the events that lead to ``violation``, from the first state on."""

    scenario: Scenario
    states: int
    transitions: int
    depth: int
    complete: bool
    longest_run: int  # events of the longest fair run to an end
    ends: int
    violation: Optional[Violation] = None
    trace: Tuple[events.Event, ...] = ()


class Interned:
    """Values as small numbers, so that a state is a few machine words."""

    def __init__(self) -> None:
        self.values: List[Any] = []
        self._ids: Dict[Any, int] = {}

    def id(self, value: Any) -> int:
        known = self._ids.get(value)
        if known is None:
            known = self._ids[value] = len(self.values)
            self.values.append(value)
        return known


class Explorer:
    def __init__(self, scenario: Scenario, machines: Machines, limit: Optional[int] = None) -> None:
        """``limit``: states after which to stop, for a bounded run."""
        self.scenario, self.machines, self.limit = scenario, machines, limit
        self._parts = Interned()
        self._events = Interned()
        self._seen: Dict[int, int] = {}
        self._keys: List[int] = []
        self._parent, self._by = array("i"), array("i")
        self._transitions = self._ends = 0
        self._fair: Tuple[array, array] = (array("i"), array("i"))

    # ------------------------------------------------------------------ states as numbers
    def _key(self, packed: Tuple) -> int:
        """24 bits for each of what changes together, the small rest behind."""
        requests, to_p, to_d, late, *flags = packed
        key = 0
        for value in (*requests, (to_p, to_d), (late, *flags)):
            key = key << 24 | self._parts.id(value)
        return key

    def _packed(self, key: int) -> Tuple:
        values, parts = self._parts.values, []
        for _ in range(self.scenario.requests + 2):
            parts.append(values[key & 0xFFFFFF])
            key >>= 24
        (late, *flags), (to_p, to_d), *requests = parts
        return (tuple(reversed(requests)), to_p, to_d, late, *flags)

    def _world(self, packed: Tuple) -> World:
        return World(self.scenario, self.machines, packed)

    # ------------------------------------------------------------------ the search
    def run(self) -> Result:
        depth, level_end, index = 0, 1, 0
        try:
            first = first_world(self.scenario, self.machines)
            invariants.check(first)
            self._add(self._key(first.pack()), -1, -1)
            while index < len(self._keys):
                if index == level_end:
                    depth, level_end = depth + 1, len(self._keys)
                if self.limit is not None and index >= self.limit:
                    break
                self._expand(index)
                index += 1
            complete = index == len(self._keys)
            longest = max(self._ends_of(way, index) for way in self._fair)
        except Violation as violation:
            return self._result(depth, False, 0, violation, self._trace_of_failure)
        except _Stuck as stuck:
            return self._result(depth, False, 0, stuck.violation, stuck.trace)
        return self._result(depth, complete, longest)

    def _expand(self, index: int) -> None:
        key = self._keys[index]
        packed = self._packed(key)
        world = self._world(packed)
        ended = invariants.is_end(world)
        ready = []
        for event in events.afterwards(world) if ended else events.ordinary(world):
            known = self._step(index, key, packed, event)
            if known is not None:
                ready.append((event[0] == "clock", known))
        if ended:
            self._ends += 1
            self._guard(index, None, invariants.check_end, world)
            ready = []
        else:
            for event in events.faults(world):
                self._step(index, key, packed, event)
        # The clock comes last in both orders.
        self._fair[0][index] = min(ready, key=itemgetter(0))[1] if ready else NOWHERE
        self._fair[1][index] = min(reversed(ready), key=itemgetter(0))[1] if ready else NOWHERE

    def _step(self, index: int, key: int, packed: Tuple, event: events.Event) -> Optional[int]:
        """The state that ``event`` leads to; None if it leads nowhere."""
        world = self._world(packed)
        try:
            events.apply(world, event)
            after = self._key(world.pack())
            if after == key:
                return None
            self._transitions += 1
            known = self._seen.get(after)
            if known is None:
                invariants.check(world)
                known = self._add(after, index, self._events.id(event))
            return known
        except Violation:
            self._trace_of_failure = self._trace(index) + (event,)
            raise

    def _add(self, key: int, parent: int, by: int) -> int:
        known = self._seen[key] = len(self._keys)
        self._keys.append(key)
        self._parent.append(parent)
        self._by.append(by)
        for way in self._fair:
            way.append(UNKNOWN)
        return known

    def _guard(self, index: int, event: Optional[events.Event], do: Any, *args: Any) -> None:
        try:
            do(*args)
        except Violation:
            self._trace_of_failure = self._trace(index) + ((event,) if event else ())
            raise

    # ------------------------------------------------------------------ TERMINATES
    def _ends_of(self, fair: array, states: int) -> int:
        """Follow ``fair`` from each of the first ``states``; return the most steps of one run."""
        steps: Dict[int, int] = {}
        longest = 0
        for start in range(states):
            path, at = [], start
            while at != NOWHERE and at not in steps:
                steps[at] = UNKNOWN
                path.append(at)
                if fair[at] == UNKNOWN:
                    self._expand(at)
                at = fair[at]
            if at != NOWHERE and steps[at] == UNKNOWN or len(path) > LONGEST_RUN:
                raise _Stuck(self, start, "a fair run never ends")
            if at == NOWHERE and path and not invariants.is_end(self._world(self._packed(self._keys[path[-1]]))):
                raise _Stuck(self, start, "nothing can happen any more, and it is no end")
            count = steps[at] if at != NOWHERE else -1
            for state in reversed(path):
                count += 1
                steps[state] = count
            longest = max(longest, count)
        return longest

    # ------------------------------------------------------------------ results
    def _trace(self, index: int) -> Tuple[events.Event, ...]:
        trace = []
        while index > 0:
            trace.append(self._events.values[self._by[index]])
            index = self._parent[index]
        return tuple(reversed(trace))

    def _result(self, depth: int, complete: bool, waits: int, violation: Optional[Violation] = None, trace: Tuple = ()) -> Result:
        return Result(
            self.scenario, len(self._keys), self._transitions, depth, complete, waits, self._ends, violation, trace
        )


# In the product's order; one lost sign of life is no silence.
TIMING = {"resend": 1.0, "lease": 1.5, "margin": 0.5, "seal": 1.0, "commit": 2.0, "silence": 3.0}


def explore(scenario: Scenario, core: SimpleNamespace, limit: Optional[int] = None) -> Result:
    """Every state of ``scenario``, or the first ``limit``."""
    timing = core.Timing(**TIMING)
    try:
        return Explorer(scenario, Machines(core, timing), limit).run()
    except NotTheSame:
        # A mutant that looks at more instants than the product does.
        return Explorer(scenario, Machines(core, timing, settle=False), limit).run()


class _Stuck(Exception):
    def __init__(self, explorer: Explorer, start: int, text: str) -> None:
        self.violation = Violation("TERMINATES", text)
        self.trace = explorer._trace(start)
