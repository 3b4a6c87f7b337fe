"""The quantile that every report here means."""

from __future__ import annotations

import math
from collections.abc import Iterable


def quantile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that `share` of them do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
