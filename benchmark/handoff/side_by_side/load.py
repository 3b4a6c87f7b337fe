"""A closed loop: so many clients, each with one request at a time, until all prompts are answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmark.handoff import answer
from rig import client, idle

from .figures import Block


@dataclasses.dataclass(frozen=True)
class Arm:
    """
    Attributes:
        url: where requests go.
        workers: base URLs of those that hold KV.
    """

    name: str
    url: str
    workers: tuple[str, ...]


def ask(arm: Arm, prompts: Sequence[Sequence[int]], new_tokens: int, at_once: int) -> Block:
    """Answer all prompts by greedy streaming requests of exactly `new_tokens` tokens, and leave the workers empty.

    Raises:
        client.RequestFailed: the server failed one.
        idle.NotIdle: a worker kept something.
    """
    answers = client.generate_all(arm.url, prompts, at_once=at_once, max_new_tokens=new_tokens, ignore_eos=True)
    # so that no arm finds a prefix of an earlier block
    for worker in arm.workers:
        idle.wait_idle(worker)
    return Block(arm.name, tuple(map(answer.of, answers)))
