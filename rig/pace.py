"""A stated time for every forward, as of another machine: it computes as ever, and then sleeps until that much has passed.

So two workers on two cores don't take each other's time, as long as computing takes a fraction of it.
"""

import dataclasses
import json
import os

VARIABLE = "RIG_PACE"


@dataclasses.dataclass(frozen=True)
class Pace:
    """How long a forward takes, in seconds.

    Attributes:
        token: of a forward over prompts or replays, each of their tokens.
        extend: such a forward takes at least this.
        step: a decode step of one request.
        more: each other request in its batch.
    """

    token: float
    extend: float
    step: float
    more: float

    def of_extend(self, tokens: int) -> float:
        """Seconds of a forward over `tokens` tokens of prompts or replays."""
        return max(self.extend, self.token * tokens)

    def of_step(self, batch: int) -> float:
        """Seconds of a decode step of `batch` requests."""
        return self.step + self.more * (batch - 1)

    def env(self) -> dict[str, str]:
        """Return the variables by which a worker keeps to it."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}


def of_env() -> Pace | None:
    """Return what this process is to keep to; None: forwards take what they take."""
    return Pace(**json.loads(os.environ[VARIABLE])) if VARIABLE in os.environ else None
