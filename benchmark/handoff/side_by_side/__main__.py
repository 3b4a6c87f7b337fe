"""Unified server, PD, and PD with seamless handoff side by side, over a slow KV link.

Writes report.json (with every event time), report.md and picture.png. Exit code 0 if every answer is the unified server's;
goals are reported, not enforced: this machine may be busy.

The plain loop by default: on CPU a forward holds the scheduler's thread, so the overlap loop has nothing to overlap and
reads each result a step late. The first token after the switch would pay a whole step that it doesn't pay on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import time

from benchmark.handoff import machine
from rig import network, servers, stack

from . import load, picture, report
from .figures import Block
from .setups import ARMS, HANDOFF, PD, SETUPS, UNIFIED, Setup

OUT = servers.ROOT / "build" / "side_by_side"
BLOCKS = 6


def say(text: str) -> None:
    print(text, flush=True)


def run(
    setup: Setup, levels: list[int], requests: int, turns: int, seed: int, handoff_args: list[str]
) -> dict[int, list[Block]]:
    """Start the arms, and return the blocks by how many requests were under way at once.

    The arms take turns, each so many times, so that a busy machine disturbs none more than the others.
    """
    shaped, how = network.shaped_by_kernel()
    say(f"   KV link of {setup.link_mbit:g} Mbit/s, {how}")
    link = {"namespaces": shaped, "link_mbit": setup.link_mbit}
    with stack.side_by_side(setup.options, handoff_args=tuple(handoff_args), **link) as (plain, seamless):
        arms = [
            load.Arm(UNIFIED, plain.unified.url, (plain.unified.url,)),
            load.Arm(PD, plain.url, (plain.prefill.url, plain.decode.url)),
            load.Arm(HANDOFF, seamless.url, (seamless.prefill.url, seamless.decode.url)),
        ]
        found: dict[int, list[Block]] = {}
        for at_once in levels:
            for arm in arms:
                load.ask(arm, setup.prompts(-1 - seed, setup.warm_up), setup.new_tokens, at_once)
            found[at_once] = []
            prompts = setup.prompts(seed, requests)
            size = -(-requests // turns)
            for number, first in enumerate(range(0, requests, size)):
                for turn in range(len(ARMS)):
                    block = load.ask(
                        arms[(number + turn) % len(ARMS)], prompts[first : first + size], setup.new_tokens, at_once
                    )
                    found[at_once].append(block)
                    say(
                        f"   {setup.name}, {at_once} at once: block {number + 1}, {block.arm:<12} "
                        f"{block.tokens_per_s:6.1f} tokens/s, last TTFT {block.requests[-1].ttft:.2f} s"
                    )
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.handoff.side_by_side", description=__doc__)
    parser.add_argument("--model", choices=[setup.name for setup in SETUPS], action="append", help="default: all")
    parser.add_argument("--requests", type=int, default=102, help="of each arm, model and level")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="into which an arm's requests are cut")
    parser.add_argument("--prompt", type=int, help="length of the prompts, in tokens; default: the model's")
    parser.add_argument("--new-tokens", type=int, help="length of the answers, in tokens; default: the model's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument("--overlap", action="store_true", help="the overlap loop, on all arms")
    parser.add_argument(
        "--handoff-arg", action="append", default=[], help="one more argument for the decode worker with handoff"
    )
    args = parser.parse_args()
    where, start = machine.describe(), time.monotonic()
    runs, results = {}, []
    for setup in SETUPS:
        if args.model and setup.name not in args.model:
            continue
        setup = dataclasses.replace(
            setup,
            options=dataclasses.replace(setup.options, overlap=args.overlap),
            prompt=args.prompt or setup.prompt,
            new_tokens=args.new_tokens or setup.new_tokens,
        )
        say(f"== {setup.name}: starting 5 workers and 2 routers")
        for at_once, blocks in run(setup, args.at_once, args.requests, args.blocks, args.seed, args.handoff_arg).items():
            results.append(report.build(setup, at_once, blocks))
            runs[report.name(results[-1])] = blocks
            say("\n" + report.table(results[-1]) + "\n")
    report.save([{"machine": where, "seed": args.seed, "handoff_args": args.handoff_arg}], results, args.out)
    picture.draw(runs, args.out / "picture.png")
    say(f"written after {time.monotonic() - start:.0f} s: {args.out}/report.json, report.md, picture.png")
    different = [line for result in results for line in result["different"]]
    for line in different:
        print(f"side_by_side: {line}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
