"""Log lines, the gauge and /server_info, by the mixin on a scheduler that has nothing else."""

import json
import logging
from types import SimpleNamespace

import pytest
from sglang.srt.disaggregation.handoff.decode_machine import DecodeState
from sglang.srt.disaggregation.handoff.messages import Abort, AbortReason, Append, Open, SealRequest
from sglang.srt.disaggregation.handoff.metrics import COMMITTED, FAILED, HandoffMetrics
from sglang.srt.disaggregation.handoff.peers import PeerTable
from sglang.srt.disaggregation.handoff.record import RequestRecord
from sglang.srt.managers.scheduler_handoff_observability_mixin import SchedulerHandoffObservabilityMixin

import handoff_parts as parts
from handoff_parts import FINGERPRINT, NONCE, P_ENDPOINT, ROOM, TIMING


class Metrics(HandoffMetrics):
    """Remembers what the gauge was set to, and which deadlines fired."""

    def __init__(self):
        super().__init__(None)
        self.numbers, self.deadlines = None, []

    def live(self, numbers):
        self.numbers = dict(numbers)

    def deadline(self, deadline):
        self.deadlines.append(deadline)


class Table(list):
    """A SessionTable that holds what it is given."""

    channel = SimpleNamespace(endpoint="tcp://10.0.0.2:5002")
    now = 100.0


class Scheduler(SchedulerHandoffObservabilityMixin):
    def __init__(self, *machines):
        self.handoff = Table(
            SimpleNamespace(machine=machine, record=RequestRecord("opened"), request=req("a"))
            for machine in machines
        )
        self.handoff_metrics, self.handoff_peers = Metrics(), PeerTable()
        self._handoff_reasons_told = set()

    @staticmethod
    def _handoff_req(session):
        return session.request


def lines(caplog, level):
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def req(rid):
    return SimpleNamespace(rid=rid, bootstrap_room=7)


@pytest.fixture(autouse=True)
def hear_everything(caplog):
    caplog.set_level(logging.DEBUG, logger="sglang")


def test_each_request_has_a_line_and_each_reason_one_warning(caplog):
    scheduler = Scheduler()
    for rid, reason in (("r1", "not_greedy"), ("r2", "not_greedy"), ("r3", "penalties")):
        scheduler.note_ordinary_path(req(rid), reason)
    assert lines(caplog, logging.DEBUG) == [
        "Handoff of r1 (room 7): none (not_greedy).", "Handoff of r2 (room 7): none (not_greedy).", "Handoff of r3 (room 7): none (penalties).",
    ]  # fmt: skip
    first, second = lines(caplog, logging.WARNING)
    assert "r1 (room 7)" in first and "temperature 0" in first and "(not_greedy)" in first
    assert "r3 (room 7)" in second and "(penalties)" in second
    assert not lines(caplog, logging.INFO)
    assert scheduler.handoff_metrics.outcomes == {"ordinary/not_greedy": 2, "ordinary/penalties": 1}


@pytest.mark.parametrize("reason", ["health_check", "fake_transfer", "rebootstrap"])
def test_nobody_is_warned_of_what_is_no_fault(caplog, reason):
    Scheduler().note_ordinary_path(req("r1"), reason)
    assert len(lines(caplog, logging.DEBUG)) == 1 and not lines(caplog, logging.WARNING)


def test_failures_are_named_at_info_and_busy_reasons_are_not(caplog):
    scheduler = Scheduler()
    scheduler.note_handoff_end(req("r1"), FAILED, "transfer")
    scheduler.note_handoff_end(req("r2"), FAILED, "not_opened")
    scheduler.note_handoff_end(req("r3"), FAILED, "client")
    scheduler.note_handoff_end(req("r4"), COMMITTED)
    assert lines(caplog, logging.INFO) == ["Handoff of r1 (room 7): failed (transfer)."]
    assert lines(caplog, logging.DEBUG) == [
        "Handoff of r2 (room 7): failed (not_opened).", "Handoff of r3 (room 7): failed (client).", "Handoff of r4 (room 7): committed.",
    ]  # fmt: skip
    assert [line.split("(")[-1].split(")")[0] for line in lines(caplog, logging.WARNING)] == ["transfer", "not_opened"]


