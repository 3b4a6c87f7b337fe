"""Free TCP ports."""

import socket

_given: set[int] = set()


def free_port() -> int:
    """Return a TCP port that no process listens on and that this process hasn't been given before.

    The port isn't reserved: another process may still take it before it's used.
    """
    while True:
        with socket.socket() as sock:
            sock.bind(("", 0))
            port = sock.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port
