"""A shutdown and updates of the weights wait for requests that are being handed over; all else goes on, in its order."""

import msgspec
import pytest
from sglang.srt.disaggregation.handoff.held_inputs import HELD, SHUTDOWN_WAIT, HeldInputs
from sglang.srt.managers.io_struct import FlushCacheReqInput, ShutdownReq, UpdateWeightFromDiskReqInput

UPDATE, SHUTDOWN, FLUSH = UpdateWeightFromDiskReqInput(model_path="m"), ShutdownReq(), FlushCacheReqInput()


def test_nothing_waits_while_nothing_is_handed_over():
    inputs = [FLUSH, UPDATE, SHUTDOWN]
    assert HeldInputs().pass_on(inputs, False, 1.0) is inputs


@pytest.mark.parametrize("kind", HELD)
def test_it_waits_for_the_last_session_and_comes_once(kind):
    held, one = HeldInputs(), kind(**{field.name: None for field in msgspec.structs.fields(kind) if field.required})

    def seen(inputs, live, now):
        return [id(each) for each in held.pass_on(inputs, live, now)]

    assert seen([FLUSH, one], True, 1.0) == [id(FLUSH)]
    assert seen([FLUSH], True, 2.0) == [id(FLUSH)]
    assert seen([FLUSH], False, 3.0) == [id(FLUSH), id(one)]
    assert seen([], False, 4.0) == [] == seen([], True, 4.0)


def test_what_is_held_keeps_its_order():
    held, other = HeldInputs(), UpdateWeightFromDiskReqInput(model_path="n")
    held.pass_on([UPDATE], True, 1.0)
    held.pass_on([other, SHUTDOWN], True, 2.0)
    assert held.pass_on([], False, 3.0) == [UPDATE, other, SHUTDOWN]


def test_a_shutdown_waits_for_a_time_and_an_update_for_the_sessions():
    held = HeldInputs()
    held.pass_on([UPDATE], True, 1.0)
    assert held.pass_on([], True, 1e6) == []
    held.pass_on([SHUTDOWN], True, 1e6)
    assert held.pass_on([SHUTDOWN], True, 1e6 + SHUTDOWN_WAIT - 0.1) == []
    assert held.pass_on([], True, 1e6 + SHUTDOWN_WAIT) == [UPDATE, SHUTDOWN, SHUTDOWN]
    assert held.pass_on([SHUTDOWN], True, 2e6) == []


def test_a_scheduler_is_killed_later_than_a_shutdown_waits():
    from sglang.srt.managers import tokenizer_manager

    assert SHUTDOWN_WAIT < tokenizer_manager._SCHEDULER_EXIT_TIMEOUT_SECS
