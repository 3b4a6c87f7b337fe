"""The fault run: many short requests on xPyD, everything going wrong, all invariants on."""

from __future__ import annotations

from .core import Timing
from .costs import H200_GRAPH, Network
from .faults import ROUGH
from .workload import Workload
from .world import Setup

# Shorter deadlines than the product's, so that requests live through more of them; in the same
# order, and with ``margin`` above half of ``resend``, how old a worker's idea of now can be.
TIMING = Timing(resend=0.05, lease=0.3, margin=0.06, seal=0.2, commit=2.0, silence=2.0)


def setup(requests: int, seed: int) -> Setup:
    """3P2D. KV at 5 GB/s, so that a prompt's transfer lasts 1 to 25 bridge steps."""
    return Setup(
        costs=H200_GRAPH,
        network=Network(kv_rate=5e9),
        workload=Workload(requests, 40.0, [128, 512, 1024, 2048, 4096], (1, 48), rooms=64),
        rates=ROUGH,
        timing=TIMING,
        prefills=3,
        decodes=2,
        p_rows=40_000,
        d_rows=60_000,
        max_running=24,
        seed=seed,
    )
