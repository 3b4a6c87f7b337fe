"""What an import does with the environment: which variables it reads, and which it sets."""

import os
from collections.abc import MutableMapping


class Reads:
    """Writes it down inside a with block. A loop over all reads none; dict(os.environ) reads all.

    Attributes:
        changes: {name: value} of what was set, None for what was removed; complete after the block.
    """

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._read: set[str] = set()
        self._passed: str | None = None  # by a loop over all
        self.changes: dict[str, str | None] = {}

    def same(self, env: dict[str, str]) -> bool:
        """Return whether the block would have found the same in `env`."""
        return all(env.get(name) == self._before.get(name) for name in self._read)

    def make_changes(self, environ: MutableMapping[str, str]) -> None:
        """Set and remove what the block has."""
        for name, value in self.changes.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value

    def __enter__(self) -> "Reads":
        kind = type(os.environ)
        self._originals = getitem, iterate = kind.__getitem__, kind.__iter__

        def noted(environ, name):
            if name != self._passed:
                self._read.add(name)
            return getitem(environ, name)

        def passing(environ):
            try:
                for self._passed in iterate(environ):
                    yield self._passed
            finally:
                self._passed = None

        kind.__getitem__, kind.__iter__ = noted, passing
        return self

    def __exit__(self, *_) -> None:
        type(os.environ).__getitem__, type(os.environ).__iter__ = self._originals
        names = self._before.keys() | os.environ.keys()
        now = {name: os.environ.get(name) for name in names}
        self.changes = {name: value for name, value in now.items() if value != self._before.get(name)}
