"""Which workers were met on the other side, and whether they agreed to a handoff: for /server_info."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

MAX_PEERS = 256


@dataclass
class Peer:
    """One worker of the other role.

    Attributes:
        offers: made by this decode worker, or seen by this prefill worker.
        opened: offers that led to a handoff.
        refused: those that didn't, or requests without an offer, by reason.
        agreed: what was heard last: True for a handoff, False for a refusal, None when the peer said nothing.
        endpoint: of its control port, once known.
    """

    offers: int = 0
    opened: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    agreed: Optional[bool] = None
    endpoint: Optional[str] = None


class PeerTable:
    """At most MAX_PEERS, those not met for longest forgotten first."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, Peer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def offered(self, name: str) -> None:
        self._peer(name).offers += 1

    def opened(self, name: str, endpoint: Optional[str]) -> None:
        peer = self._peer(name)
        peer.opened, peer.agreed, peer.endpoint = peer.opened + 1, True, endpoint

    def refused(self, name: str, reason: str, silent: bool = False) -> None:
        """``silent``: the peer said nothing, so this is no answer of its."""
        peer = self._peer(name)
        peer.refused[reason] += 1
        if not silent:
            peer.agreed = False

    def summary(self) -> List[Dict[str, Any]]:
        """Plain data, the peer met last first."""
        return [
            {
                "peer": name,
                "agreed": peer.agreed,
                "offers": peer.offers,
                "opened": peer.opened,
                "refused": dict(peer.refused),
                "endpoint": peer.endpoint,
            }
            for name, peer in reversed(self._peers.items())
        ]

    def _peer(self, name: str) -> Peer:
        peer = self._peers.setdefault(name, Peer())
        self._peers.move_to_end(name)
        while len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return peer
