"""The handoff's part of SGLang's request stages: spans for --enable-trace, and samples of
sglang:per_stage_req_latency_seconds."""

from __future__ import annotations

from typing import Any

from sglang.srt.observability.req_time_stats import RequestStageConfig

from .record import RequestRecord

# Prefill.
BRIDGE = RequestStageConfig("handoff_bridge", level=2, metrics_is_observed=True)
SEALED = RequestStageConfig("handoff_sealed", level=2, metrics_is_observed=True)
# Decode.
RELAY = RequestStageConfig("handoff_relay", level=2, metrics_is_observed=True)
REPLAY = RequestStageConfig("handoff_replay", level=3, metrics_is_observed=True)
SEAL = RequestStageConfig("handoff_seal", level=2, metrics_is_observed=True)
DRAIN = RequestStageConfig("handoff_drain", level=2, metrics_is_observed=True)
BOUNDARY = RequestStageConfig("handoff_boundary", level=2, metrics_is_observed=True)

_ENDS = ("committed", "finished", "failed")
# From the first milestone to the first of the others that was passed.
PREFILL_STAGES = ((BRIDGE, "opened", ("sealed", *_ENDS)), (SEALED, "sealed", _ENDS))
DECODE_STAGES = (
    (RELAY, "first_relay", _ENDS),
    (SEAL, "sealing", ("draining", *_ENDS)),
    (DRAIN, "draining", _ENDS),
)


def observe_stages(time_stats: Any, record: RequestRecord, stages: Any, tokens: int) -> None:
    """Give the stages that a request has passed, and its replay rounds, to its ``time_stats``.

    ``tokens`` of its output came from P.
    """
    attrs = {"outcome": record.fields["outcome"], "tokens": tokens}
    for stage, start, ends in stages:
        span = record.span(start, ends)
        if span is not None:
            _observe(time_stats, stage, *span, attrs)
    for start, end, number in record.rounds():
        _observe(time_stats, REPLAY, start, end, {"tokens": number})


def observe_boundary(time_stats: Any, record: RequestRecord) -> None:
    """The gap between the last relayed token and D's first own one."""
    span = record.span("last_relay", ("first_own_token",))
    if span is not None:
        _observe(time_stats, BOUNDARY, *span, {"boundary": record.fields["boundary"]})


def _observe(time_stats: Any, stage: RequestStageConfig, start: float, end: float, attrs: dict) -> None:
    time_stats.observe_per_stage_req_latency(stage, end - start)
    time_stats.trace_slice(stage, start, end, attrs)