def test_a_request_that_is_not_bridged_has_a_line_and_no_warning(caplog):
    Scheduler().note_not_bridged(req("r1"), "prompts_wait")
    assert lines(caplog, logging.DEBUG) == ["Handoff of r1 (room 7): the first token alone (prompts_wait)."]
    assert not lines(caplog, logging.WARNING)


def test_states_are_milestones_of_prefill_and_the_gauge():
    sealed, bridging, gone = (parts.prefill_machine() for _ in range(3))
    for machine in (sealed, bridging, gone):
        machine.start(100.0, 11)
    sealed.receive(100.5, SealRequest(ROOM, NONCE, 1, 0))
    gone.receive(100.5, Abort(ROOM, NONCE, AbortReason.CLIENT))
    scheduler = Scheduler(sealed, bridging, gone)
    scheduler.note_handoff_states()
    assert scheduler.handoff_metrics.numbers == {"sealed": 1, "bridging": 1}
    marks = [list(session.record.fields["at_ms"]) for session in scheduler.handoff]
    assert marks == [["sealed"], [], ["failed"]]


def relay_only(heard_at):
    machine = parts.decode_machine()
    machine.receive(heard_at, Open(ROOM, NONCE, 1, P_ENDPOINT, 5, 2, FINGERPRINT, 100, 1234))
    machine.receive(heard_at, Append(ROOM, NONCE, 1, 1, [11, 12], 1))
    machine.take_relay()
    assert machine.kv_failed(heard_at) and machine.state is DecodeState.RELAY_ONLY
    return machine


def test_silence_on_decode_is_a_deadline(caplog):
    silent, heard = relay_only(100.0 - TIMING.silence), relay_only(99.0)
    scheduler = Scheduler(silent, heard)
    for session in scheduler.handoff:
        scheduler.note_handoff_silence(session)
    assert scheduler.handoff_metrics.deadlines == ["silence"]
    assert lines(caplog, logging.INFO) == ["Handoff of a (room 7): the silence deadline has fired."]


def test_an_abort_on_prefill_that_takes_the_kv_with_it_is_silence_in_the_end():
    machine = parts.decode_machine()
    machine.receive(90.0, Open(ROOM, NONCE, 1, P_ENDPOINT, 5, 2, FINGERPRINT, 100, 1234))
    machine.receive(90.0, Append(ROOM, NONCE, 1, 1, [11, 12], 1))
    machine.receive(100.0 - TIMING.silence, Abort(ROOM, NONCE, AbortReason.CLIENT))
    scheduler = Scheduler(machine)
    scheduler.note_handoff_silence(scheduler.handoff[0])
    assert scheduler.handoff_metrics.deadlines == ["silence"]


def test_server_info_is_plain_data():
    scheduler = Scheduler(parts.decode_machine(), parts.decode_machine())
    scheduler.handoff_metrics.request(COMMITTED)
    scheduler.handoff_metrics.dropped("term", 2)
    scheduler.handoff_peers.opened("10.0.0.1:8998", P_ENDPOINT)
    info = scheduler.handoff_info()
    assert json.loads(json.dumps(info)) == info
    assert info["enabled"] is True and info["live"] == {"offered": 2} and info["outcomes"] == {"committed": 1}
    assert info["endpoint"] == "tcp://10.0.0.2:5002" and info["dropped_messages"] == {"term": 2}
    assert [peer["peer"] for peer in info["peers"]] == ["10.0.0.1:8998"]


@pytest.mark.parametrize("host, name", [("10.0.0.1", "10.0.0.1:8998"), ("fd00::1", "[fd00::1]:8998")])
def test_peers_are_named_by_address_and_port(host, name):
    assert SchedulerHandoffObservabilityMixin.handoff_counterpart(host, 8998) == name
