"""SGLang plugin of demo and benchmarks: a scheduler that only waits for a transfer sleeps instead of polling without pause,
RIG_IDLE_PAUSE_S seconds a round. A decode step of SmolLM2 takes 100 ms on CPU, a round of the waiting loop 0.3 ms.

--sleep-on-idle covers workers without requests. One whose request is still in transfer polls as fast as it can, which
on 2 cores takes the core that the other worker computes on. All arms run with this plugin.
"""

import os
import time

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    """Wrap the scheduler's method that's called in each round of its loop without a batch, unless RIG_IDLE_PAUSE_S isn't set."""
    if "RIG_IDLE_PAUSE_S" not in os.environ:
        return
    pause_s = float(os.environ["RIG_IDLE_PAUSE_S"])

    def on_idle(original, scheduler, *args, **kwargs):
        result = original(scheduler, *args, **kwargs)
        if not scheduler.is_fully_idle():
            time.sleep(pause_s)
        return result

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.on_idle", on_idle, HookType.AROUND)
