"""Many requests with random faults on real workers; the exit code says whether all is as it must be."""

from __future__ import annotations

import argparse
import sys
import time

from . import plan, report
from .run import LONG_FREEZE_S, Soak, soak_pair


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.handoff.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rounds = plan.make(args.requests, args.seed, LONG_FREEZE_S)
    print(f"{args.requests} requests in {len(rounds)} rounds, seed {args.seed}; starting the servers", flush=True)
    with soak_pair() as pair:
        soak = Soak(pair)
        soak.ask_oracle(rounds)
        start = time.monotonic()
        soak.run(rounds, lambda soak: print(report.progress(soak, args.requests, time.monotonic() - start), flush=True))
        print("\n".join(report.end(soak, args.seed, time.monotonic() - start)), flush=True)
    return 0 if report.good(soak) else 1


if __name__ == "__main__":
    sys.exit(main())
