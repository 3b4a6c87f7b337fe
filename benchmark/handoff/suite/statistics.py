"""Quantiles with error bars. No I/O, no clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
CONFIDENCE, RESAMPLES = 0.95, 400


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A quantile, and its interval of 95 % confidence by the percentile bootstrap over requests.

    Attributes:
        low, high: None with fewer than 2 requests.
        is_largest: so few values that the quantile is the largest of them.
    """

    value: float
    low: float | None
    high: float | None
    is_largest: bool


def quantiles(by_request: Sequence[Sequence[float]]) -> dict[str, Estimate] | None:
    """p50, p95 and p99 of all values; None of none.

    A quantile is the smallest value that the share of values do not exceed. Whole requests are drawn again, not values: gaps
    of one answer depend on each other. It doesn't cover what changes between runs; compare repeats for that.

    Args:
        by_request: the values of each request that has any: one TTFT, or many gaps.
    """
    groups = [np.asarray(values, dtype=float) for values in by_request if len(values)]
    if not groups:
        return None
    every = np.concatenate(groups)
    found = {}
    for name, share in SHARES.items():
        low, high = _interval(groups, share)
        found[name] = Estimate(_quantile(every, share), low, high, is_largest=len(every) * (1 - share) < 1)
    return found


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, smallest and largest of the repeats; None of none."""
    if not values:
        return None
    return {"median": float(np.median(values)), "low": min(values), "high": max(values), "repeats": len(values)}


def _quantile(values: np.ndarray, share: float, axis: int | None = None):
    return np.quantile(values, share, axis=axis, method="inverted_cdf")


def _interval(groups: list[np.ndarray], share: float) -> tuple[float | None, float | None]:
    if len(groups) < 2:
        return None, None
    if all(len(group) == 1 for group in groups):
        data, vectorized = np.concatenate(groups), True
        statistic = lambda values, axis: _quantile(values, share, axis)  # noqa: E731
    else:
        data, vectorized = np.arange(len(groups)), False
        statistic = lambda drawn: _quantile(np.concatenate([groups[i] for i in drawn]), share)  # noqa: E731
    found = scipy.stats.bootstrap(
        (data,),
        statistic,
        n_resamples=RESAMPLES,
        vectorized=vectorized,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
