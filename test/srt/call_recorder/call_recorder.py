"""Test-only SGLang plugin: writes down which calls a scheduler makes, to compare two builds.

This folder on PYTHONPATH and CALL_RECORDER_DIR are all it takes. Two files per worker, named by its role:

    calls.ROLE    each pair "caller -> callee" between functions of SGLang's scheduler files, once, in order of first sight
    batches.ROLE  each batch that is run: its mode, its requests, its tokens
"""

import os
import pathlib
import sys

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

DIRECTORY_VARIABLE = "CALL_RECORDER_DIR"
FOLDERS = ("/sglang/srt/managers/", "/sglang/srt/disaggregation/", "/sglang/srt/mem_cache/")


def register() -> None:
    """Wrap the scheduler's event loop, unless CALL_RECORDER_DIR isn't set."""
    if DIRECTORY_VARIABLE not in os.environ:
        return
    directory = pathlib.Path(os.environ[DIRECTORY_VARIABLE])

    def run_event_loop(original, scheduler, *args, **kwargs):
        role = scheduler.disaggregation_mode.value
        record_batches(scheduler, open(directory / f"batches.{role}", "a", buffering=1))
        record_calls(open(directory / f"calls.{role}", "a", buffering=1))
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            # how far it gets on its way out is a matter of time: it may be killed first
            sys.setprofile(None)

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_event_loop", run_event_loop, HookType.AROUND)


def record_batches(scheduler, out) -> None:
    """Write a line for every batch given to `scheduler.run_batch`."""
    run_batch = scheduler.run_batch

    def recorded(batch, *args, **kwargs):
        lens = batch.seq_lens_cpu.tolist()
        out.write(f"{batch.forward_mode.name} requests={len(batch.reqs)} seq_lens={lens} new={batch.extend_num_tokens}\n")
        return run_batch(batch, *args, **kwargs)

    scheduler.run_batch = recorded


def record_calls(out) -> None:
    """Write a line for every new pair of caller and callee of this thread, from now on."""
    seen, names = set(), {}

    def name(code) -> str | None:
        if code not in names:
            path = code.co_filename.replace("\\", "/")
            at = next((path.index(f) + len("/sglang/srt/") for f in FOLDERS if f in path), None)
            names[code] = None if at is None else f"{path[at:]}:{code.co_qualname}"
        return names[code]

    def profile(frame, event, arg):
        if event != "call" or frame.f_back is None:
            return
        pair = (frame.f_back.f_code, frame.f_code)
        if pair in seen:
            return
        seen.add(pair)
        caller, callee = name(pair[0]), name(pair[1])
        if caller and callee:
            out.write(f"{caller} -> {callee}\n")

    sys.setprofile(profile)
