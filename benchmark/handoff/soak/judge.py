"""Compares an answer with the unified server's: right, or lost, doubled, different, failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence

from rig.client import Answer

from .plan import PERMIT_ERROR, Request

LOST, DOUBLED, DIFFERENT, FAILED = "lost", "doubled", "different", "failed"


@dataclass
class Verdict:
    """What is wrong with an answer. ``violation`` is None if nothing is, ``error`` the permitted cause of an
    early end."""

    violation: Optional[str] = None
    detail: str = ""
    error: Optional[str] = None


def judge(
    request: Request, round_fault: Optional[str], answer: Answer, right: Answer, error: Optional[Exception]
) -> Verdict:
    """Args:
    answer: what came, perhaps not to its end.
    error: what the client ran into: a TimeoutError, or the server's refusal.
    """
    if (wrong := against(answer.ids, right.ids)) is not None:
        return Verdict(wrong, f"{request.rid}: {_difference(answer.ids, right.ids)}")
    if (wrong := _indices(answer)) is not None:
        return Verdict(wrong, f"{request.rid}: the stream's own count and its tokens disagree")
    if isinstance(error, TimeoutError):
        return Verdict(LOST, f"{request.rid}: {error}")
    if request.fault == "cancel":
        return Verdict()
    reason = answer.finish_reason
    if error is not None or (isinstance(reason, dict) and reason["type"] == "abort"):
        cause = next((f for f in (request.fault, round_fault) if f in PERMIT_ERROR), None)
        if cause is None:
            return Verdict(FAILED, f"{request.rid} ({request.fault}, {round_fault}): {error or reason}")
        return Verdict(error=cause)
    if len(answer.ids) < len(right.ids):
        return Verdict(LOST, f"{request.rid}: ended after {len(answer.ids)} of {len(right.ids)} tokens: {reason}")
    usage = ("completion_tokens", "prompt_tokens")
    if any((
        answer.text != right.text, reason != right.finish_reason,
        any(answer.meta_info[name] != right.meta_info[name] for name in usage),
    )):  # fmt: skip
        return Verdict(DIFFERENT, f"{request.rid}: {answer.text!r} {reason}, {right.text!r} {right.finish_reason}")
    return Verdict()


def against(ids: Sequence[int], right: Sequence[int]) -> Optional[str]:
    """How ``ids``, perhaps cut short, went wrong; None if they are the beginning of ``right``."""
    ids, right = list(ids), list(right)
    at = next((n for n, (a, b) in enumerate(zip(ids, right)) if a != b), min(len(ids), len(right)))
    if at == len(ids):
        return None
    if at and ids[at] == ids[at - 1] and ids[at + 1 :] == right[at : at + len(ids) - at - 1]:
        return DOUBLED
    if ids[at:] == right[at + 1 : at + 1 + len(ids) - at] and len(ids) > at:
        return LOST
    return DIFFERENT


def _indices(answer: Answer) -> Optional[str]:
    """Every index once, in order: the server's count of each event is that of the tokens that came."""
    seen = 0
    for event in answer.events:
        seen += len(event.ids)
        said = event.data["meta_info"]["completion_tokens"]
        if said != seen:
            return LOST if said > seen else DOUBLED
    return None


def _difference(ids: List[int], right: List[int]) -> str:
    at = next((n for n, (a, b) in enumerate(zip(ids, right)) if a != b), min(len(ids), len(right)))
    return f"from token {at + 1} on {ids[at : at + 4]}, not {right[at : at + 4]}"
