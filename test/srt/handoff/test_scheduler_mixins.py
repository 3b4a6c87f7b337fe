"""Single methods of the scheduler's mixins, on a scheduler that has nothing else. Whole requests are the other tests'."""

from collections import deque
from types import SimpleNamespace

import pytest
from sglang.srt.disaggregation.handoff.admission import ADMITTED
from sglang.srt.disaggregation.handoff.decode_machine import DecodeState
from sglang.srt.disaggregation.handoff.record import RequestRecord
from sglang.srt.managers import scheduler_handoff_mixin
from sglang.srt.managers.scheduler_handoff_mixin import SchedulerHandoffMixin


def scheduler(**parts) -> SchedulerHandoffMixin:
    made = SchedulerHandoffMixin()
    vars(made).update(parts)
    return made


def machine(state=DecodeState.DRAINING):
    return SimpleNamespace(state=state, lag=2, seal_lag=8)


@pytest.mark.parametrize("others, running, waiting, room", [(0, 0, 0, True), (1, 0, 0, False), (0, 1, 0, False), (0, 0, 1, False)])
def test_a_request_that_looks_for_a_place_does_not_take_it_from_itself(others, running, waiting, room):
    """P may have closed its log before D asked: then it is draining already, as those that will take a place are."""
    mine = machine()
    sessions = [SimpleNamespace(machine=each) for each in [mine, *(machine() for _ in range(others)), machine(DecodeState.RELAYING)]]
    one_place = scheduler(
        handoff=sessions, waiting_queue=[None] * waiting, max_running_requests=1, _replay_kv_room=lambda reqs: 10,
        running_batch=SimpleNamespace(reqs=[], batch_size=lambda: running), req_to_token_pool=SimpleNamespace(size=3),
    )  # fmt: skip
    assert one_place._handoff_room_ahead(mine) is room


def test_no_room_without_kv_slots():
    mine = machine()
    short = scheduler(handoff=[], _replay_kv_room=lambda reqs: 9, running_batch=SimpleNamespace(reqs=[]))
    assert not short._handoff_room_ahead(mine)


@pytest.mark.parametrize("overlap, in_flight, kept", [(True, [1], True), (True, [], False), (False, [1], False)])
def test_figures_of_a_forward_wait_for_its_result(overlap, in_flight, kept):
    """The overlap loop reads a result one iteration later, and finds nothing to launch in between."""
    idle = scheduler(enable_overlap=overlap, result_queue=in_flight, _launched=deque([(900, 1.0)]), next_bridge_batch=lambda: None)
    assert idle.bridge_or_make_way(None) is None
    assert bool(idle._launched) is kept


@pytest.mark.parametrize("bridge_tokens, wanted, budget", [(512, 100, 100), (1, 100, 1), (512, 0, 1)])
def test_a_log_has_room_for_t1_whatever_is_asked_for(bridge_tokens, wanted, budget):
    """0 is what upstream leaves of max_new_tokens where the prompt fills the context."""
    made = scheduler(
        handoff=SimpleNamespace(now=1.0),
        bridges=SimpleNamespace(
            transfers=SimpleNamespace(begins=lambda *_: None), refusal=lambda *_, **__: ADMITTED, limits=SimpleNamespace(tokens=bridge_tokens)
        ),
        _prompt_tokens_waiting=lambda: 0,
    )  # fmt: skip
    made.handoff = type("Table", (list,), {"now": 1.0})()
    req = SimpleNamespace(origin_input_ids=[1, 2], start_send_idx=0, handoff_max_new_tokens=wanted)
    assert made._log_budget(req, SimpleNamespace(nonce=b"n", worth=0)) == budget


def test_a_retracted_requests_handoff_is_told_as_it_was():
    said = []
    made = scheduler(note_ordinary_path=lambda req, reason: said.append(reason))
    committed = RequestRecord("committed")
    before = SimpleNamespace(time_stats=SimpleNamespace(handoff=committed))
    made._take_ordinary_path(before, "rebootstrap")
    assert before.time_stats.handoff is committed and not said
    new = SimpleNamespace(time_stats=SimpleNamespace(handoff=None))
    made._take_ordinary_path(new, "not_greedy")
    assert new.time_stats.handoff.fields["outcome"] == "ordinary" and said == ["not_greedy"]


def test_a_step_has_an_entry_for_each_requests_multimodal_input(monkeypatch):
    """Models with M-RoPE go through them also where no request has any."""
    batch = SimpleNamespace(prepare_for_decode=lambda: None)
    monkeypatch.setattr(scheduler_handoff_mixin.SamplingBatchInfo, "from_schedule_batch", lambda *_: None)
    made = scheduler(new_handoff_batch=lambda reqs: batch, device="cpu", model_config=SimpleNamespace(vocab_size=512))
    reqs = [SimpleNamespace(kv=SimpleNamespace(req_pool_idx=n, kv_committed_len=7), multimodal_inputs=None) for n in range(2)]
    assert made.new_handoff_step(reqs).multimodal_inputs == [None, None]


@pytest.mark.parametrize("paused, passed", [(False, 0), (True, 1)])
def test_a_paused_engine_does_not_let_an_update_wait(paused, passed):
    from sglang.srt.disaggregation.handoff.held_inputs import HeldInputs
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    made = scheduler(handoff=[object()], _engine_paused=paused, _inputs_after_handoffs=HeldInputs())
    assert len(made.hold_for_handoffs([UpdateWeightFromDiskReqInput(model_path="m")])) == passed
