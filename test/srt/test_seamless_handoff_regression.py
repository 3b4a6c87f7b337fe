"""CPU stage: a pair over a slow KV link is faster to the first token with the handoff, and the switch hides."""

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_regression
import handoff_stack as hs
from handoff_thresholds import CPU
from rig import stack
from rig.stack import Options

register_cpu_ci(est_time=60, suite="stage-b-test-cpu")
pytestmark = [pytest.mark.real, pytest.mark.alone]

PROMPTS, PROMPT_TOKENS = 12, 900
LINK_MBIT = 40  # 0.4 s for a prompt's KV
NEW_TOKENS = 96


def test_thresholds():
    # on CPU a forward holds the scheduler's thread: the overlap loop would only read each result a step late
    with stack.pair(Options(overlap=False, env=hs.PACE.env()), prefill_handoff=True, decode_handoff=True) as pair:
        pair.set_link(LINK_MBIT)
        prompts = [hs.prompt(9000 + n, PROMPT_TOKENS) for n in range(PROMPTS + 2)]
        handoff_regression.measure(pair.url, prompts[PROMPTS:], NEW_TOKENS)  # what is learned at first
        handoff, ordinary = handoff_regression.measure(pair.url, prompts[:PROMPTS], NEW_TOKENS)
        assert {line.handoff["outcome"] for line in ordinary} == {"ordinary"}
        found = handoff_regression.figures(handoff, ordinary)
        print(found)
        assert handoff_regression.violations(found, CPU) == []
        assert [handoff_regression.used_tokens(server.url) for server in (pair.prefill, pair.decode)] == [0, 0]
