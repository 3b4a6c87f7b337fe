"""What the regression stages measure of a running pair, and hold against their thresholds.

Both arms run on the same workers at the same time of day: a request that asks for log probabilities takes the
ordinary path, so it is PD without the handoff. Figures are ratios where they can be, so that a slow machine moves
both sides of them.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Dict, List, Optional, Sequence, Tuple

import requests


@dataclass
class Timeline:
    """One streamed answer.

    Attributes:
        sent: when the request was sent, in seconds of the monotonic clock.
        arrivals: (when, tokens of the answer that were there then), for every event that brought some.
        ids: output token ids.
        handoff: ``meta_info["handoff"]`` of the last event, empty if it has none.
    """

    sent: float
    arrivals: List[Tuple[float, int]] = field(default_factory=list)
    ids: List[int] = field(default_factory=list)
    handoff: Dict = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        """Seconds."""
        return self.arrivals[0][0] - self.sent

    @property
    def itl(self) -> float:
        """Median seconds between tokens; those that came in one event share its time."""
        gaps = []
        for (before, had), (now, has) in zip(self.arrivals, self.arrivals[1:]):
            gaps += [(now - before) / (has - had)] * (has - had)
        return median(gaps)

    @property
    def switch_gap(self) -> Optional[float]:
        """Seconds between the last event without a token of D's own and the first with one; None if D made none."""
        boundary = self.handoff.get("boundary")
        if boundary is None:
            return None
        before = [at for at, tokens in self.arrivals if tokens <= boundary]
        after = [at for at, tokens in self.arrivals if tokens > boundary]
        return after[0] - before[-1] if before and after else None


def ask(url: str, ids: Sequence[int], new_tokens: int, ordinary: bool = False, timeout: float = 300) -> Timeline:
    """Ask for ``new_tokens`` greedy tokens, by the ordinary path if ``ordinary``.

    Raises:
        requests.HTTPError: the server refused.
        RuntimeError: the answer ended in an error.
    """
    body = {
        "input_ids": list(ids),
        "stream": True,
        "return_logprob": ordinary,
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
    }
    line = Timeline(time.monotonic())
    with requests.post(f"{url}/generate", json=body, stream=True, timeout=timeout) as response:
        response.raise_for_status()
        for raw in response.iter_lines():
            at = time.monotonic()
            if not raw.startswith(b"data: ") or raw == b"data: [DONE]":
                continue
            event = json.loads(raw[6:])
            if "error" in event:
                raise RuntimeError(f"{url}: {event['error']}")
            meta = event["meta_info"]
            reason = meta.get("finish_reason")
            if isinstance(reason, dict) and reason["type"] == "abort":
                raise RuntimeError(f"{url}: {reason}")
            if meta["completion_tokens"] > len(line.ids):
                line.arrivals.append((at, meta["completion_tokens"]))
                line.ids = _all_ids(line.ids, event["output_ids"], meta["completion_tokens"])
            line.handoff = meta.get("handoff") or line.handoff
    return line


def _all_ids(before: List[int], ids: List[int], whole: int) -> List[int]:
    """Servers send the new ids, or with every event all so far."""
    return list(ids) if len(ids) == whole else before + list(ids)


@dataclass(frozen=True)
class Figures:
    """
    Attributes:
        committed: share of the requests that D took over.
        different: answers unlike the ordinary path's.
        ttft_ratio: median TTFT over the ordinary path's.
        tail_ms: median TTFT less the unified server's, in ms; None without one.
        gap_in_itls_p50, gap_in_itls_p95: gap at the switch over the answer's median ITL.
        gap_share: median gap at the switch over the wait that was saved at the first token.
    """

    committed: float
    different: int
    ttft_ratio: float
    gap_in_itls_p50: float
    gap_in_itls_p95: float
    gap_share: float
    tail_ms: Optional[float] = None


@dataclass(frozen=True)
class Thresholds:
    """Limits of the figures of the same name: ``committed`` at least, the others at most. None: not looked at."""

    committed: float = 1.0
    different: int = 0
    ttft_ratio: Optional[float] = None
    gap_in_itls_p50: Optional[float] = None
    gap_in_itls_p95: Optional[float] = None
    gap_share: Optional[float] = None
    tail_ms: Optional[float] = None


def figures(
    handoff: Sequence[Timeline], ordinary: Sequence[Timeline], unified: Sequence[Timeline] = ()
) -> Figures:
    """Of the same prompts in the same order.

    Raises:
        ValueError: no request was taken over by D, so there is no switch to look at.
    """
    gaps = [(line.switch_gap, line.itl) for line in handoff if line.switch_gap is not None]
    if not gaps:
        raise ValueError(f"no request was handed off: {[line.handoff for line in handoff]}")
    in_itls = sorted(gap / itl for gap, itl in gaps)
    ttft, ordinary_ttft = (median(line.ttft for line in lines) for lines in (handoff, ordinary))
    saved = ordinary_ttft - ttft
    tail = (ttft - median(line.ttft for line in unified)) * 1e3 if unified else None
    return Figures(
        committed=sum(line.handoff.get("outcome") == "committed" for line in handoff) / len(handoff),
        different=sum(a.ids != b.ids for a, b in zip(handoff, ordinary, strict=True)),
        ttft_ratio=ttft / ordinary_ttft,
        gap_in_itls_p50=median(in_itls),
        gap_in_itls_p95=in_itls[min(len(in_itls) - 1, int(0.95 * len(in_itls)))],
        gap_share=median(gap for gap, _ in gaps) / saved if saved > 0 else float("inf"),
        tail_ms=tail,
    )


def violations(found: Figures, limits: Thresholds) -> List[str]:
    """What is past its limit, in words."""
    out = []
    for limit in fields(limits):
        most, value = getattr(limits, limit.name), getattr(found, limit.name)
        if most is None:
            continue
        if value is None:
            out.append(f"{limit.name} was not measured")
        elif value < most if limit.name == "committed" else value > most:
            bound = "at least" if limit.name == "committed" else "at most"
            out.append(f"{limit.name} is {value:.3g}, {bound} {most:.3g} is right")
    return out


def measure(url: str, prompts: Sequence[Sequence[int]], new_tokens: int) -> Tuple[List[Timeline], List[Timeline]]:
    """Each prompt on both paths, one after the other, the first path in turns: (handoff, ordinary)."""
    arms: Tuple[List[Timeline], List[Timeline]] = ([], [])
    for number, ids in enumerate(prompts):
        for ordinary in (False, True) if number % 2 else (True, False):
            arms[ordinary].append(ask(url, ids, new_tokens, ordinary))
    return arms


def used_tokens(url: str) -> int:
    """KV slots in use once the prefix cache is flushed.

    Raises:
        requests.HTTPError: the server has requests, and does not flush.
    """
    requests.post(f"{url}/flush_cache", timeout=30).raise_for_status()
    loads = requests.get(f"{url}/v1/loads?include=core", timeout=30).json()["loads"]
    return sum(rank["num_used_tokens"] for rank in loads)
