"""Replay on a decode worker: rebuild the KV of the tokens that P logged, on top of the prompt KV."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Tuple

import torch

from sglang.srt.disaggregation.handoff.cost import LinearCost, StepCost
from sglang.srt.disaggregation.handoff.deadlines import SEAL
from sglang.srt.disaggregation.handoff.messages import AbortReason
from sglang.srt.disaggregation.handoff.pace import (
    SEAL_LAG,
    LateSeals,
    SealAhead,
    SealAheadOfSteps,
)
from sglang.srt.disaggregation.handoff.sessions import Session
from sglang.srt.disaggregation.handoff.verify import Prediction
from sglang.srt.disaggregation.handoff.worth import ReplayWorth
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.runtime_context import get_disagg, get_schedule
from sglang.srt.utils.common import is_pin_memory_available

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import GenerationBatchResult, Scheduler

# What upstream's admission counts for a request whose length is not known.
CLIP_MAX_NEW_TOKENS = envs.SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION.get()
# By decode steps D gains on P by a part of a step at a time; past this many P is asked to stop all the same.
MAX_STEPS_BEFORE_SEAL = 64


class SchedulerHandoffReplayMixin:
    """A round is one forward over logged tokens, batched over requests: an EXTEND over several tokens
    of each, or in replay mode ``decode`` a decode step over one token of each. It alternates with
    the running batch, which loses at most one step per round."""

    def init_handoff_replay(self: Scheduler) -> None:
        self._replays_by_steps = get_disagg().disaggregation_handoff_replay_mode == "decode"
        self.verifies_replay = get_disagg().disaggregation_handoff_verify
        setting = envs.SGLANG_DISAGGREGATION_HANDOFF_MAX_REPLAY_TOKENS
        self._max_replay_tokens = setting.get()
        if self._max_replay_tokens < 1:
            raise ValueError(f"{setting.name} must be at least 1, got {setting.get()}")
        chunk = get_schedule().chunked_prefill_size
        if chunk is not None and chunk > 0:  # what upstream sizes the buffers of an extend for
            self._max_replay_tokens = min(self._max_replay_tokens, chunk)
        self._replayed_last = False
        self._replay_cost = StepCost() if self._replays_by_steps else LinearCost()
        self.replay_worth = ReplayWorth(
            self._replay_cost, envs.SGLANG_DISAGGREGATION_HANDOFF_DECODE_SHARE.get()
        )
        self._late_seals = LateSeals()
        # (tokens, when launched), seconds of rank 0's clock as all ranks have heard it.
        self._rounds_launched: Deque[Tuple[int, float]] = deque()
        self._rounds_ended: List[Tuple[int, float]] = []
        self._round_known_at = 0.0

    def replay_pace(self: Scheduler) -> Dict[str, Any]:
        """When a new DecodeMachine asks P to stop, as its arguments."""
        if self._replays_by_steps:
            return dict(
                seal_lag=0,
                pace=SealAheadOfSteps(0, self._replay_cost, self._late_seals),
                max_rounds_before_seal=MAX_STEPS_BEFORE_SEAL,
            )
        return dict(pace=SealAhead(SEAL_LAG, self._replay_cost, self._late_seals))

    def note_decode_step(self: Scheduler, batch: ScheduleBatch) -> None:
        """The result of a decode step is here."""
        if batch.forward_mode.is_decode():
            self.replay_worth.step_launched(
                batch.forward_iter, batch.launch_ts, batch.after_idle_gap
            )

    # ------------------------------------------------------------------------- a round
    def next_replay_batch(
        self: Scheduler, running_batch: ScheduleBatch
    ) -> Optional[ScheduleBatch]:
        """The next round, or None."""
        if self._replayed_last and not running_batch.is_empty():
            self._replayed_last = False
            return None
        most = 1 if self._replays_by_steps else self._max_replay_tokens
        wanting = [
            s for s in self.handoff if s.machine.replay_range(most) is not None
        ]
        if not wanting:
            self._replayed_last = False
            return None
        room = min(self._max_replay_tokens, self._replay_kv_room(running_batch.reqs))
        spans: List[Tuple[Req, int, int]] = []
        for session in wanting:
            # More requests can wait in the transfer queue than forward buffers have rows.
            if len(spans) == self.max_running_requests:
                break
            span = session.machine.replay_range(min(most, room))
            if span is None:
                self._wait_for_replay_slots(session)
                continue
            first, last = span
            room -= last - first + 1
            session.machine.round_started(last)
            session.in_flight, session.stalled_since = session.in_flight + 1, None
            session.record.start_round(last - first + 1)
            spans.append((session.request.req, first, last))
        self._replayed_last = bool(spans)
        if not spans:
            return None
        batch = (
            self._decode_over_log(spans)
            if self._replays_by_steps
            else self._extend_over_log(spans)
        )
        if self.verifies_replay:
            self._ask_for_predictions(batch)
        tokens = sum(last - first + 1 for _, first, last in spans)
        self._rounds_launched.append((tokens, self.handoff.now))
        return batch

    def decode_before_replay(self: Scheduler) -> None:
        """A client waits at its switch: the running batch's turn comes before the next round."""
        self._replayed_last = True

    def _extend_over_log(
        self: Scheduler, spans: List[Tuple[Req, int, int]]
    ) -> ScheduleBatch:
        """An EXTEND over the output entries of each span, on top of its request's KV."""
        for req, _, last in spans:
            req.prefix_len = req.kv.kv_committed_len
            req.refresh_fill_ids()
            req.extend_end = len(req.origin_input_ids) + last
            # Not a cache hit: keep it out of cached_tokens.
            req.already_computed, req._cache_breakdown_computed = req.prefix_len, True
        batch = self.new_handoff_batch([req for req, _, _ in spans])
        batch.prepare_for_extend()
        return batch

    def _decode_over_log(
        self: Scheduler, spans: List[Tuple[Req, int, int]]
    ) -> ScheduleBatch:
        """A decode step whose inputs are the entries, not what the step before has sampled."""
        batch = self.new_handoff_step([req for req, _, _ in spans])
        batch.prefill_input_ids_cpu = torch.tensor(
            [req.output_ids[first - 1] for req, first, _ in spans],
            dtype=torch.int64,
            pin_memory=is_pin_memory_available(self.device),
        )
        return batch

    def is_replay_batch(self: Scheduler, batch: Optional[ScheduleBatch]) -> bool:
        """Whether this worker is D and the batch a replay round. Requests that run have no session."""
        return (
            self.disaggregation_mode == DisaggregationMode.DECODE
            and batch is not None
            and any(req.handoff is not None for req in batch.reqs)
        )

    def process_replay_result(
        self: Scheduler, batch: ScheduleBatch, result: GenerationBatchResult
    ) -> None:
        """The KV of the round is written. What the model has sampled is not used."""
        self._rounds_ended.append(self._rounds_launched.popleft())
        self.handoff.clock_wanted = True
        predictions = self._predictions(batch, result) if self.verifies_replay else []
        took = 0.0
        for number, req in enumerate(batch.reqs):
            session = req.handoff
            session.in_flight -= 1
            tokens, took = session.record.end_round()
            self.handoff_metrics.tokens("replayed", tokens)
            if predictions:
                # The round's entries predict the next ones.
                first = session.machine.replayed + 2
                session.verification.predicted(first, predictions[number])
                self.compare_replay(session)
            self.handoff.send(session, session.machine.round_done(self.handoff.now))
            self.note_handoff_state(session)
        self.handoff_metrics.replay_round(took)

    def drop_replay_batch(self: Scheduler) -> None:
        """A retracting pause is about to retract the last batch too if it is an EXTEND: on D a
        replay round, done by now, whose requests stay in the transfer queue."""
        if self.is_replay_batch(self.last_batch):
            self.last_batch = None

    def note_replay_cost(self: Scheduler) -> None:
        """At the first iteration after a round's result: so long a round keeps its requests from going on."""
        now = self.handoff.now
        for tokens, launched in self._rounds_ended:
            # One launched behind another has waited for it.
            seconds = now - max(launched, self._round_known_at)
            self._replay_cost.took(tokens, seconds)
            self.replay_worth.round_took(now, seconds, self.running_batch.batch_size())
            self._round_known_at = now
        self._rounds_ended.clear()
        self.handoff.clock_wanted = False

    # ----------------------------------------------------------------------- KV slots
    def _replay_kv_room(self: Scheduler, running: List[Req]) -> int:
        """KV slots that replays may take, in tokens. They leave to the running requests the next
        decode step's, so that it causes no retraction, and those by which one of them can end when
        all others are retracted: upstream admits by that rule, and a request whose KV is replayed
        can't be retracted."""
        free = self.token_to_kv_pool_allocator.available_size()
        if not running:
            return free
        longest = max(
            len(r.origin_input_ids)
            + min(r.sampling_params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
            for r in running
        )
        held = sum(len(r.origin_input_ids) + len(r.output_ids) for r in running)
        return free - max(len(running), longest - held)

    def _wait_for_replay_slots(self: Scheduler, session: Session) -> None:
        """The KV pool is full. Past the seal deadline P, if it was asked to stop, goes on until
        there is room. Else the request waits for others to free slots, and ends in an error when
        none will."""
        now = self.handoff.now
        if session.stalled_since is None:
            session.stalled_since = now
        if now - session.stalled_since < self.handoff.timing.seal:
            return
        resumed = session.machine.resume(now)
        if resumed:
            session.stalled_since = None
            self.note_handoff_deadline(session, SEAL)
            self.handoff.send(session, resumed)
        elif self._waits_in_vain(session):
            self.handoff.send(
                session, session.machine.abort(now, AbortReason.NO_SLOT)
            )
            # Its slots may be what the others wait for.
            for other in self.handoff:
                other.stalled_since = None

    def _waits_in_vain(self: Scheduler, session: Session) -> bool:
        """Nothing runs that could free slots, and either all who hold any wait too, with P's log
        closed, or nothing has moved for the silence timeout: P's own pool may be full."""
        if not self.running_batch.is_empty() or self.waiting_queue:
            return False
        if session.machine.boundary is not None and all(
            r.req.handoff is not None and r.req.handoff.stalled_since is not None
            for r in self.disagg_decode_transfer_queue.queue
        ):
            return True
        moved_at = max(session.stalled_since, session.relayed_at)
        return self.handoff.now - moved_at >= self.handoff.timing.silence

    # ------------------------------------------------------------------- verification
    @staticmethod
    def _ask_for_predictions(batch: ScheduleBatch) -> None:
        """Let the forward give the two likeliest next tokens after each of its inputs."""
        rows = len(batch.reqs)
        batch.return_logprob = True
        batch.top_logprobs_nums, batch.token_ids_logprobs = [2] * rows, [None] * rows
        if batch.forward_mode.is_extend():
            batch.extend_logprob_start_lens = [0] * rows
            # Whose log probability is not looked at: any.
            batch.extend_input_logprob_token_ids = torch.zeros(
                batch.extend_num_tokens, dtype=torch.int64
            )

    @staticmethod
    def _predictions(
        batch: ScheduleBatch, result: GenerationBatchResult
    ) -> List[List[Prediction]]:
        """Of each request, after each of the round's entries."""
        output = result.logits_output
        if batch.forward_mode.is_extend():
            values, ids = output.input_top_logprobs_val, output.input_top_logprobs_idx
        else:
            values = [[row] for row in output.next_token_top_logprobs_val]
            ids = [[row] for row in output.next_token_top_logprobs_idx]
        return [
            [
                Prediction(int(best), float(value - second))
                for (value, second), (best, _) in zip(request_values, request_ids)
            ]
            for request_values, request_ids in zip(values, ids, strict=True)
        ]

    def compare_replay(self: Scheduler, session: Session) -> None:
        """Compare and count what can be by now."""
        compared, mismatches = session.verification.compare(session.machine.log)
        self.handoff_metrics.verified(compared, [m.margin for m in mismatches])
