"""The benchmark suite: the same requests to every arm, by kinds of traffic, lengths and routers.

Writes raw.json.gz (every event time and token), figures.json, report.md, distributions.png and prompts.png, after every case
anew. Exit code 1 if a request ended in an error, a worker kept something, or (in float32) an answer isn't the unified
server's.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from benchmark.handoff import machine
from rig import servers

from . import arms, commands, cpu, gpu, picture, report, send
from .block import ERROR, Block
from .running import Running, by_hand
from .traffic import Case, Closed

OUT = servers.ROOT / "build" / "benchmark"
SHORT = ("unified", "pd", "handoff")
KINDS = ("expected", "hard")
Start = Callable[[], contextlib.AbstractContextManager[Running]]


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    args = _parser().parse_args()
    hardware = commands.Hardware(
        args.model or commands.Hardware.model,
        tuple(args.gpus),
        tuple(args.hosts),
        tuple(args.ib_devices),
        args.backend,
        tuple(args.worker_arg),
    )
    chosen = arms.of_keys(args.arms)
    if args.print_commands:
        say(launch_lines(chosen, args.routers, hardware))
        return 0
    if args.on == "gpu":
        prompts, concurrency = tuple(args.prompts), tuple(args.concurrency)
        cases, warm_up = gpu.cases(args.traffic, args.size, prompts, concurrency, args.rate or 1.0), gpu.warm_up(prompts)
        ids, link = range(*args.ids), f"KV by {args.backend}."
        where = f"{gpu.devices()}, {hardware.model}"
        groups: list[list[Start]] = [[lambda arm=arm: gpu.up(arm, args.routers, hardware)] for arm in chosen]
    else:
        scale = cpu.scale(args.model or "tiny", args.rate, args.link_mbit)
        cases, warm_up, ids = scale.cases(args.traffic, args.size), scale.warm_up(), scale.ids
        link = f"KV link of {scale.link_mbit:g} Mbit/s, {cpu.link_in_words()}."
        where = f"no GPU, {scale.name} in {scale.options.dtype}, plain loop"
        groups = [[lambda arm=arm: cpu.up(arm, args.routers, scale) for arm in chosen]]
    if args.at:
        groups = [[lambda text=text: contextlib.nullcontext(by_hand(text, args.routers[0]))] for text in args.at]
    run = {
        "machine": machine.describe(),
        "where": where,
        "link": link,
        "seed": args.seed,
        "commit": machine.commit(),
        "notes": args.note + (gpu.public() if args.on == "gpu" else []),
    }
    start, blocks = time.monotonic(), []
    sizes = ", ".join(str(case.requests) for case in cases)
    say(f"{len(cases)} cases, {args.repeats} blocks each; a block has {sizes} requests")
    for group in groups:
        say(f"== starting {len(group)} {'arms' if len(group) > 1 else 'arm'}")
        with contextlib.ExitStack() as cleanup:
            running = [cleanup.enter_context(one()) for one in group]
            say(f"   up after {time.monotonic() - start:.0f} s")
            for block in measured(running, cases, warm_up, args.repeats, args.seed, ids, args.routers[0]):
                blocks.append(block)
                say(f"   {time.monotonic() - start:5.0f} s  {progress(block)}")
                report.save_raw(run, blocks, args.out)
    result = report.build([run], blocks)
    report.save(result, args.out)
    picture.draw(result, blocks, args.out)
    say(report.markdown(result))
    say(f"written after {time.monotonic() - start:.0f} s: {args.out}")
    return exit_code(result, exact=args.on == "cpu")


def measured(
    running: Sequence[Running], cases: Sequence[Case], warm_up: Case, repeats: int, seed: int, ids: range, first_router: str
) -> Iterator[Block]:
    """Ask every arm everything; yield block by block.

    The arms take turns within a repeat, and begin with another one each time, so that what else the machine does disturbs
    none more than the others. Routers after the first are asked the closed loops of the first mix alone, to see that they
    work and what they add.
    """
    for one in running:
        for url in one.urls.values():
            names = {"case": "warm-up", "plan": "", "arm": one.arm.name, "router": ""}
            send.ask(url, one.workers, warm_up.plan(f"warm-up {seed}", ids), warm_up.arrivals, names)
    first_mix = cases[0].mix
    for case in cases:
        for repeat in range(repeats):
            seed_of_plan = f"{seed}-{repeat}-{case.requests}"
            plan = case.plan(seed_of_plan, ids)
            for turn in range(len(running)):
                one = running[(repeat + turn) % len(running)]
                for router, url in one.urls.items():
                    if router != first_router and not (isinstance(case.arrivals, Closed) and case.mix == first_mix):
                        continue
                    names = {"case": case.name, "plan": seed_of_plan, "arm": one.arm.name, "router": router}
                    yield send.ask(url, one.workers, plan, case.arrivals, names)


def progress(block: Block) -> str:
    """One line on a block."""
    firsts = sorted(s.request.ttft for s in block.samples if s.request.at)
    ttft = f"TTFT p50 {firsts[(len(firsts) - 1) // 2] * 1e3:7.0f} ms" if firsts else "no token"
    errors = sum(s.ended == ERROR for s in block.samples)
    wrong = (f"  {errors} ERRORS" if errors else "") + ("  KEPT SOMETHING" if block.kept else "")
    return (
        f"{block.case:<32} {block.plan:<8} {block.arm:<27} {block.router:<8} {ttft}  "
        f"{block.requests_per_s:5.2f} requests/s  {block.tokens_per_s:6.1f} tokens/s{wrong}"
    )


def exit_code(result: dict, exact: bool) -> int:
    """0 if nothing went wrong; with `exact`, different answers are wrong, too."""
    wrong = bool(result["errors"] or result["kept"] or (exact and result["different"]))
    return int(wrong)


def launch_lines(chosen: Sequence[arms.Arm], routers: Sequence[str], hardware: commands.Hardware) -> str:
    """For the shell: what starts every arm, and what measures it on servers started by hand."""
    parts = ["# Two workers an arm, each line on its worker's host; routers and the client beside the first one.", ""]
    for arm in chosen:
        workers = commands.of_workers(arm, hardware)
        parts.append(f"# {arm.name}")
        parts += [f"{one} &" for one in workers]
        parts.append("# when both answer /health")
        for number, kind in enumerate(arms.routers_of(arm, list(routers))):
            parts.append(f"{commands.of_router(arm, hardware, kind, number)} &")
        at = ",".join([hardware.router_url(0), *(one.url for one in workers)])
        parts += [
            f"python -m benchmark.handoff.suite --on gpu --model {hardware.model} --traffic expected hard --repeats 3 "
            f"--at {arm.key}={at} --out build/benchmark/{arm.key}",
            "# the same lengths by SGLang's own client, to compare",
            *(commands.serving(arm, hardware, length, gpu.OUTPUT) for length in gpu.PROMPTS),
            "# end them before the next arm",
            "",
        ]
    of_all = " ".join(f"build/benchmark/{arm.key}/{report.RAW}" for arm in chosen)
    parts += ["# one report of all arms", f"python -m benchmark.handoff.suite.again {of_all} --out build/benchmark/all"]
    return "\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.handoff.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    keys = [arm.key for arm in arms.ARMS]
    parser.add_argument("--on", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--traffic", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--arms", choices=keys, nargs="+", default=list(SHORT))
    parser.add_argument(
        "--routers", choices=list(servers.ROUTERS), nargs="+", default=["sglang"], help="the first one is asked all"
    )
    parser.add_argument("--repeats", type=int, default=2, help="blocks of each case")
    parser.add_argument("--size", type=float, default=1.0, help="multiplies the requests of each block")
    parser.add_argument("--rate", type=float, help="requests a second of the Poisson process; default: the model's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument("--note", action="append", default=[], help="a sentence for the report's head")
    parser.add_argument("--model", help=f"on CPU: {' or '.join(cpu.SCALES)}; on GPUs: path or name")
    parser.add_argument("--link-mbit", type=float, help="on CPU: rate of the KV link; default: the model's")
    parser.add_argument("--prompts", type=int, nargs="+", default=list(gpu.PROMPTS), help="on GPUs: lengths of prompts")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=list(gpu.CONCURRENCY), help="on GPUs: of the closed loops"
    )
    parser.add_argument(
        "--ids",
        type=int,
        nargs=2,
        default=[gpu.IDS.start, gpu.IDS.stop],
        help="on GPUs: token ids of prompts, from and below",
    )
    parser.add_argument("--gpus", nargs=2, default=["0", "1"], help="CUDA devices of the two workers")
    parser.add_argument(
        "--hosts", nargs=2, default=["127.0.0.1", "127.0.0.1"], help="with --print-commands: the workers' hosts"
    )
    parser.add_argument("--ib-devices", nargs=2, default=[], help="RDMA devices of the two workers")
    parser.add_argument("--backend", default="mooncake", help="on GPUs: of the KV transfer")
    parser.add_argument("--worker-arg", action="append", default=[], help="on GPUs: one more argument for every worker")
    parser.add_argument("--print-commands", action="store_true", help="print the GPU launch lines and end")
    parser.add_argument("--at", action="append", default=[], metavar="ARM=ROUTER,WORKER,...", help="servers started by hand")
    return parser


if __name__ == "__main__":
    sys.exit(main())
