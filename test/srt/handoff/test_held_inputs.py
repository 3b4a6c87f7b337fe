"""A shutdown and updates of the weights wait for requests that are being handed over; all else goes on, in its order."""

import re

import msgspec
import pytest
from sglang.srt.disaggregation.handoff.held_inputs import SHUTDOWN_WAIT, UPDATE_WAIT, WEIGHT_UPDATES, HeldInputs
from sglang.srt.managers import io_struct, tokenizer_manager
from sglang.srt.managers.io_struct import FlushCacheReqInput, ShutdownReq, UpdateWeightFromDiskReqInput

UPDATE, SHUTDOWN, FLUSH = UpdateWeightFromDiskReqInput(model_path="m"), ShutdownReq(), FlushCacheReqInput()


def test_nothing_waits_while_nothing_is_handed_over():
    inputs = [FLUSH, UPDATE, SHUTDOWN]
    assert HeldInputs().pass_on(inputs, False, 1.0) is inputs


@pytest.mark.parametrize("kind", [ShutdownReq, *WEIGHT_UPDATES])
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
    held.pass_on([other], True, 2.0)
    assert held.pass_on([], False, 3.0) == [UPDATE, other]


def test_nothing_waits_for_ever():
    held = HeldInputs()
    held.pass_on([UPDATE], True, 1.0)
    assert held.pass_on([], True, 0.9 + UPDATE_WAIT) == []
    assert held.pass_on([FLUSH], True, 1.0 + UPDATE_WAIT) == [FLUSH, UPDATE]
    assert held.pass_on([UPDATE], True, 1.1 + UPDATE_WAIT) == []


def test_a_shutdown_comes_alone_and_sooner():
    held = HeldInputs()
    held.pass_on([UPDATE], True, 1.0)
    held.pass_on([SHUTDOWN], True, 2.0)
    assert held.pass_on([], True, 1.9 + SHUTDOWN_WAIT) == []
    assert held.pass_on([], True, 2.0 + SHUTDOWN_WAIT) == [SHUTDOWN]
    assert held.pass_on([], False, 1e6) == []


def test_a_scheduler_is_killed_later_than_a_shutdown_waits():
    assert SHUTDOWN_WAIT < tokenizer_manager._SCHEDULER_EXIT_TIMEOUT_SECS


def test_every_update_of_weights_is_held():
    """What upstream's dispatcher gets of them: reading, and what names no new weights, goes on."""
    names = {name for name in vars(io_struct) if re.search(r"Update?Weight.*ReqInput$|WeightUpdateReqInput$", name)}
    others = {"InitWeightsUpdateGroupReqInput", "DestroyWeightsUpdateGroupReqInput", "UpdateWeightVersionReqInput"}
    assert {kind.__name__ for kind in WEIGHT_UPDATES} == names - others
