"""A closed loop: so many clients, each with one request at a time, until all prompts are answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rig import client, idle

from .figures import Block, Request


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
    return Block(arm.name, tuple(map(_request, answers)))


def _request(answer: client.Answer) -> Request:
    record = answer.meta_info.get("handoff", {})
    return Request(
        sent_at=answer.sent_at,
        at=tuple(event.at for event in answer.events for _ in event.ids),
        ids=tuple(answer.ids),
        handoff=record,
    )
