"""The hand that injects a round's fault into a running pair, and takes it away again."""

from __future__ import annotations

import time
from collections import Counter

from rig import client
from rig.stack import Pair

from .plan import Round

PAUSES, PAUSE_S = 12, 0.02


class Faults:
    """Injects faults; counts them by name."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.count: Counter[str] = Counter()

    def of_round(self, round: Round) -> None:
        """Do to both workers what the round says, and undo it. Blocks for ``delay + seconds``."""
        if round.fault is None:
            return
        self.count[round.fault] += 1
        time.sleep(round.delay)
        if round.fault == "slow_link":
            self.pair.set_link(round.mbit)
            time.sleep(1 + round.seconds)
            self.pair.set_link(None)
        elif round.fault == "hold_all":
            self.pair.hold.all()
            time.sleep(2 * round.seconds)
            (self.pair.hold.directory / "hold_all").unlink(missing_ok=True)  # single requests stay held
        elif round.fault == "abort_all":
            self.abort(abort_all=True)
        elif round.fault == "pauses":
            for n in range(PAUSES):
                self._freeze(("prefill", "decode")[n % 2], PAUSE_S)
                time.sleep(PAUSE_S)
        else:
            self._freeze(round.fault.rsplit("_", 1)[1], round.seconds)

    def abort(self, **body: object) -> None:
        """Ask D to abort: ``rid=...`` or ``abort_all=True``."""
        client.command(self.pair.decode.url, "abort_request", **body)

    def _freeze(self, side: str, seconds: float) -> None:
        process = getattr(self.pair, side).process
        process.freeze()
        try:
            time.sleep(seconds)
        finally:
            process.thaw()
