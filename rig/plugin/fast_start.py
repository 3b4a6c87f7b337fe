"""SGLang plugin of the rig: a server's scheduler and detokenizer are forked, not spawned.

Both would import again what the main process just has, which is more than half of a server's 40 s of CPU time. The main
process still has a single thread at that point, so forking is safe; that's checked.
"""

import multiprocessing
import os

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    """Make the main process fork its children. SGLang asks for spawning in the function that's wrapped here."""

    def set_envs_and_config(original, *args, **kwargs):
        result = original(*args, **kwargs)
        threads = os.listdir("/proc/self/task")
        if len(threads) == 1:
            multiprocessing.set_start_method("fork", force=True)
        else:
            print(f"fast_start: not forking, because {len(threads)} threads run already", flush=True)
        return result

    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", set_envs_and_config, HookType.AROUND)
