"""Test-only SGLang plugin: delays and holds KV transfers on a prefill worker, as `rig/hold.py` says in its directory.

This folder on PYTHONPATH and RIG_TRANSFER_DIR are all it takes: SGLang finds the entry point in the .dist-info beside this
file. It wraps:

- `MooncakeTransferEngine.batch_transfer_sync`, through which all KV and metadata leaves, on Mooncake's threads. Rate and
  hold-all wait in here.
- `MooncakeKVManager.add_transfer_request`, through which the scheduler queues a chunk. Chunks of a held request are put
  aside here and queued later: the transfer queue is in order, and one request waiting inside would stop those behind it.
- the prefill scheduler's `_send_kv_chunk`, which alone knows both the request's id and its room.
- `CommonKVManager.conclude_transfer`, to note the end.
"""

import json
import os
import pathlib
import pkgutil
import threading
import time

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

DIRECTORY_VARIABLE = "RIG_TRANSFER_DIR"
ENGINE = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
POLL_S = 0.005


class Events:
    """Appends lines to events.jsonl. A line is one write, so that readers see whole lines."""

    def __init__(self, directory: pathlib.Path):
        self._file = open(directory / "events.jsonl", "ab", buffering=0)

    def note(self, what: str, **fields) -> None:
        self._file.write((json.dumps({"at": time.monotonic(), "what": what} | fields) + "\n").encode())


class Link:
    """A link of limited rate, shared by all transfers: each occupies it for bytes / rate seconds, one after another."""

    def __init__(self, directory: pathlib.Path):
        self._rate_file, self._hold_file = directory / "rate_mbit", directory / "hold_all"
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, size: int) -> None:
        """Block the calling thread until `size` bytes would have passed and nothing holds them."""
        rate = self._bytes_per_second()
        if rate is not None:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + size / rate
                passed_at = self._free_at
            time.sleep(max(0.0, passed_at - time.monotonic()))
        while self._hold_file.exists():
            time.sleep(POLL_S)

    def _bytes_per_second(self) -> float | None:
        try:
            return float(self._rate_file.read_text()) * 1e6 / 8
        except FileNotFoundError:
            return None


class HeldRequests:
    """Chunks put aside because their request is held. Each request's chunks keep their order."""

    def __init__(self, directory: pathlib.Path, events: Events):
        self._directory, self._events = directory / "hold", events
        self._rids: dict[int, str] = {}
        self._aside: dict[int, list] = {}
        self._lock = threading.Lock()

    def name(self, room: int, rid: str) -> None:
        """Remember the request id of a room."""
        self._rids[room] = rid

    def rid(self, room: int) -> str | None:
        """Return the request id of a room."""
        return self._rids.get(room)

    def put(self, room: int, queue_chunk) -> None:
        """Call `queue_chunk` now, or when its request is held as soon as it isn't any more."""
        with self._lock:
            aside = self._aside.get(room)
            if aside is None and not self._held(room):
                queue_chunk()
                return
            self._events.note("held", room=room, rid=self.rid(room))
            if aside is not None:
                aside.append(queue_chunk)
                return
            self._aside[room] = [queue_chunk]
        threading.Thread(target=self._release_later, args=(room,), daemon=True).start()

    def _release_later(self, room: int) -> None:
        while self._held(room):
            time.sleep(POLL_S)
        with self._lock:
            for queue_chunk in self._aside.pop(room):
                queue_chunk()
            self._events.note("released", room=room, rid=self.rid(room))

    def failing(self, room: int) -> bool:
        """Return whether the request of a room shall fail instead of being transferred."""
        return self._named(self._directory.with_name("fail"), room)

    def _held(self, room: int) -> bool:
        return self._named(self._directory, room)

    def _named(self, directory: pathlib.Path, room: int) -> bool:
        rid = self.rid(room)
        return rid is not None and (directory / rid).exists()


def register() -> None:
    """Wrap the upstream functions, unless RIG_TRANSFER_DIR isn't set. Only the scheduler ever runs what's wrapped.

    Raises:
        RuntimeError: a function isn't where it was. SGLang logs it and goes on, so the rig looks for the file `armed`.
    """
    if DIRECTORY_VARIABLE not in os.environ:
        return
    from sglang.srt.disaggregation.base.conn import KVPoll

    directory = pathlib.Path(os.environ[DIRECTORY_VARIABLE])
    events, link = Events(directory), Link(directory)
    held = HeldRequests(directory, events)

    def send_kv_chunk(original, scheduler, req, *args, **kwargs):
        held.name(req.bootstrap_room, req.rid)
        return original(scheduler, req, *args, **kwargs)

    def add_transfer_request(original, manager, room, kv_indices, index_slice, is_last_chunk, **kwargs):
        events.note("queued", rid=held.rid(room), room=room, tokens=len(kv_indices), last=is_last_chunk)

        def queue_chunk():
            if held.failing(room):
                manager.conclude_failure(bootstrap_room=room, failure_reason="failed by the rig")
            else:
                original(manager, room, kv_indices, index_slice, is_last_chunk, **kwargs)

        held.put(room, queue_chunk)

    def batch_transfer_sync(original, engine, session_id, buffers, peer_buffer_addresses, lengths):
        size = sum(lengths)
        events.note("start", bytes=size)
        link.wait(size)
        code = original(engine, session_id, buffers, peer_buffer_addresses, lengths)
        events.note("end", bytes=size)
        return code

    def conclude_transfer(original, manager, *, bootstrap_room, **kwargs):
        status = original(manager, bootstrap_room=bootstrap_room, **kwargs)
        if status is not None:
            events.note("done", rid=held.rid(bootstrap_room), room=bootstrap_room, ok=status == KVPoll.Success)
        return status

    wrappers = {
        "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin._send_kv_chunk": send_kv_chunk,
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager.add_transfer_request": add_transfer_request,
        "sglang.srt.disaggregation.common.conn.CommonKVManager.conclude_transfer": conclude_transfer,
        f"{ENGINE}.MooncakeTransferEngine.batch_transfer_sync": batch_transfer_sync,
    }
    originals = {target: pkgutil.resolve_name(target) for target in wrappers}
    for target, wrapper in wrappers.items():
        HookRegistry.register(target, wrapper, HookType.AROUND)
    HookRegistry.apply_hooks()
    for target, original in originals.items():
        if pkgutil.resolve_name(target) is original:
            raise RuntimeError(f"the transfer plugin couldn't wrap {target}")
    (directory / "armed").touch()
