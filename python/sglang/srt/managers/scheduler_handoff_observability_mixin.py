"""What an operator sees of the seamless handoff: metrics, milestones, log lines, /server_info."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, Optional

from sglang.srt.disaggregation.handoff.admission import REFUSALS
from sglang.srt.disaggregation.handoff.deadlines import (
    DECODE_DEADLINES,
    PREFILL_DEADLINES,
    SILENCE,
)
from sglang.srt.disaggregation.handoff.decode_machine import (
    TERMINAL_STATES as DECODE_ENDED,
)
from sglang.srt.disaggregation.handoff.decode_machine import DecodeState
from sglang.srt.disaggregation.handoff.messages import VERSION, AbortReason
from sglang.srt.disaggregation.handoff.metrics import (
    ATTEMPTS,
    BOUNDARY_GAP,
    COMMITTED,
    DEADLINES,
    FAILED,
    FINISHED,
    LIVE,
    MARGIN,
    NOT_BRIDGED,
    ORDINARY,
    REPLAY_ROUND,
    REQUESTS,
    TOKENS,
    VERIFIED,
    HandoffMetrics,
)
from sglang.srt.disaggregation.handoff.peers import PeerTable
from sglang.srt.disaggregation.handoff.prefill_machine import (
    TERMINAL_STATES as PREFILL_ENDED,
)
from sglang.srt.disaggregation.handoff.prefill_machine import PrefillState
from sglang.srt.disaggregation.handoff.reasons import EXPECTED, QUIET, explain
from sglang.srt.disaggregation.handoff.record import RequestRecord
from sglang.srt.disaggregation.handoff.sessions import Session
from sglang.srt.disaggregation.handoff.stages import (
    DECODE_STAGES,
    PREFILL_STAGES,
    observe_boundary,
    observe_stages,
)
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import get_disagg, get_observability, get_parallel
from sglang.srt.utils.network import NetworkAddress

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)

# States of P's machine that are milestones of its record.
PREFILL_MARKS = {
    PrefillState.SEALED: "sealed",
    PrefillState.COMMITTED: "committed",
    PrefillState.FINISHED: "finished",
    PrefillState.ABORTED: "failed",
}
FAILURES = tuple(reason.name.lower() for reason in AbortReason if reason is not AbortReason.DONE)
# Shown as 0 from the start.
BOTH_SERIES = (
    (ATTEMPTS,),
    *((REQUESTS, outcome, "") for outcome in (COMMITTED, FINISHED)),
    *((REQUESTS, FAILED, reason) for reason in FAILURES),
)
PREFILL_SERIES = (
    (TOKENS, "bridged"),
    *((NOT_BRIDGED, reason) for reason in REFUSALS),
    *((DEADLINES, name) for name in PREFILL_DEADLINES),
)
DECODE_SERIES = (
    (TOKENS, "relayed"),
    (TOKENS, "replayed"),
    (BOUNDARY_GAP,),
    (REPLAY_ROUND,),
    *((REQUESTS, ORDINARY, reason) for reason in FAILURES),  # before a token was relayed
    *((DEADLINES, name) for name in DECODE_DEADLINES),
)
VERIFY_SERIES = ((VERIFIED, "true"), (VERIFIED, "false"), (MARGIN,))


class SchedulerHandoffObservabilityMixin:
    """Nothing here decides anything: without it the handoff would go on in the same way, unseen."""

    def init_handoff_observability(self: Scheduler) -> None:
        decode = self.disaggregation_mode == DisaggregationMode.DECODE
        states, ended = (DecodeState, DECODE_ENDED) if decode else (PrefillState, PREFILL_ENDED)
        reporter = self.metrics_reporter
        self.handoff_metrics = HandoffMetrics(
            reporter.metrics_collector if reporter.current_scheduler_metrics_enabled else None,
            [
                *BOTH_SERIES,
                *((LIVE, state.value) for state in states if state not in ended),
                *(DECODE_SERIES if decode else PREFILL_SERIES),
                *(VERIFY_SERIES if decode and get_disagg().disaggregation_handoff_verify else ()),
            ],
        )
        self.handoff_peers = PeerTable()
        self._handoff_reasons_told: set[str] = set()

    # ------------------------------------------------------------------ what is going on
    def note_handoff_states(self: Scheduler) -> None:
        """After anything that may have changed a machine's state: milestones of P's, and the gauge."""
        for session in self.handoff:
            mark = PREFILL_MARKS.get(session.machine.state)
            if mark is not None:
                session.record.mark(mark)
        self.handoff_metrics.live(Counter(s.machine.state.value for s in self.handoff if not s.machine.done))

    def note_handoff_deadline(self: Scheduler, session: Session, deadline: str) -> None:
        self.handoff_metrics.deadline(deadline)
        logger.info("Handoff of %s: the %s deadline has fired.", _named(self._handoff_req(session)), deadline)

    def note_handoff_silence(self: Scheduler, session: Session) -> None:
        """D is about to give up a request. Count it if that is for P's silence."""
        machine, now = session.machine, self.handoff.now
        ended = machine.log.complete and machine.relayed == len(machine.log)
        waits = machine.state is DecodeState.RELAY_ONLY and not ended and machine.hopeless(now)
        if machine.kv_lost(now) or waits:
            self.note_handoff_deadline(session, SILENCE)

    # ------------------------------------------------------------------ why not
    def note_ordinary_path(self: Scheduler, req: Req, reason: str) -> None:
        """The request goes the ordinary way."""
        self.handoff_metrics.request(ORDINARY, reason)
        logger.debug("Handoff of %s: none (%s).", _named(req), reason)
        self._tell_handoff_reason_once(req, f"takes the ordinary path: {explain(reason)}", reason)

    def note_not_bridged(self: Scheduler, req: Req, refusal: str) -> None:
        """P logs t1 and no more. That is for its load, which changes: nobody is warned."""
        self.handoff_metrics.not_bridged(refusal)
        logger.debug("Handoff of %s: the first token alone (%s).", _named(req), refusal)

    def note_handoff_end(self: Scheduler, req: Req, outcome: str, reason: str = "") -> None:
        """A handoff that had begun is over."""
        self.handoff_metrics.request(outcome, reason)
        # On P a request that D took the ordinary way has failed too: a short prompt, day in, day out.
        level = logging.INFO if outcome == FAILED and reason not in EXPECTED else logging.DEBUG
        logger.log(level, "Handoff of %s: %s%s.", _named(req), outcome, f" ({reason})" if reason else "")
        if outcome == FAILED:
            self._tell_handoff_reason_once(req, f"was not handed off: {explain(reason)}", reason)

    def _tell_handoff_reason_once(self: Scheduler, req: Req, what: str, reason: str) -> None:
        if reason in QUIET or reason in self._handoff_reasons_told:
            return
        self._handoff_reasons_told.add(reason)
        logger.warning(
            "Handoff: request %s %s. Said once for this reason (%s); sglang:handoff_requests_total counts "
            "all, and --log-level debug names each.",
            _named(req),
            what,
            reason,
        )

    # ------------------------------------------------------------------ milestones
    def new_prefill_record(self: Scheduler, req: Req) -> RequestRecord:
        """P has opened the log."""
        stats, record = req.time_stats, RequestRecord("opened")
        _mark_known(record, "arrived", stats.scheduler_recv_time)
        _mark_known(record, "prefill_started", stats.forward_entry_time)
        _mark_known(record, "prefill_ended", stats.prefill_finished_time)
        record.mark("opened")
        stats.handoff = record
        if get_observability().enable_request_time_stats_logging and get_parallel().attn_tp_rank == 0:
            # Upstream logs with the final output, which on P is streamed long before the request's end.
            record.on_completed = req.log_time_stats
        return record

    def new_decode_record(self: Scheduler, req: Req) -> RequestRecord:
        """D is about to offer. The record is shown once it is published."""
        record = RequestRecord("offered")
        _mark_known(record, "arrived", req.time_stats.scheduler_recv_time)
        return record

    def observe_prefill_handoff(self: Scheduler, session: Session, outcome: str) -> None:
        """P is about to forget the request: its stages, and its peer's answer."""
        machine, record = session.machine, session.record
        record.fields |= {
            "outcome": outcome,
            "tokens_bridged": len(machine.log) - 1,
            "boundary": machine.boundary,
        }
        observe_stages(session.request.time_stats, record, PREFILL_STAGES, len(machine.log))

    def observe_decode_handoff(self: Scheduler, session: Session, tokens: int) -> None:
        """D's part is over, ``tokens`` of the output came from P. A committed request's first own
        token is still to come."""
        record, stats = session.record, session.request.req.time_stats
        observe_stages(stats, record, DECODE_STAGES, tokens)

        def first_own_token(gap: float) -> None:
            self.handoff_metrics.boundary_gap(gap)
            observe_boundary(stats, record)

        record.on_first_own_token = first_own_token

    # ------------------------------------------------------------------ /server_info
    def handoff_info(self: Scheduler) -> Dict[str, Any]:
        """``internal_states[...]["seamless_handoff"]`` of /server_info. Plain data."""
        return {
            "enabled": True,
            "protocol_version": VERSION,
            "endpoint": self.handoff.channel.endpoint,
            "live": dict(Counter(session.machine.state.value for session in self.handoff)),
            "outcomes": dict(self.handoff_metrics.outcomes),
            "dropped_messages": dict(self.handoff_metrics.drops),
            "peers": self.handoff_peers.summary(),
        }

    @staticmethod
    def handoff_counterpart(host: str, port: Optional[int]) -> str:
        """A worker's name in /server_info: on D the bootstrap address of P, on P the KV socket of D."""
        return NetworkAddress(host, int(port or 0)).to_host_port_str()


def _named(req: Req) -> str:
    """A request in log lines. The two workers know it by other rids where the router names none, but by one room."""
    return f"{req.rid} (room {req.bootstrap_room})"


def _mark_known(record: RequestRecord, what: str, at: float) -> None:
    """SGLang's times are 0 until they are known."""
    if at > 0:
        record.mark(what, at)
