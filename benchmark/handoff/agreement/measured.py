"""A point on real workers: a pair with the handoff off and one with it on, asked in turns."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmark.handoff.side_by_side import load
from benchmark.handoff.side_by_side.figures import Block
from benchmark.handoff.side_by_side.setups import random_prompts
from benchmark.handoff.simulator.workload import HANDOFF
from rig import servers, stack

from . import figures
from .points import ARMS, PACE, PROMPT, Point

WARM_UP = 4  # requests of each arm before any is counted


@contextlib.contextmanager
def up(places: int) -> Iterator[dict[str, stack.Pair]]:
    """Run both pairs and yield them by arm.

    Raises:
        rig.process.ProcessDied, rig.process.NotReady: a part didn't come up. The message shows the tail of its log.
    """
    options = servers.Options(
        # on CPU a forward holds the scheduler's thread, so the overlap loop would only read each result a step late
        overlap=False,
        max_total_tokens=32768,
        chunked_prefill_size=PROMPT,
        env={"RIG_IDLE_PAUSE_S": "0.0005"} | PACE.env(),
    )
    with contextlib.ExitStack() as cleanup:
        yield {
            arm: cleanup.enter_context(
                stack.pair(
                    options,
                    prefill_handoff=arm == HANDOFF,
                    decode_handoff=arm == HANDOFF,
                    decode_args=("--max-running-requests", str(places)),
                )
            )
            for arm in ARMS
        }


def ask(pair: stack.Pair, arm: str, point: Point, seed: int) -> Block:
    """Return one arm's answers to all of a point's prompts.

    Raises:
        RuntimeError: the workers don't keep to the pace.
        rig.client.RequestFailed: a request ended in an error.
    """
    pair.set_link(point.link_mbit)
    asked = load.Arm(arm, pair.url, (pair.prefill.url, pair.decode.url))
    load.ask(asked, random_prompts(PROMPT, -1 - seed, WARM_UP), point.new_tokens, WARM_UP)
    block = load.ask(asked, random_prompts(PROMPT, seed, point.requests), point.new_tokens, point.clients)
    if min(request.itl for request in block.requests) < PACE.step:
        raise RuntimeError("decode steps are shorter than they were told to be: look for paced_forward in the workers' logs")
    return block


def figures_of(blocks: Sequence[Block]) -> dict[str, float | None]:
    """Return the figures of one arm's blocks: quantiles over all requests, the mean of the rates."""
    requests = [request for block in blocks for request in block.requests]
    return figures.of(
        [request.ttft for request in requests],
        [request.boundary_gap for request in requests if request.boundary is not None],
        [request.at[-1] - request.sent_at for request in requests],
        sum(block.tokens_per_s for block in blocks) / len(blocks),
    )


def outcomes(blocks: Sequence[Block]) -> dict[str, float]:
    """Return how the requests' handoffs ended, and of those that D took over, how many tokens P made and how many rounds D
    replayed them in, on average."""
    requests = [request for block in blocks for request in block.requests]
    found: dict[str, float] = dict(Counter(request.handoff["outcome"] for request in requests if request.handoff))
    boundaries = [request.boundary for request in requests if request.boundary is not None]
    if boundaries:
        found["mean boundary"] = sum(boundaries) / len(boundaries)
        rounds = [request.handoff["replay_rounds"] for request in requests if request.boundary is not None]
        found["replay rounds each"] = sum(rounds) / len(rounds)
    return found
