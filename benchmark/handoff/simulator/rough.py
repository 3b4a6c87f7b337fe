"""The fault run: many short requests on xPyD, everything going wrong, all invariants on."""

from __future__ import annotations

from .core import Timing
from .costs import H200_GRAPH, Network
from .faults import ROUGH
from .workload import Workload
from .world import Setup

# Shorter deadlines than the product's, so that requests live through more of them; in the same
# order, and with ``margin`` above half of ``resend``, how old a worker's idea of now can be.
TIMING = Timing(resend=0.1, lease=0.4, margin=0.1, seal=0.2, commit=2.0, silence=2.0)


def setup(requests: int, seed: int) -> Setup:
    """3P2D. KV at 5 GB/s, so that a prompt's transfer lasts 1 to 13 decode steps. Rows, places in
    D's batch and the bridge budget are so few that requests run out of each."""
    return Setup(
        costs=H200_GRAPH,
        network=Network(kv_rate=5e9),
        workload=Workload(requests, 40.0, [128, 256, 512, 1024, 2048], (1, 32), rooms=64),
        rates=ROUGH,
        timing=TIMING,
        prefills=3,
        decodes=2,
        p_rows=4_500,
        d_rows=12_000,
        max_running=6,
        max_bridge=24,
        patience=30.0,
        seed=seed,
    )
