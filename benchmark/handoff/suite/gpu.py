"""The suite on GPUs, under the conditions of the public H20 figures: Qwen3-8B, 1P1D, TP 1, prompts of 4K, 16K and 32K.

Two devices, so the arms run one after another: one arm's servers are ended before the next one's start.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from collections.abc import Iterator

from rig import stack
from rig.process import Process

from . import commands
from .arms import Arm, routers_of
from .running import Running
from .traffic import Bucket, Bursts, Case, Closed, Mix, Poisson

PROMPTS, CONCURRENCY, OUTPUT = (4096, 16384, 32768), (1, 2, 4, 8, 16, 32, 64), 128
IDS = range(1000, 100_000)  # ordinary words of Qwen3's vocabulary
START_TIMEOUT_S = 900  # the first start loads the weights from a cold disk, and captures graphs
# Public reports, H20, 1P1D, Qwen3-8B bf16, TP 1, Mooncake over RDMA, 1 at once, in milliseconds. "Exposed tail" is the TTFT
# that PD has above the unified server's.
PUBLIC_H20 = (
    {"prompt": 16384, "unified TTFT": 2299.78, "PD TTFT": 2364.38, "exposed tail": 64.60, "steady ITL": 6.60},
    {"prompt": 32768, "unified TTFT": 5734.05, "PD TTFT": 5796.83, "exposed tail": 62.78, "steady ITL": 7.95},
)


def cases(
    kinds: list[str],
    size: float,
    prompts: tuple[int, ...] = PROMPTS,
    concurrency: tuple[int, ...] = CONCURRENCY,
    per_s: float = 1.0,
) -> list[Case]:
    """The cases of the `kinds` of traffic; `size` multiplies the requests of a block.

    `expected`: every prompt length by itself in closed loops, then a mix of them as a Poisson process. `hard`: the longest
    ones, short and long answers, clients that go away, in a closed loop and in bursts.
    """

    def requests(count: int) -> int:
        return max(2, round(count * size))

    outputs = (Bucket(OUTPUT, OUTPUT, 1.0),)
    expected = [
        Case(Mix(f"{length} tokens", (Bucket(length, length, 1.0),), outputs), Closed(n), requests(max(24, 3 * n)))
        for length in prompts
        for n in concurrency
    ]
    short, long = prompts[0], prompts[-1]
    mixed = Mix(
        "expected",
        (Bucket(short // 16, short // 4, 0.5), Bucket(short // 4 + 1, short, 0.35), Bucket(short + 1, long, 0.15)),
        (Bucket(16, 127, 0.5), Bucket(128, 512, 0.5)),
    )
    hard = Mix(
        "hard",
        (Bucket(short, long // 2, 0.4), Bucket(long // 2 + 1, long, 0.6)),
        (Bucket(1, 15, 0.2), Bucket(16, 127, 0.3), Bucket(128, 1024, 0.5)),
        cancelled=0.15,
        patience_s=5,
    )
    known = {
        "expected": [*expected, Case(mixed, Poisson(per_s), requests(128))],
        "hard": [Case(hard, Closed(min(16, concurrency[-1])), requests(64)), Case(hard, Bursts(per_s / 4, 8), requests(64))],
    }
    return [case for kind in kinds for case in known[kind]]


def warm_up(prompts: tuple[int, ...] = PROMPTS) -> Case:
    """Every prompt length a few times."""
    buckets = tuple(Bucket(length, length, 1 / len(prompts)) for length in prompts)
    return Case(Mix("warm-up", buckets, (Bucket(16, 16, 1.0),)), Closed(2), 3 * len(prompts))


def public() -> list[str]:
    """The public figures, one sentence each, to be read beside ours."""
    return [
        f"Public, H20, 1 at once, {row['prompt']} tokens: "
        + ", ".join(f"{name} {value} ms" for name, value in row.items() if name != "prompt")
        for row in PUBLIC_H20
    ]


def devices() -> str:
    """Names of this host's GPUs, as the driver calls them."""
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        return "GPUs unknown here"
    names = Counter(listed.stdout.split("\n")[:-1])
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "GPUs unknown here"


@contextlib.contextmanager
def up(arm: Arm, routers: list[str], hardware: commands.Hardware) -> Iterator[Running]:
    """Start an arm's two workers, each on its device of this host, and its routers; yield it once all are healthy.

    Raises:
        rig.process.ProcessDied, rig.process.NotReady: a part didn't come up. The message shows the tail of its log.
    """
    folder = stack.new_run_folder()
    with contextlib.ExitStack() as cleanup:

        def start(all_of: list[commands.Command]) -> None:
            started = [Process(one.name, one.argv, folder / f"{one.name}.log", one.env) for one in all_of]
            for process in started:
                cleanup.callback(process.stop, 30)
            for process, one in zip(started, all_of):
                process.wait_ready(one.health, START_TIMEOUT_S)

        workers = commands.of_workers(arm, hardware)
        start(workers)
        fronts = {
            kind: commands.of_router(arm, hardware, kind, number) for number, kind in enumerate(routers_of(arm, routers))
        }
        start(list(fronts.values()))
        yield Running(arm, {kind: one.url for kind, one in fronts.items()}, tuple(one.url for one in workers))
