"""python -m fork tree | patches"""

import argparse
import sys

from fork import ForkError
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
    args = parser.parse_args()
    if args.command == "patches" and bool(args.new) != bool(args.message):
        parser.error("--new and -m belong together")
    try:
        if args.command == "tree":
            print(update(args.force))
        else:
            changed = regenerate(args.into or "", args.new or "", "\n\n".join(args.message or []))
            print("\n".join(f"patches/{name}" for name in changed) or "patches/ is unchanged")
    except ForkError as error:
        print(f"fork: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
