"""The handoff log: the output token ids of one request, append-only, from index 1."""

from __future__ import annotations

import hashlib
from array import array
from typing import List, Optional, Sequence


class LogError(ValueError):
    """An append that the log can't take; the log is unchanged."""


class LogGap(LogError):
    """The append starts after the next free index: entries between are missing."""


class LogConflict(LogError):
    """The append overlaps the log with other token ids, or runs past its end."""


class HandoffLog:
    """Token ids t1..tn of one request.

    Entries are only ever added at the end, and none after ``close``. ``close`` fixes
    the final length, which may lie ahead of the entries received so far.
    """

    def __init__(self) -> None:
        self._ids = array("q")
        self._closed_at: Optional[int] = None

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def closed_at(self) -> Optional[int]:
        """Final length in tokens, or None while the log is open."""
        return self._closed_at

    @property
    def complete(self) -> bool:
        """The log is closed and every entry up to its end is here."""
        return self._closed_at is not None and len(self._ids) == self._closed_at

    def extend(self, start: int, ids: Sequence[int]) -> int:
        """Add ``ids`` as the entries ``start``, ``start + 1``, ...; return how many were new.

        An overlap with equal ids is accepted and adds nothing twice.

        Raises:
            LogGap: ``start`` is beyond the next free index.
            LogConflict: an overlapping entry differs, or an entry lies past the end.
        """
        length = len(self._ids)
        if start < 1 or start > length + 1:
            raise LogGap(f"append at {start}, log has {length} entries")
        known = min(length - start + 1, len(ids))
        if self.slice(start, start + known) != list(ids[:known]):
            raise LogConflict(f"append at {start} disagrees with the log")
        end = start + len(ids) - 1
        if self._closed_at is not None and end > self._closed_at:
            raise LogConflict(f"append up to {end}, log is closed at {self._closed_at}")
        self._ids.extend(ids[known:])
        return len(ids) - known

    def close(self, length: int) -> None:
        """Fix the final length, in tokens. Closing twice at the same length is harmless.

        Raises:
            LogConflict: the log is longer, or was closed at another length.
        """
        if self._closed_at not in (None, length) or length < len(self._ids):
            raise LogConflict(
                f"close at {length}, log has {len(self._ids)} entries and is "
                f"closed at {self._closed_at}"
            )
        self._closed_at = length

    def reopen(self) -> None:
        """Allow appends again: the right to append was granted anew (Resume)."""
        self._closed_at = None

    def close_here(self) -> None:
        """End the log where it is, also when it was closed further on: those entries never came."""
        self._closed_at = len(self._ids)

    def slice(self, start: int, stop: int) -> List[int]:
        """Entries ``start`` to ``stop - 1``, 1-based."""
        return self._ids[start - 1 : stop - 1].tolist()

    def digest(self) -> bytes:
        """8 bytes that two logs share when they hold the same entries (BLAKE2b)."""
        return hashlib.blake2b(self._ids.tobytes(), digest_size=8).digest()
