"""Anonymous memory of the scheduler processes, and the rule by which it is flat. Pages of files come and go by themselves."""

from __future__ import annotations

import pathlib
import re
from typing import List, Optional, Tuple

# The line fitted to the second half of the samples rises by less than this for each request.
LIMIT_PER_REQUEST = 4096  # bytes
# With fewer requests in the second half an allocator's one page more would decide.
MIN_REQUESTS = 500


class Memory:
    """Samples of one worker: (requests done, anonymous bytes of its scheduler)."""

    def __init__(self, pid: int) -> None:
        """Args: ``pid`` is the server's; its scheduler is the child of that name."""
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        (self._scheduler,) = [c for c in children if b"scheduler" in pathlib.Path(f"/proc/{c}/cmdline").read_bytes()]
        self.samples: List[Tuple[int, int]] = []

    def sample(self, requests: int) -> int:
        """Take a sample and return it, in bytes."""
        status = pathlib.Path(f"/proc/{self._scheduler}/status").read_text()
        anonymous = int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024
        self.samples.append((requests, anonymous))
        return anonymous


def slope(samples: List[Tuple[int, int]]) -> Optional[float]:
    """Bytes a request by least squares over the second half; None with less than MIN_REQUESTS requests in it."""
    half = [s for s in samples if s[0] >= samples[-1][0] / 2]
    if len(half) < 3 or half[-1][0] - half[0][0] < MIN_REQUESTS:
        return None
    mean_x, mean_y = (sum(column) / len(half) for column in zip(*half))
    return sum((x - mean_x) * (y - mean_y) for x, y in half) / sum((x - mean_x) ** 2 for x, _ in half)


def flat(samples: List[Tuple[int, int]]) -> Optional[bool]:
    """Whether the memory is flat; None if it can't be told yet."""
    bytes_per_request = slope(samples)
    return None if bytes_per_request is None else bytes_per_request < LIMIT_PER_REQUEST
