"""SGLang plugin of the demo: a scheduler that only waits for a transfer sleeps instead of polling without pause.

--sleep-on-idle covers workers without requests. One whose request is still in transfer polls as fast as it can, which
on 2 cores takes the core that the other worker computes on. All arms run with this plugin.
"""

import time

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

PAUSE_S = 0.004  # a decode step takes 100 ms on CPU, a round of the waiting loop 0.3 ms


def register() -> None:
    """Wrap the scheduler's method that's called in each round of its loop without a batch."""

    def on_idle(original, scheduler, *args, **kwargs):
        result = original(scheduler, *args, **kwargs)
        if not scheduler.is_fully_idle():
            time.sleep(PAUSE_S)
        return result

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.on_idle", on_idle, HookType.AROUND)
