"""Test-only SGLang plugin: a worker's handoff advertises the endpoint of `rig/control_proxy.py` instead of its own.

The worker's own goes into the file RIG_CONTROL_REAL, where the proxy finds it.
"""

import os
import pathlib

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    """Wrap the channel's constructor, unless RIG_CONTROL_ADVERTISE isn't set."""
    if "RIG_CONTROL_ADVERTISE" not in os.environ:
        return

    def bind(original, channel, *args, **kwargs):
        original(channel, *args, **kwargs)
        # only the scheduler has a channel, and one is all it has
        pathlib.Path(os.environ["RIG_CONTROL_REAL"]).write_text(channel.endpoint)
        channel.endpoint = os.environ["RIG_CONTROL_ADVERTISE"]

    HookRegistry.register(
        "sglang.srt.disaggregation.handoff.channel.HandoffChannel.__init__", bind, HookType.AROUND
    )
