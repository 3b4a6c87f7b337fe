"""Which deadline has fired, seen by the machines that the deadlines belong to."""

import pytest
from sglang.srt.disaggregation.handoff.deadlines import facts, fired
from sglang.srt.disaggregation.handoff.messages import Abort, AbortReason, Ack, Append, Open, SealRequest
from sglang.srt.disaggregation.handoff.prefill_machine import HOLD_KV

import handoff_parts as parts
from handoff_parts import FINGERPRINT, NONCE, P_ENDPOINT, ROOM, TIMING


def ticked(machine, now):
    before = facts(machine)
    machine.tick(now)
    return fired(before, machine)


def bridging(now=100.0):
    machine = parts.prefill_machine()
    machine.start(now, 11)
    return machine


def relaying(now=100.0, kv=True):
    machine = parts.decode_machine()
    machine.receive(now, Open(ROOM, NONCE, 1, P_ENDPOINT, 5, 2, FINGERPRINT, 100, 1234))
    machine.receive(now, Append(ROOM, NONCE, 1, 1, [11, 12, 13, 14, 15, 16], 1))
    machine.take_relay()
    if kv:
        machine.kv_arrived(now)
    return machine


def test_nothing_fires_before_its_time():
    assert ticked(bridging(), 100.0 + TIMING.lease - 0.1) is None
    assert ticked(relaying(), 100.0 + TIMING.lease) is None


@pytest.mark.parametrize("held", [False, True])
def test_lease_on_prefill_fires_once(held):
    machine = bridging()
    if held:
        machine.hold(HOLD_KV)  # it is paused already
    now = 100.0 + TIMING.lease
    assert ticked(machine, now) == "lease"
    assert ticked(machine, now + 1) is None


def test_lease_on_prefill_fires_again_after_it_was_renewed():
    machine = bridging()
    assert ticked(machine, 104.0) == "lease"
    machine.receive(104.5, Ack(ROOM, NONCE, 1, int(104.5e6)))
    assert ticked(machine, 105.0) is None
    assert ticked(machine, 108.5) == "lease"


def test_silence_on_prefill():
    machine = bridging()
    assert ticked(machine, 104.0) == "lease"
    assert ticked(machine, 104.0 + TIMING.silence) == "silence"
    assert ticked(machine, 300.0) is None


def test_commit_on_prefill():
    machine = bridging()
    machine.receive(100.5, SealRequest(ROOM, NONCE, 1, 0))
    assert ticked(machine, 100.5 + TIMING.commit) == "commit"


def test_an_abort_is_no_deadline():
    machine = bridging()
    before = facts(machine)
    machine.receive(100.5, Abort(ROOM, NONCE, AbortReason.CLIENT))
    assert fired(before, machine) is None


def test_lease_on_decode():
    assert ticked(relaying(), 100.0 + TIMING.lease + TIMING.margin) == "lease"


def test_seal_on_decode():
    machine = relaying()
    machine.round_started(4)
    machine.round_done(100.5)
    assert [type(m) for m in machine.room_ahead(100.5, True)] == [SealRequest]
    assert ticked(machine, 100.0 + TIMING.lease + TIMING.margin) == "seal"
    assert machine.alone


def test_a_relay_without_kv_has_no_lease_on_decode():
    assert ticked(relaying(kv=False), 200.0) is None
