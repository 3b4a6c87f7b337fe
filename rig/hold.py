"""The hand on the KV transfer of a running prefill worker: slow it down, stop it, let it go.

The other half is `rig/plugin/transfer_hold.py`, which runs inside the worker. Both meet in a directory:

    rate_mbit     the link's rate in Mbit/s, one number; no file: no limit
    hold_all      while it exists, nothing is transferred
    hold/RID      while it exists, nothing of the request RID is transferred
    fail/RID      while it exists, the transfer of the request RID fails when its next chunk would be sent
    armed         written by the plugin once it's in place
    events.jsonl  written by the plugin, see `Hold.events`
"""

import json
import pathlib
import time


class Hold:
    """Controls the transfers of one prefill worker. Only transfer threads wait, never the scheduler; no transfer fails."""

    def __init__(self, directory: pathlib.Path):
        self.directory = pathlib.Path(directory)
        for name in ("hold", "fail"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)

    def check_armed(self) -> None:
        """Raise RuntimeError if the worker runs without the plugin."""
        if not (self.directory / "armed").exists():
            raise RuntimeError("the prefill worker runs without the transfer plugin: look for 'plugin' in its log")

    def all(self) -> None:
        """Hold every transfer from now on, also the rest of those under way."""
        (self.directory / "hold_all").touch()

    def request(self, rid: str) -> None:
        """Hold the transfer of the request `rid`; others overtake it. Call before it's sent.

        The client chooses `rid`. sglang-router passes it on for /generate only, mini_lb for /v1/chat/completions too.
        """
        (self.directory / "hold" / rid).touch()

    def fail(self, rid: str) -> None:
        """Let the transfer of the request `rid` fail: at once if it's held, else at its next chunk."""
        (self.directory / "fail" / rid).touch()
        (self.directory / "hold" / rid).unlink(missing_ok=True)

    def release(self, rid: str | None = None) -> None:
        """Let the request `rid` go, or without an argument everything that's held."""
        if rid is not None:
            (self.directory / "hold" / rid).unlink(missing_ok=True)
            return
        (self.directory / "hold_all").unlink(missing_ok=True)
        for path in (self.directory / "hold").iterdir():
            path.unlink(missing_ok=True)

    def set_rate(self, mbit: float | None) -> None:
        """Let transfers take the time of a link of `mbit` Mbit/s, shared by all of them. None: no limit."""
        path = self.directory / "rate_mbit"
        if mbit is None:
            path.unlink(missing_ok=True)
            return
        new = path.with_suffix(".new")
        new.write_text(f"{mbit}\n")
        new.rename(path)

    def events(self) -> list[dict]:
        """Return what the plugin has noted, oldest first.

        Each has `at` (time.monotonic() seconds) and `what`:
            queued: the scheduler handed over a chunk of KV. `rid`, `room`, `tokens`, `last` (whether it's the last one).
            held: a chunk waits because of `request(rid)`. `rid`, `room`.
            released: it goes on. `rid`, `room`.
            start, end: one write of `bytes` bytes to D; between them lie waiting for a hold or the rate, and the copy.
            done: D was told that the request's transfer is over. `rid`, `room`, `ok`.
        """
        path = self.directory / "events.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    def wait_for(self, what: str, rid: str | None = None, timeout: float = 30) -> dict:
        """Wait for the first event `what` (of the request `rid` if given) and return it.

        Raises:
            TimeoutError: none came within `timeout` seconds. The message lists what was noted last.
        """
        deadline = time.monotonic() + timeout
        while True:
            events = self.events()
            for event in events:
                if event["what"] == what and rid in (None, event.get("rid")):
                    return event
            if time.monotonic() > deadline:
                raise TimeoutError(f"no transfer event {what!r} of request {rid} within {timeout} s; last: {events[-5:]}")
            time.sleep(0.01)
