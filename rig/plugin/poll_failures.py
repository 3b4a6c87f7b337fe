"""Test-only SGLang plugin: upstream's own fault injection at run time. A look at a KV transfer says "failed" with the
chance in the file RIG_POLL_FAILURES; no file: as without the plugin. Upstream reads its variable at every look."""

import os
import pathlib

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

UPSTREAM_VARIABLE = "SGLANG_TEST_DISAGG_FAILURE_PROB"


def register() -> None:
    """Wrap the looks, unless RIG_POLL_FAILURES isn't set."""
    if "RIG_POLL_FAILURES" not in os.environ:
        return
    chance = pathlib.Path(os.environ["RIG_POLL_FAILURES"])

    def poll(original, pollers):
        try:
            os.environ[UPSTREAM_VARIABLE] = chance.read_text()
        except FileNotFoundError:
            os.environ.pop(UPSTREAM_VARIABLE, None)
        return original(pollers)

    HookRegistry.register("sglang.srt.disaggregation.utils._poll_with_failure_injection", poll, HookType.AROUND)
