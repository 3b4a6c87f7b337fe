"""Sweep the simulator over load, link and prompt length: JSON, markdown, heat maps."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import sys
import time

from ..costs import H20_EAGER_16, H200_EAGER_16
from . import grid, picture, report

COSTS = {"H20": H20_EAGER_16, "H200": H200_EAGER_16}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.handoff.simulator.sweep", description=__doc__)
    parser.add_argument("--requests", type=int, default=240, help="of one arm in one cell; with few, the end of a run is most of it")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/sweep"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    started, grids = time.monotonic(), {}
    with concurrent.futures.ProcessPoolExecutor(args.processes) as pool:
        for name, costs in COSTS.items():
            grids[name] = list(_counted(pool.map(grid.result, grid.cells(costs, args.requests)), name))
        bound = [cell for costs in COSTS.values() for cell in grid.decode_bound(costs, args.requests)]
        bound = list(_counted(pool.map(grid.result, bound), "D as the bottleneck"))
    command = f"python -m benchmark.handoff.simulator.sweep --requests {args.requests}"
    everything = {"command": command, "grids": grids, "decode_bound": bound}
    with open(args.out / "sweep.json", "w") as file:
        json.dump(everything, file, separators=(",", ":"))
    (args.out / "sweep.md").write_text(report.markdown(grids, bound, command, args.requests))
    for name, results in grids.items():
        picture.draw(results, f"{name}, 2P1D, PD + handoff against PD", args.out / f"sweep-{name.lower()}.png")
    print(f"written after {time.monotonic() - started:.0f} s: {args.out}/sweep.json, sweep.md, sweep-*.png")
    return 0


def _counted(results, name: str):
    for number, each in enumerate(results, 1):
        if number % 20 == 0:
            print(f"  {name}: {number} cells", file=sys.stderr, flush=True)
        yield each


if __name__ == "__main__":
    sys.exit(main())
