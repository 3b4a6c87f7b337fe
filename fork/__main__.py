"""python -m fork tree | patches | pr | rebase"""

import argparse
import sys
from pathlib import Path

from fork import ForkError, pr, rebase
from fork.regenerate import regenerate
from fork.tree import update

EPILOG = """to edit SGLang's files: run `tree`, edit in build/tree, then either run `patches` with
the edits uncommitted, or `git commit` them there (one commit per patch, `--fixup` for an existing
one) and run `patches`. Our own files are in python/sglang; the tree links to them."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fork", epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", required=True)
    tree = commands.add_parser("tree", help="make or update build/tree", epilog=EPILOG)
    tree.add_argument("--force", action="store_true", help="make it anew, losing edits in it")
    patches = commands.add_parser("patches", help="write patches/ from build/tree", epilog=EPILOG)
    place = patches.add_mutually_exclusive_group()
    place.add_argument("--into", metavar="PATCH", help="fold the uncommitted edits into this patch")
    place.add_argument("--new", metavar="NAME", help="make a patch of the uncommitted edits")
    patches.add_argument("-m", dest="message", action="append", metavar="TEXT",
                         help="for --new: subject; a second -m gives the why")  # fmt: skip
    upstream = commands.add_parser("pr", help="write a branch into a git checkout of SGLang")
    upstream.add_argument("checkout", type=Path)
    upstream.add_argument("--branch", default=pr.BRANCH, help=f"by default {pr.BRANCH}")
    upstream.add_argument("--with", dest="take", action="append", choices=pr.LEFT_OUT, default=[],
                          help="a patch that else stays behind")  # fmt: skip
    other = commands.add_parser("rebase", help="try patches/ on another release")
    other.add_argument("version")
    other.add_argument("--write", action="store_true", help="write patches/ for it, if all applies")
    args = parser.parse_args()
    if args.command == "patches" and bool(args.new) != bool(args.message):
        parser.error("--new and -m belong together")
    try:
        if args.command == "tree":
            print(update(args.force))
        elif args.command == "pr":
            left_out = [name for name in pr.LEFT_OUT if name not in args.take]
            print(pr.report(args.checkout, pr.make(args.checkout, args.branch, left_out)))
        elif args.command == "rebase":
            trial = rebase.try_release(args.version)
            print(rebase.table(trial))
            if args.write:
                changed = rebase.write_patches(trial)
                print("\n".join(f"patches/{name}" for name in changed))
                print("Now pin it in fork/base.toml, then `make tree`:")
                print(rebase.pins(args.version))
            return 0 if trial.fits else 1
        else:
            changed = regenerate(args.into or "", args.new or "", "\n\n".join(args.message or []))
            print("\n".join(f"patches/{name}" for name in changed) or "patches/ is unchanged")
    except ForkError as error:
        print(f"fork: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
