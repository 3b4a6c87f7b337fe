"""A figure that demo and benchmarks hold against its limit."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Goal:
    """A figure and its limit.

    Attributes:
        what: the figure, in words.
        value: what was measured.
        limit: at most this, or at least if `at_least`.
    """

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        return f"{self.what}: {self.value:.2f} (goal: {bound} {self.limit:.2f}) {'met' if self.met else 'MISSED'}"
