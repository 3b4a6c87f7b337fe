"""python -m checker [--full | --mutants | --golden | --diagrams]"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from typing import Any, Iterable

from . import core, diagram, golden, mutants
from .explore import TIMING, Result, explore
from .narrate import story
from .scenario import BOUNDED, FULL, Scenario


def run(scenarios: Iterable[Scenario], handoff: Any) -> bool:
    """Check each scenario and print its figures; True if every invariant holds in all of them."""
    begin, states, transitions, depth = time.monotonic(), 0, 0, 0
    print(f"{'states':>9} {'transitions':>12} {'depth':>6} {'s':>6}  scenario")
    # each explored in a process of its own, so that what it has seen is given back with it
    with multiprocessing.Pool(maxtasksperchild=1) as pool:
        for scenario, result, seconds in pool.imap(_explored, scenarios, chunksize=1):
            print(f"{result.states:9} {result.transitions:12} {result.depth:6} {seconds:6.1f}  {scenario.name}", flush=True)
            if result.violation is not None:
                print("\n" + story(scenario, handoff, handoff.Timing(**TIMING), result.trace, result.violation))
                return False
            states, transitions, depth = states + result.states, transitions + result.transitions, max(depth, result.depth)
    print(f"{states:9} {transitions:12} {depth:6} {time.monotonic() - begin:6.1f}  in all; every invariant holds in every state")
    return True


def _explored(scenario: Scenario) -> tuple[Scenario, Result, float]:
    """With the seconds that it took."""
    start = time.monotonic()
    return scenario, explore(scenario, core.load()), time.monotonic() - start


def run_mutants() -> bool:
    """Check each mutant and print what killed it; True if none got away."""
    alive = 0
    print(f"{'killed by':18} {'states':>7} {'trace':>5}  mutant")
    for mutant in mutants.MUTANTS:
        result = mutants.check(mutant)
        killer = result.violation.name if result.violation is not None else "NOTHING"
        alive += killer not in mutant.kills
        print(f"{killer:18} {result.states:7} {len(result.trace):5}  {mutant.name}", flush=True)
    print(f"{len(mutants.MUTANTS) - alive} of {len(mutants.MUTANTS)} mutants killed")
    return not alive


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m checker", description=sys.modules[__package__].__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--full", action="store_true", help="all scenarios (minutes) and the mutants; without it, a bounded set")
    what.add_argument("--mutants", action="store_true", help="only the mutants")
    what.add_argument("--golden", action="store_true", help="write golden/*.txt anew")
    what.add_argument("--diagrams", action="store_true", help="print both machines' states, for docs/seamless_handoff.md")
    args = parser.parse_args()
    if args.golden:
        golden.write(core.load())
        return 0
    if args.diagrams:
        for name, first in diagram.MACHINES:
            print(diagram.mermaid(diagram.docstring(core.CORE / f"{name}.py"), first))
        return 0
    held = True
    if not args.mutants:
        held = run(FULL if args.full else BOUNDED, core.load())
    if args.mutants or args.full:
        held = run_mutants() and held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
