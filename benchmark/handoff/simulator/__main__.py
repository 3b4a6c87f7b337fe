"""The public rows, the predictions, and a run of many requests with random faults."""

from __future__ import annotations

import argparse
import gc
import sys
import time

from . import report, rough
from .invariants import Violation
from .world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.handoff.simulator", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="of the fault run; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print("\n".join([*report.parameters(), "", *report.predictions(), "", *report.under_load()]), flush=True)
    if args.requests < 1:
        return 0
    setup = rough.setup(args.requests, args.seed)
    world, start = World(setup), time.perf_counter()
    gc.set_threshold(100_000, 20, 20)  # little is cyclic here, and much is made

    def progress(world: World) -> None:
        spent = time.perf_counter() - start
        print(
            f"  {world.done:>9} requests, {spent:6.0f} s, {world.done / spent:6.0f}/s, CPU {time.process_time():.0f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    print("\nFault run", flush=True)
    try:
        world.run(progress)
    except Violation as e:
        print(f"VIOLATED after {world.done} requests at {world.clock.now:.6f} s, seed {args.seed}: {e}")
        return 1
    print("\n".join(report.fault_run(setup, world)))
    print(f"took {time.perf_counter() - start:.0f} s, {time.process_time():.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
