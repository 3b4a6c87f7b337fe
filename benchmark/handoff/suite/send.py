"""Sends a plan to one arm and writes down what comes.

The client is `rig.client`, not `sglang.benchmark.serving`'s request functions: those keep no event times, no token ids and
no `meta_info["handoff"]`, count the first token from the first non-empty text, and divide a gap by the tokens of its event.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Callable, Sequence

from benchmark.handoff import answer
from rig import client, idle

from .block import CANCELLED, ERROR, WHOLE, Block, Sample
from .traffic import Arrivals, Closed, Planned

TIMEOUT_S = 300


def ask(
    url: str, workers: Sequence[str], plan: Sequence[Planned], arrivals: Arrivals, names: dict, idle_timeout_s: float = 60
) -> Block:
    """Send the plan, wait for every end, and leave the workers empty.

    Args:
        url: where requests go.
        workers: base URLs of those that hold KV.
        names: `case`, `plan`, `arm` and `router` of the block.
    """
    # in an open loop every request needs a thread from the start: none may wait for another's end
    threads = arrivals.at_once if isinstance(arrivals, Closed) else len(plan)
    start, cpu = time.monotonic(), time.process_time()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        samples = tuple(pool.map(lambda numbered: _one(url, *numbered, start), enumerate(plan)))
    cores = (time.process_time() - cpu) / (time.monotonic() - start)
    kept = []
    # so that no arm finds a prefix of an earlier block, and a leak is seen
    for worker in workers:
        try:
            idle.wait_idle(worker, idle_timeout_s)
        except idle.NotIdle as reason:
            kept.append(str(reason))
    return Block(**names, samples=samples, kept=tuple(kept), client_cores=cores, load=round(os.getloadavg()[0], 1))


def _one(url: str, number: int, planned: Planned, start: float) -> Sample:
    due_at = None if planned.due is None else start + planned.due
    if due_at is not None:
        time.sleep(max(0.0, due_at - time.monotonic()))
    stream, got, ended, error = None, client.Answer(sent_at=time.monotonic()), ERROR, ""
    try:
        stream = client.start_generate(url, planned.prompt, max_new_tokens=planned.new_tokens, ignore_eos=True)
        got = stream.answer
        went_away = _go_away(stream, planned)
        stream.result(TIMEOUT_S)
        ended, error = _end(got, planned, went_away)
    except (client.RequestFailed, OSError) as failure:  # a TimeoutError is an OSError
        error = repr(failure)
        if stream is not None:
            stream.disconnect()
    return Sample(
        request=answer.of(got),
        number=number,
        prompt_tokens=len(planned.prompt),
        new_tokens=planned.new_tokens,
        prompt_bucket=planned.prompt_bucket,
        output_bucket=planned.output_bucket,
        ended=ended,
        ended_at=got.ended_at or time.monotonic(),
        due_at=due_at,
        error=error,
    )


def _go_away(stream: client.Stream, planned: Planned) -> bool:
    """Cut the connection when the plan says so. Return whether that was before the end."""
    wait: Callable[[], object] | None = None
    if planned.cancel_after_tokens is not None:
        wait = lambda: stream.wait_for_tokens(planned.cancel_after_tokens, TIMEOUT_S)  # noqa: E731
    elif planned.cancel_after_s is not None:
        wait = lambda: time.sleep(planned.cancel_after_s)  # noqa: E731
    if wait is None:
        return False
    wait()
    if stream.answer.ended_at is not None:
        return False  # not cut any more, so that a failure before shows
    stream.disconnect()
    return True


def _end(got: client.Answer, planned: Planned, went_away: bool) -> tuple[str, str]:
    reason = got.finish_reason
    if went_away and reason is None:
        return CANCELLED, ""
    if len(got.ids) == planned.new_tokens and reason is not None and reason["type"] == "length":
        return WHOLE, ""
    return ERROR, f"{len(got.ids)} of {planned.new_tokens} tokens, finish reason {reason}"
