"""Five exchanges, told line by line in golden/*.txt. `python -m checker --golden` writes them anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

from .events import Event
from .explore import TIMING
from .narrate import story
from .scenario import Scenario

FOLDER = Path(__file__).parent / "golden"
LOOK = ("D looks", 0, -1, 0)
STEP = ("P steps", 0)
TO_P = ("to P",)
CLOCK = ("clock",)
ROUND_DONE = ("round done", 0)


def takes(messages: int) -> Event:
    return ("D looks", messages, -1, 0)


def takes_and_replays(messages: int) -> Event:
    return ("D looks", messages, 0, 9)


# t1 to t3 are with the client before the KV is there; a round over t1 and t2 begins.
BRIDGED = (takes(2), TO_P, STEP, STEP, takes(1), TO_P, STEP, ("KV arrives", 0), takes_and_replays(1), TO_P)
# P logs t4 meanwhile; the round ends, D takes t4 and asks for the seal, P gives it and drops the step in flight.
SEALED = BRIDGED + (STEP, ROUND_DONE, takes(1), TO_P, TO_P, STEP, takes_and_replays(1))

TRACES: Dict[str, Tuple[Scenario, Tuple[Event, ...]]] = {
    "normal": (
        Scenario("normal", answer=8, budget=6, faults=0),
        SEALED + (ROUND_DONE, TO_P, LOOK, ("D decodes on", 0)),
    ),
    "lost_commit": (
        Scenario("lost commit", answer=8, budget=6),
        SEALED + (ROUND_DONE, ("drop", "to P"), LOOK, ("D decodes on", 0), CLOCK, takes(2), TO_P, TO_P),
    ),
    "p_dies": (
        Scenario("P dies", answer=8, budget=6),
        BRIDGED + (("P restarts",), ROUND_DONE, LOOK, LOOK, TO_P, CLOCK, TO_P, CLOCK, TO_P, LOOK, ("D decodes on", 0)),
    ),
    "resume": (
        Scenario("resume", answer=6, budget=6),
        SEALED[:-1] + (
            ("D's KV pool is full",), takes(1), ("D has waited for slots", 0), TO_P, takes(1), TO_P,
            STEP, STEP, takes(1), TO_P, STEP, takes(2), TO_P, TO_P, LOOK,
        ),
    ),
    "abort_while_sealed": (
        Scenario("abort while sealed", answer=8, budget=6),
        SEALED + (("client aborts", 0), TO_P, LOOK, ROUND_DONE, LOOK),
    ),
}  # fmt: skip


def text(name: str, core: Any) -> str:
    scenario, trace = TRACES[name]
    return story(scenario, core, core.Timing(**TIMING), trace)


def path(name: str) -> Path:
    return FOLDER / f"{name}.txt"


def write(core: Any) -> None:
    for name in TRACES:
        path(name).write_text(text(name, core))
