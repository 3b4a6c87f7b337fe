"""The seamless handoff on a decode worker: offer it, relay P's tokens, take over."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Dict, List

from sglang.srt.disaggregation.handoff.decode_machine import (
    DecodeMachine,
    DecodeState,
)
from sglang.srt.disaggregation.handoff.eligibility import request_misfit
from sglang.srt.disaggregation.handoff.messages import (
    MAX_COUNT,
    NONCE_BYTES,
    VERSION,
    AbortReason,
    Offer,
    encode_offer,
)
from sglang.srt.disaggregation.handoff.metrics import (
    COMMITTED,
    FAILED,
    FINISHED,
    ORDINARY,
)
from sglang.srt.disaggregation.handoff.record import RequestRecord
from sglang.srt.disaggregation.handoff.sessions import Session
from sglang.srt.disaggregation.handoff.verify import ReplayVerification
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler_handoff_replay_mixin import (
    SchedulerHandoffReplayMixin,
)
from sglang.srt.runtime_context import get_disagg

if TYPE_CHECKING:
    from sglang.srt.disaggregation.decode import DecodeRequest
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler


class SchedulerHandoffDecodeMixin(SchedulerHandoffReplayMixin):
    """Until the commit a request stays in the transfer queue, so that upstream's budgets, idle
    checks and aborts count it. The commit is upstream's own PREBUILT path."""

    def init_handoff_decode(self: Scheduler, kv_manager: Any) -> None:
        self._handoff_offers: Dict[int, bytes] = {}
        kv_manager.handoff_offers = self._handoff_offers
        self.init_handoff_replay()

    # -------------------------------------------------------------- a request's way in
    def offer_handoff(self: Scheduler, decode_req: DecodeRequest) -> None:
        """Called right before the transfer metadata goes out, which then carries the offer."""
        req = decode_req.req
        reason = (
            "rebootstrap" if decode_req.is_rebootstrap else request_misfit(req)
        ) or ("retracted" if req.output_ids else None)
        self._handoff_offers.pop(req.bootstrap_room, None)
        if reason is not None:
            self._take_ordinary_path(req, reason)
            return
        machine = DecodeMachine(
            room=req.bootstrap_room,
            nonce=secrets.token_bytes(NONCE_BYTES),
            prompt_len=len(req.origin_input_ids),
            fingerprint=self.handoff_fingerprint(),
            vocab_size=self.model_config.vocab_size,
            timing=self.handoff.timing,
            max_new_tokens=req.sampling_params.max_new_tokens,
            **self.replay_pace(),
        )
        session = Session(
            decode_req,
            machine,
            None,
            record=self.new_decode_record(req),
            counterpart=self.handoff_counterpart(req.bootstrap_host, req.bootstrap_port),
        )
        self.handoff_metrics.attempt()
        self.handoff_peers.offered(session.counterpart)
        if self.verifies_replay:
            session.verification = ReplayVerification()
        self.handoff.add(session)
        req.handoff = session
        self._handoff_offers[req.bootstrap_room] = encode_offer(
            Offer(
                VERSION,
                machine.nonce,
                self.handoff.channel.endpoint,
                min(MAX_COUNT, self._tokens_to_pay_for_replay()),
            )
        )

    def _tokens_to_pay_for_replay(self: Scheduler) -> int:
        running, pool = self.running_batch.batch_size(), self.token_to_kv_pool_allocator
        half_free = 2 * pool.available_size() >= pool.size
        spare = half_free and 2 * running <= self.max_running_requests
        return self.replay_worth.tokens(self.handoff.now, running, spare)

    def _take_ordinary_path(self: Scheduler, req: Req, reason: str) -> None:
        # A request that was handed off before, and was retracted since, keeps the record of that.
        if req.time_stats.handoff is None:
            req.time_stats.handoff = RequestRecord(ORDINARY, reason)
        self.note_ordinary_path(req, reason)

    # --------------------------------------------------------------------------- relay
    def relay_handoffs(self: Scheduler) -> None:
        """Give the client every logged token that has come, as if sampled here."""
        self.note_replay_cost()
        relayed: List[Req] = []
        for session in self.handoff:
            machine, req = session.machine, session.request.req
            if machine.peer_endpoint is not None:
                self._note_opened(session)
            tokens = machine.take_relay()
            if not tokens and machine.kv_lost(self.handoff.now):
                self._fail_transfer(session.request)
            if not tokens or req.finished():
                continue
            req.cached_tokens = machine.cached_tokens
            session.record.mark("first_relay")
            session.record.mark_again("last_relay")
            session.relayed_at = self.handoff.now
            for number, token in enumerate(tokens, 1):
                self._relay_token(req, token)
                if req.finished():
                    break
            relayed.append(req)
            self.handoff_metrics.tokens("relayed", number)
            self.metrics_reporter.num_generated_tokens += number
            if req.finished():
                self._finish_on_relay(session)
        if relayed:
            self.output_streamer.stream_output(relayed, False)

    def _note_opened(self: Scheduler, session: Session) -> None:
        """P's Open was read: once a request."""
        if session.record.opened(session.machine.prefill_us / 1e3):
            self.handoff_peers.opened(session.counterpart, session.machine.peer_endpoint)

    def _relay_token(self: Scheduler, req: Req, token: int) -> None:
        """The accounting that a sampled token gets in the batch result path."""
        req.output_ids.append(token)
        self.batch_result_processor._maybe_update_reasoning_tokens(req, token)
        req.update_finish_state()

    def _finish_on_relay(self: Scheduler, session: Session) -> None:
        req, machine = session.request.req, session.machine
        session.record.mark("finished")
        self._publish_record(session, FINISHED)
        self.handoff.send(session, machine.finished(self.handoff.now))
        req.time_stats.set_completion_time()

    # ------------------------------------------------------------ a request's way out
    def handoff_keeps_transferred(self: Scheduler, decode_req: DecodeRequest) -> bool:
        """The prompt KV is here. True: keep the request in the transfer queue.

        False: upstream goes on, with the request prepared for its commit, or finished.
        """
        session = decode_req.req.handoff
        if session is None:
            return False
        machine = session.machine
        if machine.state is DecodeState.OFFERED and not session.kv_seen:
            # P's Open was sent before the KV: it may lie unread since this iteration's intake.
            session.kv_seen = True
            return True
        self.handoff.clock_wanted = True  # a round may be launched, and is timed
        if not machine.kv_here and not machine.done:
            session.record.mark("kv_arrived")
            self._check_first_token(session)
        self.handoff.send(
            session,
            [
                *machine.kv_arrived(self.handoff.now),
                *machine.room_ahead(self.handoff.now, self._handoff_room_ahead(machine)),
            ],
        )
        self.note_handoff_state(session)
        if session.in_flight:
            return True
        if machine.hopeless(self.handoff.now):
            self._fail_transfer(decode_req)
            return True
        if not machine.done:
            return True
        if machine.state is DecodeState.OWNER:
            self._commit_handoff(session)
        elif machine.state is DecodeState.ABORTED:
            self._leave_for_ordinary_path(session)
        else:
            self._detach(session)
        return False

    def _check_first_token(self: Scheduler, session: Session) -> None:
        """The metadata carries t1 too: if it isn't the log's, KV and log are not of one request."""
        machine, index = session.machine, session.request.metadata_buffer_index
        first = self.disagg_metadata_buffers.output_ids[index][0].item()
        if len(machine.log) and machine.log.slice(1, 2) != [first]:
            self.handoff.channel.drop("first_token", f"log {machine.log.slice(1, 2)}, metadata {first}")
            self.handoff.send(
                session, machine.abort(self.handoff.now, AbortReason.CONFLICT)
            )

    def handoff_keeps_failed(self: Scheduler, decode_req: DecodeRequest) -> bool:
        """The transfer has failed, or the request was aborted. True: keep the request: P goes
        on and D relays, or a replay still writes its KV. False: upstream ends it."""
        session = decode_req.req.handoff
        if session is None:
            return False
        if session.in_flight:
            return True
        machine, now = session.machine, self.handoff.now
        if not machine.done and machine.kv_failed(now) and not machine.hopeless(now):
            return True
        self.note_handoff_silence(session)
        self.handoff.send(session, machine.abort(now, AbortReason.TRANSFER))
        req = decode_req.req
        req.handoff_aborted = session.aborted_here and machine.relayed > 0
        if machine.state is not DecodeState.FINISHED:
            session.record.mark("failed")
            self._publish_record(session, FAILED, self._abort_reason(machine))
        self._detach(session)
        return False

    @staticmethod
    def end_as_aborted(req: Req) -> None:
        """The client has had tokens: its request ends as an abort of a running one does, not as
        upstream's failed transfer with status 500."""
        req.finished_reason = FINISH_ABORT()

    def release_finished_handoff(self: Scheduler, decode_req: DecodeRequest) -> None:
        """The request ended on a relayed token and its transfer has ended too: free both."""
        queue = self.disagg_decode_transfer_queue
        queue._release_request(decode_req)
        decode_req.kv_receiver.clear()
        decode_req.kv_receiver = None

    def _handoff_room_ahead(self: Scheduler, machine: DecodeMachine) -> bool:
        """A request sealed now finds KV slots for what is left to replay, and a place in the
        running batch."""
        ending = sum(
            s.machine.state in (DecodeState.SEALING, DecodeState.DRAINING)
            for s in self.handoff
            if s.machine is not machine
        )
        taken = self.running_batch.batch_size() + len(self.waiting_queue) + ending
        if taken >= min(self.req_to_token_pool.size, self.max_running_requests):
            return False
        # Last, since it walks all running requests: a full worker would for each that waits.
        return self._replay_kv_room(self.running_batch.reqs) >= machine.lag + machine.seal_lag

    def take_over_past_retracted(self: Scheduler) -> None:
        """Upstream looks at no transfer while a retracted request waits for slots. Those of requests whose
        KV is here, and who commit only when they are looked at, may be the very slots that it waits for.
        They pass it where there are slots for one more, or nobody runs who would free any."""
        free = self.token_to_kv_pool_allocator.available_size()
        if free < get_disagg().num_reserved_decode_tokens and not self.running_batch.is_empty():
            return
        rids = [req.rid for req in self.handoff_reqs()]
        self.waiting_queue.extend(self.disagg_decode_transfer_queue.pop_transferred(rids))

    def _commit_handoff(self: Scheduler, session: Session) -> None:
        """Hand the request to upstream's commit: it appends t(b) again without counting it twice,
        and the PREBUILT batch makes t(b) the input of the first own decode step."""
        decode_req, machine = session.request, session.machine
        req, kv = decode_req.req, decode_req.req.kv
        written = len(req.origin_input_ids) + machine.boundary - 1
        # P may have ended sooner than it was asked to, with its last entry replayed already.
        self.free_handoff_kv(req, written)
        assert kv.kv_committed_len == kv.kv_allocated_len == written, (
            f"handoff commit of {req.rid} (room {req.bootstrap_room}): KV rows {kv.kv_committed_len}, expected {written}"
        )
        decode_req.is_rebootstrap = True
        session.record.mark("draining")  # nothing was left to drain when the seal came
        session.record.mark("committed")
        self._publish_record(session, COMMITTED)
        req.pd_rebootstrap_forced_output_id = req.output_ids.pop()
        self._detach(session)
        self.decode_before_replay()
        # Its PREBUILT batch has nothing new to stream.
        req.handoff_streamed = True

    def _leave_for_ordinary_path(self: Scheduler, session: Session) -> None:
        """Nothing was relayed: the request goes on as if the handoff were off."""
        machine, req = session.machine, session.request.req
        reason = self._abort_reason(machine)
        silent = machine.abort_reason is AbortReason.NOT_OPENED
        self.handoff_peers.refused(session.counterpart, reason, silent=silent)
        self._detach(session)
        self._take_ordinary_path(req, reason)

    def _fail_transfer(self: Scheduler, decode_req: DecodeRequest) -> None:
        """Make upstream's failure path end the request at the next poll."""
        receiver = decode_req.kv_receiver
        machine = decode_req.req.handoff.machine
        receiver.abort()
        receiver.kv_mgr.record_failure(
            decode_req.req.bootstrap_room,
            f"Seamless handoff ended after {machine.relayed} tokens: "
            f"{self._abort_reason(machine) or 'prefill generates no more'}",
        )

    def _detach(self: Scheduler, session: Session) -> None:
        req = session.request.req
        req.handoff = None
        self._handoff_offers.pop(session.machine.room, None)
        for rejected, number in session.machine.rejected.items():
            self.handoff_metrics.dropped(rejected, number)
        self.handoff.retire(session)
        self.note_handoff_states()

    @staticmethod
    def _abort_reason(machine: DecodeMachine) -> str:
        return machine.abort_reason.name.lower() if machine.abort_reason is not None else ""

    def note_handoff_state(self: Scheduler, session: Session) -> None:
        if session.machine.state in (DecodeState.SEALING, DecodeState.DRAINING):
            session.record.mark(session.machine.state.value)

    def _publish_record(
        self: Scheduler, session: Session, outcome: str, reason: str = ""
    ) -> None:
        machine, req = session.machine, session.request.req
        record = session.record.fields
        record |= {
            "outcome": outcome,
            "tokens_bridged": max(0, len(req.output_ids) - 1),
            "boundary": machine.boundary if outcome == COMMITTED else None,
            "replay_rounds": machine.rounds,
            "replayed": machine.replayed,
            "alone": machine.alone,
            "resumes": max(0, machine.term - 1),
        }
        if reason:
            record["reason"] = reason
        if session.verification is not None:
            self.compare_replay(session)
            record["verify"] = session.verification.summary()
        req.time_stats.handoff = session.record
        self.observe_decode_handoff(session, len(req.output_ids))
        self.note_handoff_end(req, outcome, reason)
