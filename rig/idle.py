"""Whether a worker holds nothing any more: no request in any queue, no KV slot in use."""

import json
import time
import urllib.error
import urllib.request


class NotIdle(AssertionError):
    """A worker didn't become idle. The message shows its figures."""


def loads(url: str) -> dict:
    """Return the figures of the server's only data-parallel rank, from /v1/loads."""
    with urllib.request.urlopen(f"{url}/v1/loads?include=core,disagg,queues", timeout=10) as response:
        return json.load(response)["loads"][0]


def busy(figures: dict) -> dict[str, float]:
    """Return those figures of `loads` that count requests and aren't zero, by name."""
    counts = {name: figures[name] for name in ("num_running_reqs", "num_waiting_reqs")}
    counts |= {name: value for name, value in figures["disaggregation"].items() if name.endswith("_reqs")}
    counts |= figures["queues"]
    return {name: value for name, value in counts.items() if value}


def wait_idle(url: str, timeout: float = 30) -> None:
    """Wait until the server at `url` has no request, then empty its prefix cache and wait until no KV slot is in use.

    Raises:
        NotIdle: after `timeout` seconds it has requests, refuses to empty its cache, or still uses KV slots.
    """
    deadline = time.monotonic() + timeout
    while True:
        figures = loads(url)
        problem = busy(figures) or _flush(url)
        if not problem:
            figures = loads(url)
            problem = {name: figures[name] for name in ("num_used_tokens", "token_usage") if figures[name]}
        if not problem:
            return
        if time.monotonic() > deadline:
            raise NotIdle(f"{url} isn't idle after {timeout} s: {problem}. All figures: {figures}")
        time.sleep(0.1)


def _flush(url: str) -> dict[str, str]:
    """Ask for an empty prefix cache. Return why it was refused, or nothing."""
    request = urllib.request.Request(f"{url}/flush_cache", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10):
            return {}
    except urllib.error.HTTPError as error:
        return {"flush_cache": f"{error.code} {error.read().decode(errors='replace')}"}
