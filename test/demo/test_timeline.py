"""The picture can be drawn with and without a handoff. Whether it's understood, only a person can tell."""

import dataclasses

import matplotlib.pyplot as plt
import pytest

from demo import facts, timeline
from demo.measure import UNIFIED, Run, Token, makers


def run(arm: str, first: float, boundary: int | None, **fields) -> Run:
    made_by = makers(20, boundary) if boundary else [UNIFIED] * 20
    tokens = tuple(Token(first + 0.1 * i, i, worker) for i, worker in enumerate(made_by))
    return Run(arm, "p", 1000, tokens, "text", first + 2.1, **fields)


PROMPT = {facts.PROMPT: [(0.0, 2.0)]}
TRANSFER = {facts.TRANSFER: [(2.0, 3.0)]}
SWITCH = {facts.SEAL: [(3.0, 3.05)], facts.REPLAY: [(3.05, 3.2)], facts.COMMIT: [(3.2, 3.2)]}
HANDED_OFF = run("PD + handoff", 2.0, 10, spans=PROMPT | TRANSFER | SWITCH, handoff={"replayed": 9})
NOTHING_TO_REPLAY = run("PD + handoff", 2.0, 1, spans=PROMPT | TRANSFER | SWITCH | {facts.REPLAY: []}, handoff={"replayed": 0})
NOT_HANDED_OFF = run("PD + handoff", 3.1, 1, spans=PROMPT | TRANSFER)


@pytest.mark.parametrize("last", [HANDED_OFF, NOTHING_TO_REPLAY, NOT_HANDED_OFF])
def test_the_picture_is_a_png(tmp_path, last):
    runs = [run("unified", 2.0, None, spans=PROMPT), run("PD", 3.1, 1, spans=PROMPT | TRANSFER), last]
    timeline.draw(runs, "a model", tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_longest_wait_is_written_where_it_was():
    figure, axes = plt.subplots()
    at = (1.0, 1.1, 1.4, 1.5)
    timeline._longest_wait(axes, dataclasses.replace(HANDED_OFF, tokens=tuple(Token(t, 1, UNIFIED) for t in at)), 0.4)
    (label,), (line,) = axes.texts, axes.collections
    assert label.get_text() == "longest wait 0.30 s"
    assert [x for x, _ in line.get_segments()[0]] == [1.1, 1.4]
    plt.close(figure)
