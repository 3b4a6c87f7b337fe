"""One report from the report.json files of several runs of the same setups: a long run may be cut into pieces."""

from __future__ import annotations

import argparse
import json
import pathlib

from . import picture, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmark.handoff.side_by_side.again", description=__doc__)
    parser.add_argument("reports", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    files = [json.loads(path.read_text()) for path in args.reports]
    results = report.again([result for file in files for result in file["setups"]])
    report.save([run for file in files for run in file["runs"]], results, args.out)
    picture.draw({report.name(result): report.blocks(result) for result in results}, args.out / "picture.png")
    print("\n\n".join(map(report.table, results)))


if __name__ == "__main__":
    main()
