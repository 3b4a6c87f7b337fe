"""Every deadline of the protocol, in seconds, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Deadlines and intervals, in seconds on the owner's own clock.

    P generates only while D's last word is younger than ``lease``, counted from P's own
    stamp that D echoed. So D knows, without synchronised clocks, that ``lease`` after its
    last echo P has stopped, and may then take over alone: never two generators.

    Attributes:
        resend: an unacknowledged entry or request is sent again after this.
        lease: P pauses when D has confirmed nothing for this long.
        margin: added by D to ``lease``, for clocks that run at slightly different speed.
        seal: D waits this long for Sealed before it stops renewing the lease.
        commit: P, sealed, frees when D has confirmed nothing for this long.
        silence: P, paused since D is silent, gives the request up after this.
    """

    resend: float = 0.25
    lease: float = 3.0
    margin: float = 0.5
    seal: float = 2.0
    commit: float = 30.0
    silence: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"handoff timing: {name} must be above 0 s, got {value}")
        if self.resend >= self.lease:
            raise ValueError(
                f"handoff timing: resend ({self.resend} s) must be below lease "
                f"({self.lease} s), or P pauses between two signs of life"
            )
