"""What D's model would have said to the tokens that P logged. Only ever compared, never used."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Deque, List, NamedTuple, Sequence, Tuple

from .log import HandoffLog

MAX_NOTED = 16  # mismatches that one request's record names


class Prediction(NamedTuple):
    """The model's answer to one log entry: the likeliest next token, and by how much, in logits."""

    token: int
    margin: float


class Mismatch(NamedTuple):
    entry: int  # of the log, from 1
    logged: int
    predicted: int
    margin: float  # top-2 margin of D's prediction, in logits


@dataclass
class ReplayVerification:
    """One request's comparison of replay and log.

    A round over entries a..b predicts a + 1..b + 1. Its last prediction may come before P's entry,
    so it waits for it.
    """

    compared: int = 0
    mismatches: int = 0
    noted: List[Mismatch] = field(default_factory=list)
    _waiting: Deque[Tuple[int, Prediction]] = field(default_factory=deque)

    def predicted(self, first: int, predictions: Sequence[Prediction]) -> None:
        """``predictions`` are the model's for entries ``first``, ``first`` + 1, ..."""
        self._waiting.extend(enumerate(predictions, first))

    def compare(self, log: HandoffLog) -> Tuple[int, List[Mismatch]]:
        """How many entries could be compared since the last call, and those that differ."""
        number, found = 0, []
        while self._waiting and self._waiting[0][0] <= len(log):
            entry, prediction = self._waiting.popleft()
            (logged,) = log.slice(entry, entry + 1)
            number += 1
            if logged != prediction.token:
                found.append(Mismatch(entry, logged, *prediction))
        self.compared += number
        self.mismatches += len(found)
        self.noted += found[: MAX_NOTED - len(self.noted)]
        return number, found

    def summary(self) -> dict:
        """For ``meta_info["handoff"]``."""
        return {
            "compared": self.compared,
            "mismatches": self.mismatches,
            "noted": [m._asdict() for m in self.noted],
        }
