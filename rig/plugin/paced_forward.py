"""Test-only SGLang plugin: every forward takes as long as `rig.pace` says, or longer if computing does."""

import time

from rig import pace
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    """Wrap the model's forward, unless there is no pace to keep to."""
    paced = pace.of_env()
    if paced is None:
        return

    def forward(original, runner, batch, *args, **kwargs):
        began = time.monotonic()
        result = original(runner, batch, *args, **kwargs)
        if batch.forward_mode.is_decode():
            seconds = paced.of_step(batch.batch_size)
        else:
            seconds = paced.of_extend(batch.extend_num_tokens or 0)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return result

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.forward", forward, HookType.AROUND)
