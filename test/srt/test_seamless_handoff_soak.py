"""A short soak: `make soak` with fewer requests, where nothing may be lost, doubled, different or leaked."""

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

from benchmark.handoff.soak import plan, report
from benchmark.handoff.soak.run import LONG_FREEZE_S, Soak, soak_pair

register_cpu_ci(est_time=60, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

REQUESTS, SEED = 80, 3


def test_a_short_soak_is_clean():
    rounds = plan.make(REQUESTS, SEED, LONG_FREEZE_S)
    with soak_pair() as pair:
        soak = Soak(pair)
        soak.ask_oracle(rounds)
        soak.run(rounds)
    print("\n".join(report.end(soak, SEED, 1.0)))
    assert report.good(soak), soak.violations
    assert soak.done == REQUESTS
    # It was a soak: handoffs of both kinds, and faults on requests and on workers.
    assert soak.outcomes["committed"] and soak.outcomes["finished"]
    assert len(soak.request_faults) >= 3 and len(soak.faults.count) >= 3
