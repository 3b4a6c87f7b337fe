"""Measures every point on real workers, simulates it, and writes agreement.json and agreement.md."""

from __future__ import annotations

import argparse
import itertools
import pathlib

from benchmark.handoff import machine
from rig import servers

from . import measured, report, simulated
from .points import ARMS, POINTS

OUT = servers.ROOT / "build" / "agreement"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmark.handoff.agreement", description=__doc__)
    parser.add_argument("--repeats", type=int, default=2, help="blocks of each arm and point")
    parser.add_argument("--point", choices=[point.name for point in POINTS], action="append", help="default: all")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    where, rows = machine.describe(), []
    points = [point for point in POINTS if not args.point or point.name in args.point]
    for places, group in itertools.groupby(points, key=lambda point: point.places):
        with measured.up(places) as pairs:
            for point in group:
                blocks = {arm: [] for arm in ARMS}
                for number, arm in itertools.product(range(args.repeats), ARMS):
                    block = measured.ask(pairs[arm], arm, point, seed=number)
                    blocks[arm].append(block)
                    print(f"   {point.name}, {arm}: {block.tokens_per_s:.1f} tokens/s", flush=True)
                for arm in ARMS:
                    found = measured.figures_of(blocks[arm]), simulated.simulate(point, arm)
                    rows.append(report.row(point, arm, *found, measured.outcomes(blocks[arm])))
    report.save(where, rows, args.out)
    print(report.markdown(where, rows), f"written: {args.out}", sep="\n")


if __name__ == "__main__":
    main()
