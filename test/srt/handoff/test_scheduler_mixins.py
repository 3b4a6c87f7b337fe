"""Single methods of the scheduler's mixins, on a scheduler that has nothing else. Whole requests are the other tests'."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.disaggregation.base import KVPoll
from sglang.srt.disaggregation.handoff.admission import ADMITTED, PROMPTS_WAIT
from sglang.srt.disaggregation.handoff.decode_machine import DecodeState
from sglang.srt.disaggregation.handoff.held_inputs import UPDATE_WAIT, HeldInputs
from sglang.srt.disaggregation.handoff.messages import AbortReason, Resume, SealRequest
from sglang.srt.disaggregation.handoff.prefill_machine import HOLD_ENGINE, PrefillMachine, PrefillState
from sglang.srt.disaggregation.handoff.record import RequestRecord
from sglang.srt.disaggregation.handoff.timing import Timing
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import scheduler_handoff_decode_mixin, scheduler_handoff_mixin, scheduler_handoff_prefill_mixin
from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput
from sglang.srt.managers.scheduler_handoff_mixin import SchedulerHandoffMixin

UPDATE = UpdateWeightFromDiskReqInput(model_path="m")


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


@pytest.mark.parametrize("slots, places, room, looks", [(10, 1, True, 1), (9, 1, False, 1), (10, 0, False, 0)])
def test_room_takes_a_place_and_kv_slots_which_are_counted_only_where_there_is_a_place(slots, places, room, looks):
    """To count them is to walk all running requests, at each step and for each request that waits."""
    looked = []
    made = scheduler(
        handoff=[], waiting_queue=[], max_running_requests=places, _replay_kv_room=lambda reqs: looked.append(reqs) or slots,
        running_batch=SimpleNamespace(reqs=[], batch_size=lambda: 0), req_to_token_pool=SimpleNamespace(size=3),
    )  # fmt: skip
    assert made._handoff_room_ahead(machine()) is room
    assert len(looked) == looks


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
        _prompt_tokens_waiting=lambda: 0, disagg_prefill_bootstrap_queue=SimpleNamespace(queue=[]),
    )  # fmt: skip
    made.handoff = Table()
    req = SimpleNamespace(origin_input_ids=[1, 2], start_send_idx=0, handoff_max_new_tokens=wanted)
    assert made._log_budget(req, SimpleNamespace(nonce=b"n", worth=0)) == budget


def test_a_retracted_requests_handoff_is_told_as_it_was():
    said = []
    made = scheduler(note_ordinary_path=lambda req, reason: said.append(reason))
    committed = RequestRecord("committed")
    before = SimpleNamespace(time_stats=SimpleNamespace(handoff=committed))
    made._take_ordinary_path(before, "rebootstrap")
    assert before.time_stats.handoff is committed and said.pop() == "rebootstrap"
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
    made = scheduler(handoff=[session()], _engine_paused=paused, _inputs_after_handoffs=HeldInputs())
    assert len(made.hold_for_handoffs([UPDATE])) == passed
    assert not made.handoff[0].machine.holds


@pytest.mark.parametrize("mode, held", [(DisaggregationMode.PREFILL, {HOLD_ENGINE}), (DisaggregationMode.DECODE, set())])
def test_after_an_update_that_has_waited_long_enough_P_generates_no_more(monkeypatch, mode, held):
    clock = [1.0]
    monkeypatch.setattr(scheduler_handoff_mixin.time, "monotonic", lambda: clock[0])
    made = scheduler(handoff=[session()], _engine_paused=False, _inputs_after_handoffs=HeldInputs(), disaggregation_mode=mode)
    assert made.hold_for_handoffs([UPDATE]) == []
    clock[0] += UPDATE_WAIT
    assert made.hold_for_handoffs([]) == [UPDATE]
    assert made.handoff[0].machine.holds == held


def session():
    machine = SimpleNamespace(holds=set())
    machine.hold = machine.holds.add
    return SimpleNamespace(machine=machine)


@pytest.mark.parametrize("free, running, looks", [(511, True, False), (512, True, True), (0, False, True)])
def test_what_is_handed_over_passes_a_retracted_request_where_there_are_slots_or_nobody_runs(monkeypatch, free, running, looks):
    monkeypatch.setattr(scheduler_handoff_decode_mixin, "get_disagg", lambda: SimpleNamespace(num_reserved_decode_tokens=512))
    asked = []

    def pop_transferred(rids):
        asked.append(rids)
        return ["ready"]

    made = scheduler(
        handoff=[SimpleNamespace(request=SimpleNamespace(req=SimpleNamespace(rid="mine")))], waiting_queue=["first"],
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: free),
        running_batch=SimpleNamespace(is_empty=lambda: not running),
        disagg_decode_transfer_queue=SimpleNamespace(pop_transferred=pop_transferred),
    )  # fmt: skip
    made.take_over_past_retracted()
    assert (made.waiting_queue, asked) == ((["first", "ready"], [["mine"]]) if looks else (["first"], []))


@pytest.fixture
def bridged():
    """P's session of a request with a prompt of 10 tokens and t1 logged, and a scheduler that forgets what it sends."""
    log = PrefillMachine(
        room=1, nonce=b"n", endpoint="tcp://p", prompt_len=10, cached_tokens=0, fingerprint=b"", budget=9, prefill_us=0, timing=Timing()
    )
    log.start(1.0, 101)
    req = SimpleNamespace(origin_input_ids=[0] * 10, kv=SimpleNamespace(kv_committed_len=10))
    req.handoff = SimpleNamespace(request=req, machine=log, in_flight=0, transfer_ended=None, kv_sent=False)
    made = scheduler(handoff=SimpleNamespace(now=1.0, send=lambda *_: None), note_handoff_states=lambda: None)
    made._end_of = lambda *_: None
    return made, req


