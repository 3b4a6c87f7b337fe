"""An arm whose servers run, whoever started them."""

from __future__ import annotations

import dataclasses

from .arms import ARMS, Arm


@dataclasses.dataclass(frozen=True)
class Running:
    """
    Attributes:
        urls: where requests go, by kind of router.
        workers: base URLs of those that hold KV.
    """

    arm: Arm
    urls: dict[str, str]
    workers: tuple[str, ...]


def by_hand(text: str, router: str) -> Running:
    """`ARM=ROUTER_URL,WORKER_URL,...` of the command line, for servers that someone else started.

    Raises:
        ValueError: it doesn't read so.
    """
    key, _, urls = text.partition("=")
    arm = next((arm for arm in ARMS if arm.key == key), None)
    front, *workers = [url.rstrip("/") for url in urls.split(",") if url] or [""]
    if arm is None or not front or not workers:
        keys = ", ".join(arm.key for arm in ARMS)
        raise ValueError(f"{text!r} isn't ARM=ROUTER_URL,WORKER_URL,... with an arm of {keys}")
    return Running(arm, {router: front}, tuple(workers))
