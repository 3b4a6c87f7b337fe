"""What is compared: ways to use two devices."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Arm:
    """
    Attributes:
        name: in the report.
        key: on the command line.
        pd: a prefill and a decode worker; otherwise two unified servers, each with half of the requests.
        handoff: both workers run with the flag.
        worker_args: more arguments for both workers.
        decode_args: more arguments for the decode worker.
    """

    name: str
    key: str
    pd: bool
    handoff: bool = False
    worker_args: tuple[str, ...] = ()
    decode_args: tuple[str, ...] = ()


UNIFIED = Arm("unified x2", "unified", pd=False)
PD = Arm("PD", "pd", pd=True)
# D reserves KV only once P has run the prompt, so the transfer starts a little later and D's memory serves more requests
PREFILL_COMPLETE = Arm(
    "PD, prefill_complete",
    "prefill_complete",
    pd=True,
    worker_args=("--disaggregation-decode-allocation-policy", "prefill_complete"),
)
HANDOFF = Arm("PD + handoff", "handoff", pd=True, handoff=True)
HANDOFF_DECODE = Arm(
    "PD + handoff, decode replay",
    "handoff_decode",
    pd=True,
    handoff=True,
    decode_args=("--disaggregation-handoff-replay-mode", "decode"),
)
ARMS = (UNIFIED, PD, PREFILL_COMPLETE, HANDOFF, HANDOFF_DECODE)


def of_keys(keys: list[str]) -> list[Arm]:
    """The arms named on the command line, in the report's order."""
    return [arm for arm in ARMS if arm.key in keys]


def routers_of(arm: Arm, routers: list[str]) -> list[str]:
    """Those of the routers that can stand before the arm: mini_lb knows prefill and decode workers only."""
    return [router for router in routers if arm.pd or router != "mini_lb"]
