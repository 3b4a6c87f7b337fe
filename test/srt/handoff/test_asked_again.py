"""Whose the rid is, with upstream's own request object."""

from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.handoff.asked_again import asked_again
from sglang.srt.managers.io_struct import GenerateReqInput


def asked(rid):
    obj = GenerateReqInput(input_ids=[1, 2], rid=rid, sampling_params={})
    obj.normalize_batch_and_arguments()
    return obj


@pytest.mark.parametrize("holder, expected", [("nobody", False), ("itself", False), ("another", True)])
def test_single_request(holder, expected):
    obj = asked("r")
    state = {"nobody": None, "itself": SimpleNamespace(obj=obj), "another": SimpleNamespace(obj=asked("r"))}[holder]
    assert asked_again(state, obj) is expected


def test_batch_is_left_to_upstream():
    obj = GenerateReqInput(input_ids=[[1, 2], [3]], rid=["r", "s"], sampling_params={})
    obj.normalize_batch_and_arguments()
    assert asked_again(SimpleNamespace(obj=obj[0]), obj) is False
