"""Free TCP ports."""

import pathlib
import random
import socket

FIRST = 20000  # Mooncake takes 12,000 to 17,000
_RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
_claims: list[socket.socket] = []  # kept open until this process ends
_draw = random.Random()
TRIES = 1000


def free_port() -> int:
    """Return a TCP port that no process listens on and that no rig which still runs has been given.

    It lies where the kernel takes none for a connection or for a socket that is bound to any port: servers that start
    together have hundreds of these.

    Raises:
        OSError: there is none.
    """
    below = ephemeral()
    candidates = range(FIRST, below.start) if below.start > FIRST + 1000 else range(below.stop, 65536)
    if len(candidates) < 1000:  # this machine gives nearly all to the kernel
        candidates = below
    for _ in range(TRIES):
        port = _draw.choice(candidates)
        if _free(port) and _claim(port):
            return port
    raise OSError(f"found no free TCP port in {candidates}")


def ephemeral() -> range:
    """Return the ports that the kernel chooses from."""
    first, last = map(int, _RANGE.read_text().split())
    return range(first, last + 1)


def _free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Let nobody else have it, nor this rig again: a name among the abstract Unix sockets goes away with its process."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0rig-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