def step_returns(made, req, token):
    made.process_bridge_result(SimpleNamespace(reqs=[req]), SimpleNamespace(next_token_ids=torch.tensor([token])))


@pytest.mark.parametrize("resumed_after", [1, 2])
def test_no_step_of_before_a_seal_goes_into_the_log_that_D_has_resumed(bridged, resumed_after):
    """Two steps are in flight where upstream polls its inputs continuously: the seal and the Resume may come between."""
    made, req = bridged
    log, req.handoff.in_flight, req.kv.kv_committed_len = req.handoff.machine, 2, 12
    log.receive(1.0, SealRequest(1, b"n", 1, 0))
    for number, token in enumerate((102, 103), 1):
        step_returns(made, req, token)
        if number == resumed_after:
            log.receive(1.0, Resume(1, b"n", 2, 2))
    assert log.log.slice(1, 9) == [101] and log.state is PrefillState.BRIDGING and req.handoff.in_flight == 0
    req.kv.kv_committed_len, req.handoff.in_flight = 11, 1  # given back, and a step launched anew
    step_returns(made, req, 102)
    assert log.log.slice(1, 9) == [101, 102]


@pytest.mark.parametrize(
    "refusal, more, in_flight, resumed, closed",
    [
        (PROMPTS_WAIT, [], 0, False, True),
        (ADMITTED, [], 0, False, False),
        (PROMPTS_WAIT, [102], 0, False, False),
        (PROMPTS_WAIT, [], 1, False, False),
        (PROMPTS_WAIT, [], 0, True, False),
    ],
    ids=["refused", "admitted", "has two tokens", "its step is under way", "D has no room for it"],
)
def test_a_bridge_is_judged_again_until_its_first_step(bridged, refusal, more, in_flight, resumed, closed):
    """P has read what came during the prompt's forward."""
    made, req = bridged
    log, said, asked = req.handoff.machine, [], []
    for token in more:
        log.sampled(1.0, token)
    if resumed:
        log.receive(1.0, SealRequest(1, b"n", 1, 0))
        log.receive(1.0, Resume(1, b"n", 2, 2))
    req.handoff.in_flight, req.handoff.worth = in_flight, 7
    made.handoff = Table([req.handoff])
    made.note_not_bridged = lambda *what: said.append(what)
    made.bridges = SimpleNamespace(refusal=lambda *_, **figures: asked.append(figures) or refusal)
    made._prompt_tokens_waiting = lambda: 3
    arrived = scheduler_handoff_prefill_mixin.time.perf_counter() - 5
    came = SimpleNamespace(origin_input_ids=[0] * 40, time_stats=SimpleNamespace(prefill_bootstrap_queue_entry_time=arrived))
    made.disagg_prefill_bootstrap_queue = SimpleNamespace(queue=[came])
    made._wants_step = lambda _: False
    assert made.next_bridge_batch() is None
    assert (log.state is PrefillState.SEALED) is closed
    assert said == ([(req, refusal)] if closed else [])
    for figures in asked:
        (tokens, waited), = figures.pop("bootstrapping")
        assert figures == {"waiting": 3, "bridging": 0, "worth": 7} and tokens == 40 and waited == pytest.approx(5, abs=1)


def test_a_failed_transfer_is_told_to_a_P_that_was_stopped_for_good(bridged):
    """D never takes over without KV, and would wait for tokens for ever."""
    made, req = bridged
    made.bridges = SimpleNamespace(transfers=SimpleNamespace(ends=lambda *_: None))
    log = req.handoff.machine
    log.hold(HOLD_ENGINE)
    assert not log.done and made.handoff_keeps_prefill(req, KVPoll.Failed)
    log.tick(1.1)
    assert log.abort_reason is AbortReason.TRANSFER


class Table(list):
    """A SessionTable that knows one nonce and one silent peer."""

    now = 1.0

    def send(self, session, messages):
        """Nobody hears it."""

    def knows(self, nonce):
        return nonce == b"known"

    def is_silent(self, peer):
        return peer == "tcp://silent"


@pytest.mark.parametrize(
    "nonce, peer, refusal", [(b"new", "tcp://d", ""), (b"known", "tcp://d", "offer_repeated"), (b"new", "tcp://silent", "peer_silent")]
)
def test_an_offer_is_not_accepted_twice_nor_of_a_peer_that_hears_nothing(nonce, peer, refusal):
    assert scheduler(handoff=Table())._why_not_accept(SimpleNamespace(nonce=nonce, endpoint=peer)) == refusal


def test_P_judges_a_request_that_D_has_offered_by_its_own_sampling_parameters(monkeypatch):
    """Each worker fills in its own defaults: a greedy request on D may be a sampled one here."""
    said = []
    made = scheduler(handoff=Table(), _read_offer=lambda req: (SimpleNamespace(nonce=b"new"), ""), note_ordinary_path=lambda *said_of: said.append(said_of))
    monkeypatch.setattr(scheduler_handoff_prefill_mixin, "request_misfit", lambda req: req.sampling_params.max_new_tokens == 9 and "not_greedy")
    req = SimpleNamespace(handoff_max_new_tokens=9, sampling_params=SimpleNamespace(max_new_tokens=1))
    made.start_bridge(req, 5)
    assert said == [(req, "not_greedy")] and req.sampling_params.max_new_tokens == 1


def test_tokens_of_before_a_change_of_weights_are_those_of_handoffs_too():
    on_d = SimpleNamespace(request=SimpleNamespace(req="a Req"))
    assert scheduler(handoff=[on_d]).handoff_reqs() == ["a Req"]
