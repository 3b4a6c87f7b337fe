"""P's reading of the end is upstream's, short of stop strings: checked against a real ``Req``."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.handoff.finish import generation_end
from sglang.srt.disaggregation.handoff.messages import EndReason
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

EOS, STOP, EXTRA, MODEL_EOS = 2, 3, 4, 5


def request(max_new_tokens=9, ignore_eos=False, stop=(), eos=None, tokenizer=None):
    params = SamplingParams(
        temperature=0, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, stop_token_ids=list(stop) or None
    )
    params.normalize(None)
    req = Req("r", "", [1, 2, 3], params, eos_token_ids=eos, vocab_size=100)
    req.tokenizer = tokenizer
    return req


def tokenizer(eos=EOS, extra=None):
    return SimpleNamespace(eos_token_id=eos, additional_stop_token_ids=extra)


@pytest.mark.parametrize(
    "token, changes",
    [
        (EOS, {"tokenizer": tokenizer()}),
        (EXTRA, {"tokenizer": tokenizer(extra={EXTRA})}),
        (STOP, {"stop": [STOP]}),
        (MODEL_EOS, {"eos": {MODEL_EOS}}),
    ],
)
def test_every_kind_of_end_token(token, changes):
    assert generation_end(request(**changes), token, 1, 9) is EndReason.TOKEN
    assert generation_end(request(**changes), 50, 1, 9) is None
    assert generation_end(request(**changes, ignore_eos=True), token, 1, 9) is None


@pytest.mark.parametrize("length, end", [(8, None), (9, EndReason.LENGTH), (10, EndReason.LENGTH)])
def test_the_length_limit_is_the_clients_not_the_1_that_P_is_given(length, end):
    assert generation_end(request(max_new_tokens=1), 50, length, 9) is end


def test_an_end_token_at_the_length_limit_is_an_end_token():
    assert generation_end(request(stop=[STOP]), STOP, 9, 9) is EndReason.TOKEN


tokens = st.integers(0, 9)
groups = st.one_of(st.none(), st.sets(tokens, max_size=3))


@given(
    answer=st.lists(tokens, min_size=1, max_size=12),
    limit=st.integers(1, 12),
    ignore_eos=st.booleans(),
    stop=groups,
    eos=groups,
    extra=groups,
    has_tokenizer=st.booleans(),
)
def test_P_ends_where_D_will(answer, limit, ignore_eos, stop, eos, extra, has_tokenizer):
    """Over any answer, the first token that P calls the last is the one that upstream ends on."""
    req = request(limit, ignore_eos, stop or (), eos, tokenizer(7, extra) if has_tokenizer else None)
    for length, token in enumerate(answer, 1):
        end = generation_end(req, token, length, limit)
        req.output_ids.append(token)
        req.update_finish_state()
        assert req.finished() == (end is not None)
        if end is not None:
            kind = {"stop": EndReason.TOKEN, "length": EndReason.LENGTH}[req.finished_reason.to_json()["type"]]
            assert end is kind
            return
