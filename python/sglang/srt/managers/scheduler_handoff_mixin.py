"""The seamless handoff in the scheduler: what both roles share.

Every method here is called by one inserted line of an upstream file, guarded by
``self.handoff is not None``, that is by ``--disaggregation-seamless-handoff``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, List, Optional

import torch

from sglang.srt.disaggregation.handoff.channel import HandoffChannel
from sglang.srt.disaggregation.handoff.eligibility import refuse_unsupported_state
from sglang.srt.disaggregation.handoff.fingerprint import config_fingerprint
from sglang.srt.disaggregation.handoff.held_inputs import WEIGHT_UPDATES, HeldInputs
from sglang.srt.disaggregation.handoff.messages import (
    FROM_DECODE,
    FROM_PREFILL,
    AbortReason,
)
from sglang.srt.disaggregation.handoff.sessions import (
    HandoffInput,
    Session,
    SessionTable,
)
from sglang.srt.disaggregation.handoff.timing import Timing
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler_handoff_decode_mixin import (
    SchedulerHandoffDecodeMixin,
)
from sglang.srt.managers.scheduler_handoff_observability_mixin import (
    SchedulerHandoffObservabilityMixin,
)
from sglang.srt.managers.scheduler_handoff_prefill_mixin import (
    SchedulerHandoffPrefillMixin,
)
from sglang.srt.runtime_context import get_serving
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.utils.common import async_h2d
from sglang.utils import TypeBasedDispatcher

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import GenerationBatchResult, Scheduler


class SchedulerHandoffMixin(
    SchedulerHandoffPrefillMixin,
    SchedulerHandoffDecodeMixin,
    SchedulerHandoffObservabilityMixin,
):
    handoff: Optional[SessionTable] = None

    def init_handoff(self: Scheduler) -> None:
        """Bind the control channel and get ready for sessions."""
        decode = self.disaggregation_mode == DisaggregationMode.DECODE
        kv_manager = (
            self.disagg_decode_prealloc_queue
            if decode
            else self.disagg_prefill_bootstrap_queue
        ).kv_manager
        refuse_unsupported_state(kv_manager.kv_args.state_types, self.model_config)
        timing = Timing(
            resend=envs.SGLANG_DISAGGREGATION_HANDOFF_RESEND_INTERVAL.get(),
            lease=envs.SGLANG_DISAGGREGATION_HANDOFF_LEASE.get(),
            seal=envs.SGLANG_DISAGGREGATION_HANDOFF_SEAL_TIMEOUT.get(),
            commit=envs.SGLANG_DISAGGREGATION_HANDOFF_COMMIT_TIMEOUT.get(),
            silence=envs.SGLANG_DISAGGREGATION_HANDOFF_SILENCE_TIMEOUT.get(),
        )
        self.init_handoff_observability()
        channel = HandoffChannel(
            kv_manager.local_ip,
            FROM_PREFILL if decode else FROM_DECODE,
            self.handoff_metrics,
        )
        self.handoff = SessionTable(channel, timing, time.monotonic())
        self.handoff.on_deadline = self.note_handoff_deadline
        self._inputs_after_handoffs = HeldInputs()
        if decode:
            self.init_handoff_decode(kv_manager)
        else:
            self.init_handoff_prefill(kv_manager)
        self._request_dispatcher += TypeBasedDispatcher(
            [(HandoffInput, self.handle_handoff_input)]
        )

    def handoff_fingerprint(self: Scheduler) -> bytes:
        """Asked for each request: weights may be updated on one worker before the other."""
        return config_fingerprint(
            self.model_config.hf_config,
            dtype=str(self.model_config.dtype),
            quantization=self.model_config.quantization,
            eos=self.model_config.hf_eos_token_id or (),
            weight_version=get_serving().weight_version,
        )

    def handle_handoff_input(self: Scheduler, event: HandoffInput) -> None:
        self.handoff.handle(event)
        self.note_handoff_states()

    def free_handoff_kv(self: Scheduler, req: Req, length: int) -> None:
        """Give back the row's slots from position ``length`` on, so that upstream finds the request
        as without what the handoff wrote there."""
        if req.kv.kv_allocated_len > length:
            self.tree_cache.free_kv_row(req.kv, [(length, req.kv.kv_allocated_len)])
            req.kv.kv_committed_len = req.kv.kv_allocated_len = length

    def new_handoff_batch(self: Scheduler, reqs: List[Req]) -> ScheduleBatch:
        return ScheduleBatch.init_new(
            reqs,
            self.req_to_token_pool,
            self.token_to_kv_pool_allocator,
            self.tree_cache,
            self.model_config,
            self.enable_overlap,
            self.spec_algorithm,
        )

    def new_handoff_step(self: Scheduler, reqs: List[Req]) -> ScheduleBatch:
        """A decode step over requests that are in no running batch. Each row's input is what was
        sampled for it last, gathered from the future map, unless the caller stages another."""
        batch = self.new_handoff_batch(reqs)
        rows = [r.kv.req_pool_idx for r in reqs]
        lens = [r.kv.kv_committed_len for r in reqs]
        batch.req_pool_indices_cpu = torch.tensor(rows, dtype=torch.int64)
        batch.seq_lens_cpu = torch.tensor(lens, dtype=torch.int64)
        batch.req_pool_indices = async_h2d(rows, dtype=torch.int64, device=self.device)
        batch.seq_lens = async_h2d(lens, dtype=torch.int64, device=self.device)
        batch.orig_seq_lens = async_h2d(lens, dtype=torch.int32, device=self.device)
        batch.seq_lens_sum = sum(lens)
        batch.input_ids = None
        # Models with M-RoPE look for a text-only request's entry too.
        batch.multimodal_inputs = [r.multimodal_inputs for r in reqs]
        batch.sampling_info = SamplingBatchInfo.from_schedule_batch(
            batch, self.model_config.vocab_size
        )
        # Else a polling event loop would run the chunk step again for this batch.
        batch.prefill_chunk_processed = True
        batch.prepare_for_decode()
        return batch

    @staticmethod
    def _handoff_req(session: Session) -> Req:
        """D's session holds a DecodeRequest around the Req that P's holds."""
        return getattr(session.request, "req", session.request)

    def handoff_reqs(self: Scheduler) -> List[Req]:
        """The requests that are being handed over, in no batch of upstream's."""
        return [self._handoff_req(session) for session in self.handoff]

    def drop_handoff_timeouts(
        self: Scheduler, aborts: List[AbortReq]
    ) -> List[AbortReq]:
        """The running timeout is not for bridge steps: with the flag off a request that waits for
        its transfer is under no such timeout, and the abort would end the transfer with it."""
        if not aborts:
            return aborts
        rids = {req.rid for req in self.handoff_reqs()}
        return [abort for abort in aborts if abort.rid not in rids]

    def hold_for_handoffs(self: Scheduler, recv_reqs: List) -> List:
        """Keep a shutdown and updates of the weights back while requests are being handed over: the
        tokenizer manager, which waits for requests before it sends them, takes these for ended.

        A paused engine's requests go nowhere, and upstream updates their weights in midst of them.
        """
        live = len(self.handoff) > 0 and not self._engine_paused
        recv_reqs = self._inputs_after_handoffs.pass_on(recv_reqs, live, time.monotonic())
        if live and any(isinstance(one, WEIGHT_UPDATES) for one in recv_reqs):
            self.end_generation_of_handoffs()
        return recv_reqs

    def abort_handoff(self: Scheduler, recv_req: AbortReq) -> None:
        """Tell the peer at once that a request is aborted here; upstream frees it."""
        for session in self.handoff:
            rid = self._handoff_req(session).rid
            if recv_req.abort_all or rid.startswith(recv_req.rid):
                session.aborted_here = True
                self.handoff.send(
                    session,
                    session.machine.abort(self.handoff.now, AbortReason.CLIENT),
                )

    def process_handoff_result(
        self: Scheduler, batch: ScheduleBatch, result: GenerationBatchResult
    ) -> bool:
        """Take the result of a bridge step (P) or a replay round (D). False: not one of these.

        Neither is a step of this worker's own kind, so they stay out of the batch statistics and
        step counters, by which routers judge how fast it prefills or decodes."""
        prefill = self.disaggregation_mode == DisaggregationMode.PREFILL
        if not prefill and not self.is_replay_batch(batch):
            self.note_decode_step(batch)
            return False
        if result.copy_done is not None:
            result.copy_done.synchronize()
        if not prefill:
            self.process_replay_result(batch, result)
        else:
            self.note_forward_time(batch)
            if not batch.forward_mode.is_decode():
                return False
            self.process_bridge_result(batch, result)
        self.maybe_send_health_check_signal()
        self.metrics_reporter.update_device_timer()
        return True
