"""A report from the raw events of one or more runs: more repeats, or arms that were measured one by one."""

from __future__ import annotations

import argparse
import pathlib

from . import picture, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmark.handoff.suite.again", description=__doc__)
    parser.add_argument("raw", nargs="+", type=pathlib.Path, help=f"{report.RAW} of each run")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the report's head")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    runs, blocks = report.load_raw(args.raw)
    runs[0]["notes"] += args.note
    result = report.build(runs, blocks)
    report.save(result, args.out)
    picture.draw(result, blocks, args.out)
    print(report.markdown(result))


if __name__ == "__main__":
    main()
