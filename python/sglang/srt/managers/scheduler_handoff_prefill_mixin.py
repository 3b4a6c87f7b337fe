"""The seamless handoff on a prefill worker: decode on while the prompt KV is in flight."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Optional, Tuple

import torch

from sglang.srt.disaggregation.base import KVPoll
from sglang.srt.disaggregation.handoff.admission import (
    ADMITTED,
    BridgeAdmission,
    Limits,
)
from sglang.srt.disaggregation.handoff.eligibility import request_misfit
from sglang.srt.disaggregation.handoff.finish import generation_end
from sglang.srt.disaggregation.handoff.messages import (
    AbortReason,
    FrameError,
    Offer,
    decode_offer,
)
from sglang.srt.disaggregation.handoff.metrics import (
    COMMITTED,
    FAILED,
    FINISHED,
)
from sglang.srt.disaggregation.handoff.prefill_machine import (
    HOLD_ENGINE,
    HOLD_KV,
    OPEN_STATES,
    PrefillMachine,
    PrefillState,
)
from sglang.srt.disaggregation.handoff.sessions import Session
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import FINISH_LENGTH
from sglang.srt.utils.common import async_h2d

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import GenerationBatchResult, Scheduler


BRIDGE_STEP = 1  # tokens, as the forwards over prompts are counted


class SchedulerHandoffPrefillMixin:
    """A bridge batch is rebuilt at every step from the live sessions and never meets
    ``running_batch``: admission, retraction and the radix tree see an ordinary prefill worker."""

    def init_handoff_prefill(self: Scheduler, kv_manager: Any) -> None:
        self._handoff_transfer_infos = kv_manager.transfer_infos
        self.bridges = BridgeAdmission(
            Limits(
                tokens=envs.SGLANG_DISAGGREGATION_HANDOFF_MAX_BRIDGE_TOKENS.get(),
                requests=envs.SGLANG_DISAGGREGATION_HANDOFF_MAX_BRIDGES.get(),
                share=envs.SGLANG_DISAGGREGATION_HANDOFF_PREFILL_SHARE.get(),
                weighs=envs.SGLANG_DISAGGREGATION_HANDOFF_ADMISSION.get(),
            )
        )
        # (tokens, when launched) of the forwards whose results are not here, seconds.
        self._launched: Deque[Tuple[int, float]] = deque()
        self._result_at = 0.0

    # -------------------------------------------------------------- a request's way in
    def save_handoff_max_new_tokens(self: Scheduler, req: Req) -> None:
        """Upstream sets max_new_tokens to 1 next; a requeued request keeps its first value."""
        if req.handoff_max_new_tokens is None:
            req.handoff_max_new_tokens = req.sampling_params.max_new_tokens

    def connect_handoff_peer(self: Scheduler, req: Req) -> None:
        """The transfer metadata is here: connect to D while the prompt is computed, so that t1
        does not wait for the handshake."""
        waited = self._bootstraps_for(req)
        looked = time.monotonic() - waited >= self._result_at  # all the time, in no forward
        self.bridges.bootstrap_took(waited, at_most=not looked)
        offer, _ = self._read_offer(req)
        if offer is not None:
            self.handoff.channel.connect(offer.endpoint)

    def start_bridge(self: Scheduler, req: Req, first_token: int) -> None:
        """The prompt is computed: log t1, send it, and end P's own HTTP answer.

        Routers may hold D's bytes until P's answer has ended, so this comes before the KV is sent.
        """
        offer, refusal = self._read_offer(req)
        self.handoff.now = time.monotonic()
        # D has judged the request, but by its own default sampling parameters.
        misfit = self._misfit(req)
        if misfit is None and offer is not None:
            refusal = self._why_not_accept(offer)
        if misfit is not None or refusal:
            if misfit is None:
                self.handoff_peers.refused(self._decode_peer(req), refusal)
            self.note_ordinary_path(req, misfit or refusal)
            return
        received = req.time_stats.scheduler_recv_time or time.perf_counter()
        machine = PrefillMachine(
            prompt_len=len(req.origin_input_ids),
            cached_tokens=req.cached_tokens,
            fingerprint=self.handoff_fingerprint(),
            budget=self._log_budget(req, offer),
            prefill_us=int(max(0.0, time.perf_counter() - received) * 1e6),
            endpoint=self.handoff.channel.endpoint,
            timing=self.handoff.timing,
            room=req.bootstrap_room,
            nonce=offer.nonce,
        )
        session = Session(
            req,
            machine,
            offer.endpoint,
            counterpart=self._decode_peer(req),
            worth=offer.worth,
        )
        session.record = self.new_prefill_record(req)
        self.handoff_metrics.attempt()
        self.handoff_peers.offered(session.counterpart)
        self.handoff_peers.opened(session.counterpart, offer.endpoint)
        self.handoff.add(session)
        req.handoff = session
        self.handoff.send(
            session,
            machine.start(
                self.handoff.now, first_token, self._end_of(req, first_token, 1)
            ),
        )
        self._end_prefill_response(req)

    def _log_budget(self: Scheduler, req: Req, offer: Offer) -> int:
        """Tokens that the request's log may have."""
        # 0 are asked for where this worker cuts the prompt and D doesn't; D refuses then
        return max(1, min(self._bridge_tokens(req, offer), req.handoff_max_new_tokens))

    def _bridge_tokens(self: Scheduler, req: Req, offer: Offer) -> int:
        """The same by admission: t1 alone if the request is not bridged."""
        now = self.handoff.now
        self.bridges.transfers.begins(
            now, offer.nonce, len(req.origin_input_ids) - req.start_send_idx
        )
        refusal = self._why_not_bridge(offer.nonce, offer.worth)
        if refusal == ADMITTED:
            return self.bridges.limits.tokens
        self.note_not_bridged(req, refusal)
        return 1

    def _why_not_bridge(self: Scheduler, nonce: bytes, worth: int) -> str:
        return self.bridges.refusal(
            self.handoff.now,
            nonce,
            waiting=self._prompt_tokens_waiting(),
            bridging=sum(
                s.machine.state in OPEN_STATES and s.machine.nonce != nonce
                for s in self.handoff
            ),
            worth=worth,
            bootstrapping=[
                (len(r.origin_input_ids), self._bootstraps_for(r))
                for r in self.disagg_prefill_bootstrap_queue.queue
            ],
        )

    @staticmethod
    def _bootstraps_for(req: Req) -> float:
        return time.perf_counter() - req.time_stats.prefill_bootstrap_queue_entry_time

    def _reconsider_bridges(self: Scheduler) -> None:
        """Requests that had come during a prompt's forward were not read when it was admitted: look again
        before its first step. A log of two tokens costs D as long a replay round as one of twenty."""
        self.handoff.now = time.monotonic()
        for session in self.handoff:
            machine = session.machine
            if (
                machine.state is not PrefillState.BRIDGING
                or machine.term > 1
                or len(machine.log) + session.in_flight > 1
            ):
                continue
            refusal = self._why_not_bridge(machine.nonce, session.worth)
            if refusal != ADMITTED:
                self.note_not_bridged(session.request, refusal)
                self.handoff.send(session, machine.stop_after(self.handoff.now, 0))

    def _read_offer(self: Scheduler, req: Req) -> Tuple[Optional[Offer], str]:
        """D's offer for this request, or None and why: it made none, or none that this side can read."""
        infos = self._handoff_transfer_infos.get(req.bootstrap_room) or {}
        frame = next((i.handoff_offer for i in infos.values() if i.handoff_offer), None)
        if frame is None:
            return None, "no_offer"
        try:
            return decode_offer(frame), ""
        except FrameError as e:
            self.handoff.channel.drop(f"offer_{e.reason}", str(e))
            return None, f"offer_{e.reason}"

    def _why_not_accept(self: Scheduler, offer: Offer) -> str:
        # The transfer metadata is kept by room: a second request of the same room reads the same offer.
        if self.handoff.knows(offer.nonce):
            return "offer_repeated"
        # A session with such a D would hold the request's KV until the silence timeout.
        if self.handoff.is_silent(offer.endpoint):
            return "peer_silent"
        return ""

    @staticmethod
    def _misfit(req: Req) -> Optional[str]:
        """By the request's own length, not the 1 that upstream has put."""
        params = req.sampling_params
        params.max_new_tokens, one = req.handoff_max_new_tokens, params.max_new_tokens
        misfit = request_misfit(req)
        params.max_new_tokens = one
        return misfit

    def _decode_peer(self: Scheduler, req: Req) -> str:
        """The KV socket of the decode worker that asks for this request's KV."""
        infos = self._handoff_transfer_infos.get(req.bootstrap_room) or {}
        info = next(iter(infos.values()), None)
        return "" if info is None else self.handoff_counterpart(info.endpoint, info.dst_port)

    def _end_prefill_response(self: Scheduler, req: Req) -> None:
        """Stream the final output that upstream would send after the transfer; upstream's own is
        then skipped, since ``finished_output`` stays set. Inside, the request lives on."""
        req.finished_reason = FINISH_LENGTH(length=0)
        req.has_log_time_stats = True  # not yet: the request's times are not complete
        self.output_streamer.stream_output([req], False)
        req.has_log_time_stats = False
        req.finished_reason = req.finished_len = None

    @staticmethod
    def _end_of(req: Req, token: int, length: int):
        return generation_end(req, token, length, req.handoff_max_new_tokens)

    # ------------------------------------------------------------------- bridge steps
    def next_bridge_batch(
        self: Scheduler, between_prompts: bool = False
    ) -> Optional[ScheduleBatch]:
        """One decode step for every session that may generate, or None."""
        self._reconsider_bridges()
        sessions = [s for s in self.handoff if self._wants_step(s)]
        prompts_wait = between_prompts and (
            bool(self.waiting_queue) or self.chunked_req is not None
        )
        if not sessions or not self.bridges.may_step(time.monotonic(), prompts_wait):
            return None
        # The oldest first: one that gets to its end leaves its slots to the others.
        slots = self._bridge_slots(len(sessions))
        for number, session in enumerate(sessions):
            if number < slots:
                session.machine.unhold(HOLD_KV)
            else:
                session.machine.hold(HOLD_KV)
        sessions = [s for s in sessions if s.machine.may_generate(self.handoff.now)]
        if not sessions:
            return None
        batch = self.new_handoff_step([s.request for s in sessions])
        for session in sessions:
            session.in_flight += 1
        self._launched.append((BRIDGE_STEP, time.monotonic()))
        return batch

    def bridge_or_make_way(
        self: Scheduler, prompts: Optional[ScheduleBatch]
    ) -> Optional[ScheduleBatch]:
        """What to launch next: the batch of prompts that upstream has made, else a bridge step."""
        if prompts is not None:
            self._make_way_for(prompts)
            return prompts
        batch = self.next_bridge_batch()
        if batch is None and not (self.enable_overlap and self.result_queue):
            # Figures begin anew, also if a result has never come.
            self._launched.clear()
        return batch

    def _make_way_for(self: Scheduler, prompts: ScheduleBatch) -> None:
        """While prompts are computed a bridged request gets no token, and its D no answer: those whose
        KV will have gone when the forward ends are D's to take over as soon as it has."""
        now = self.handoff.now = time.monotonic()
        for session in self.handoff:
            machine = session.machine
            if self.bridges.makes_way(
                now, machine.nonce, session.kv_sent, prompts.extend_num_tokens
            ):
                self.handoff.send(session, machine.stop_after(now, session.in_flight))
        self._launched.append((prompts.extend_num_tokens, now))

    def _prompt_tokens_waiting(self: Scheduler) -> int:
        chunked = self.chunked_req
        rest = 0 if chunked is None else self._tokens_left(chunked)
        # The overlap loop has launched the next prompts before it reads the result of these.
        rest += sum(tokens for tokens, _ in self._launched if tokens > BRIDGE_STEP)
        return rest + sum(len(req.origin_input_ids) for req in self.waiting_queue)

    @staticmethod
    def _tokens_left(chunked: Req) -> int:
        return max(0, len(chunked.origin_input_ids) - chunked.kv.kv_committed_len)

    def note_forward_time(self: Scheduler, batch: ScheduleBatch) -> None:
        """The result of a bridge step or of prompts is here."""
        now = time.monotonic()
        if not self._launched:
            return
        tokens, launched = self._launched.popleft()
        # One launched behind another has waited for it.
        seconds = now - max(launched, self._result_at)
        self._result_at = now
        if batch.forward_mode.is_decode():
            self.bridges.step_took(seconds)
        else:
            self.bridges.prompts_took(tokens, seconds)

    def end_generation_of_handoffs(self: Scheduler) -> None:
        """The weights change now: no answer is to be of both. D takes over when the KV is there."""
        if self.disaggregation_mode == DisaggregationMode.PREFILL:
            for session in self.handoff:
                session.machine.hold(HOLD_ENGINE)

    def _wants_step(self: Scheduler, session: Session) -> bool:
        machine = session.machine
        if machine.state is PrefillState.PAUSED:
            if machine.holds != {HOLD_KV}:
                return False
        elif not machine.may_generate(self.handoff.now):
            return False
        if len(machine.log) + session.in_flight >= machine.budget:
            return False
        return self._rewind_bridge(session)

    def _rewind_bridge(self: Scheduler, session: Session) -> bool:
        """After Resume the row may hold KV of steps that the seal discarded: give it back and
        put the log's last token in as the next input. False while such a step is in flight."""
        req, machine = session.request, session.machine
        if self._steps_follow_log(session):
            return True
        if session.in_flight:
            return False
        self.free_handoff_kv(req, self._rows_of_log(session))
        last = machine.log.slice(len(machine.log), len(machine.log) + 1)
        self.future_map.stash_bonus_tokens(
            *(
                async_h2d(numbers, dtype=torch.int64, device=self.device)
                for numbers in ([req.kv.req_pool_idx], last)
            )
        )
        return True

    @staticmethod
    def _rows_of_log(session: Session) -> int:
        """KV rows of the prompt and the log; the last entry's is written by the next step."""
        return len(session.request.origin_input_ids) + len(session.machine.log) - 1

    def _steps_follow_log(self: Scheduler, session: Session) -> bool:
        """The steps in flight go on from the log's end."""
        rows = session.request.kv.kv_committed_len
        return rows == self._rows_of_log(session) + session.in_flight

    def _bridge_slots(self: Scheduler, wanted: int) -> int:
        """How many of the ``wanted`` KV slots there are for a bridge step, 0 or less for none: it takes no slot that
        the prompt being prefilled in chunks still needs."""
        chunked = self.chunked_req
        reserve = 0 if chunked is None else self._tokens_left(chunked)
        allocator = self.token_to_kv_pool_allocator
        if allocator.check_decode_capacity(
            num_tokens=wanted + reserve, tree_cache=self.tree_cache
        ):
            return wanted
        return allocator.available_size() - reserve  # with all evicted that could be

    def process_bridge_result(
        self: Scheduler, batch: ScheduleBatch, result: GenerationBatchResult
    ) -> None:
        """Log the sampled tokens. One of a log closed meanwhile is dropped, also if D has resumed it since."""
        self.handoff.now = time.monotonic()
        for req, token in zip(batch.reqs, result.next_token_ids.tolist(), strict=True):
            session = req.handoff
            follows = self._steps_follow_log(session)
            session.in_flight -= 1
            if not follows:
                continue
            length = len(session.machine.log) + 1
            self.handoff.send(
                session,
                session.machine.sampled(
                    self.handoff.now, token, self._end_of(req, token, length)
                ),
            )
        self.note_handoff_states()

    # ------------------------------------------------------------ a request's way out
    def handoff_keeps_prefill(self: Scheduler, req: Req, poll: KVPoll) -> bool:
        """Whether ``req`` stays in the inflight queue though its transfer has concluded: its KV
        may still be read by a bridge step, or D has not said that it needs P no more."""
        session = req.handoff
        if session is None:
            return False
        if poll not in (KVPoll.Success, KVPoll.Failed):
            self.bridges.transfers.goes_on(time.monotonic(), session.machine.nonce)
            return False
        if session.transfer_ended is None:
            session.transfer_ended = time.perf_counter()
            session.kv_sent = poll == KVPoll.Success
            now = time.monotonic()
            self.bridges.transfers.ends(now, session.machine.nonce, session.kv_sent)
            if session.kv_sent:
                session.record.mark("kv_sent")
                self._leave_room(req)
            else:
                session.machine.kv_failed(now)
        if session.in_flight or not session.machine.done:
            return True
        self.free_handoff_kv(req, len(req.origin_input_ids))
        # The wait for D is no part of the transfer that upstream measures next.
        req.time_stats.prefill_transfer_queue_entry_time += (
            time.perf_counter() - session.transfer_ended
        )
        req.handoff = None
        self._count_prefill_outcome(session)
        self.handoff.retire(session)
        self.note_handoff_states()
        return False

    @staticmethod
    def _leave_room(req: Req) -> None:
        """Give the room back now, as upstream does when a transfer is over: D may retract the
        request soon after the commit, and then asks for its KV again in the same room."""
        sender = req.disagg_kv_sender
        sender.clear()
        # Later ones would hit the room's next owner.
        sender.clear = sender.abort = lambda: None

    def _count_prefill_outcome(self: Scheduler, session: Session) -> None:
        machine = session.machine
        outcome = {
            PrefillState.COMMITTED: COMMITTED,
            PrefillState.FINISHED: FINISHED,
            PrefillState.ABORTED: FAILED,
        }[machine.state]
        reason = machine.abort_reason.name.lower() if outcome == FAILED else ""
        if machine.abort_reason is AbortReason.CONFIG:
            self.handoff_peers.refused(session.counterpart, reason)
        self.observe_prefill_handoff(session, outcome)
        self.note_handoff_end(session.request, outcome, reason)
        self.handoff_metrics.tokens("bridged", len(machine.log) - 1)
