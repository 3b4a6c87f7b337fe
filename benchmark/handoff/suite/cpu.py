"""The suite on a machine without a GPU: small models, all arms up at once, KV links shaped by the kernel."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from rig import network, servers, stack

from .arms import Arm, routers_of
from .running import Running
from .traffic import Bucket, Bursts, Case, Closed, Mix, Poisson


@dataclasses.dataclass(frozen=True)
class Scale:
    """What one model can be asked on this machine.

    Attributes:
        prompts, outputs: buckets from short to long, of the expected mix.
        hard_prompts, hard_outputs: the same of the hard one.
        per_s: requests a second in open loops.
        at_once: clients of the loaded closed loop.
        link_mbit: rate of the KV link.
        ids: token ids of prompts.
    """

    name: str
    options: servers.Options
    prompts: tuple[Bucket, ...]
    outputs: tuple[Bucket, ...]
    hard_prompts: tuple[Bucket, ...]
    hard_outputs: tuple[Bucket, ...]
    per_s: float
    at_once: int
    link_mbit: float
    ids: range = range(10, 500)

    def cases(self, kinds: list[str], size: float) -> list[Case]:
        """The cases of the `kinds` of traffic; `size` multiplies the requests of a block."""

        def requests(count: int) -> int:
            return max(2, round(count * size))

        expected = Mix("expected", self.prompts, self.outputs)
        hard = Mix("hard", self.hard_prompts, self.hard_outputs, cancelled=0.15)
        known = {
            "expected": [
                Case(expected, Closed(1), requests(8)),
                Case(expected, Closed(self.at_once), requests(2 * self.at_once)),
                Case(expected, Poisson(self.per_s), requests(16)),
            ],
            "hard": [
                Case(hard, Closed(self.at_once), requests(2 * self.at_once)),
                Case(hard, Bursts(self.per_s / 2, 6), requests(18)),
            ],
        }
        return [case for kind in kinds for case in known[kind]]

    def warm_up(self) -> Case:
        """Enough for every worker to have seen what costs more at first."""
        return Case(Mix("warm-up", self.prompts, self.outputs[:1]), Closed(2), 6)


def _options(model, pause_s: float, slots: int) -> servers.Options:
    # The plain loop: on CPU a forward holds the scheduler's thread, so the overlap loop would read each result a step late.
    # Workers beside each other: pools for what runs, and those that wait leave the cores to those that compute.
    return servers.Options(
        model=model,
        overlap=False,
        max_total_tokens=slots,
        max_running_requests=16,
        env={"RIG_IDLE_PAUSE_S": str(pause_s)},
    )


SCALES = {
    # 2 KB of KV a token: 1,000 tokens take 0.4 s
    "tiny": Scale(
        "tiny",
        _options(servers.TINY, 0.0005, 32768),
        prompts=(Bucket(64, 255, 0.4), Bucket(256, 1023, 0.4), Bucket(1024, 2047, 0.2)),
        outputs=(Bucket(8, 31, 0.4), Bucket(32, 96, 0.6)),
        hard_prompts=(Bucket(256, 1023, 0.3), Bucket(1024, 2047, 0.4), Bucket(2048, 4096, 0.3)),
        hard_outputs=(Bucket(1, 7, 0.2), Bucket(8, 31, 0.3), Bucket(32, 160, 0.5)),
        per_s=1.0,
        at_once=8,
        link_mbit=40,
    ),
    # 46 KB of KV a token: 256 tokens take 0.8 s
    "smollm2": Scale(
        "smollm2",
        _options(servers.SMOLLM2, 0.004, 16384),
        prompts=(Bucket(32, 127, 0.4), Bucket(128, 255, 0.4), Bucket(256, 511, 0.2)),
        outputs=(Bucket(8, 31, 0.5), Bucket(32, 48, 0.5)),
        hard_prompts=(Bucket(128, 255, 0.3), Bucket(256, 511, 0.4), Bucket(512, 1023, 0.3)),
        hard_outputs=(Bucket(1, 7, 0.2), Bucket(8, 31, 0.4), Bucket(32, 64, 0.4)),
        per_s=0.4,
        at_once=8,
        link_mbit=120,
    ),
}


def scale(model: str, per_s: float | None, link_mbit: float | None) -> Scale:
    """The scale of a model, with another rate of requests or of the link, if given.

    Raises:
        ValueError: there is none of this name.
    """
    if model not in SCALES:
        raise ValueError(f"unknown model {model!r}: choose one of {', '.join(SCALES)}")
    found = SCALES[model]
    return dataclasses.replace(found, per_s=per_s or found.per_s, link_mbit=link_mbit or found.link_mbit)


def link_in_words() -> str:
    """How the KV link is slowed down on this machine."""
    return network.shaped_by_kernel()[1]


@contextlib.contextmanager
def up(arm: Arm, routers: list[str], scale: Scale) -> Iterator[Running]:
    """Start an arm's workers and its routers, and yield it once all are healthy.

    Raises:
        rig.process.ProcessDied, rig.process.NotReady: a part didn't come up. The message shows the tail of its log.
    """
    first, *others = routers_of(arm, routers)
    if not arm.pd:
        with stack.replicas(scale.options, count=2, routers=(first, *others)) as (workers, fronts):
            urls = {kind: front.url for kind, front in fronts.items()}
            yield Running(arm, urls, tuple(worker.url for worker in workers))
        return
    with stack.pair(
        scale.options,
        prefill_handoff=arm.handoff,
        decode_handoff=arm.handoff,
        prefill_args=arm.worker_args,
        decode_args=(*arm.worker_args, *arm.decode_args),
        router=first,
        more_routers=tuple(others),
        namespaces=network.shaped_by_kernel()[0],
        link_mbit=scale.link_mbit,
    ) as pair:
        urls = {first: pair.url} | {kind: front.url for kind, front in pair.more_routers.items()}
        yield Running(arm, urls, (pair.prefill.url, pair.decode.url))
