"""What a server imports, imported once, by the process from which `rig.warm` forks servers: SGLang too.

Some of SGLang's modules read the environment when they are imported, and each server has its own. So what they read is
written down: only a server that would have read the same may be forked, see `fits`.
"""

import gc
import os
import pathlib
import sys
import warnings

from rig import servers
from rig.process import die_with_parent
from rig.reads import Reads

# the same for every server that `fits`; torch and its like read some of it, which nobody writes down
_ENV = servers.worker_env(servers.Options(), "http://127.0.0.1")
_FOLDERS = _ENV["PYTHONPATH"].split(os.pathsep)
os.environ |= _ENV
sys.path[1:1] = _FOLDERS

gc.disable()  # a fifth of the time: there is nothing to collect yet
with Reads() as _others:
    import aiohttp  # noqa: F401
    import compressed_tensors  # noqa: F401
    import fastapi  # noqa: F401
    import fsspec  # noqa: F401
    import gguf  # noqa: F401
    import IPython  # noqa: F401
    import mistral_common  # noqa: F401
    import openai  # noqa: F401
    import requests  # noqa: F401
    import setproctitle
    import tiktoken  # noqa: F401
    import torch._dynamo  # noqa: F401
    import torch.distributed.tensor  # noqa: F401
    import torch.fx.experimental.symbolic_shapes  # noqa: F401
    import torchvision  # noqa: F401
    import transformers.conversion_mapping  # noqa: F401
    import transformers.generation.continuous_batching  # noqa: F401
    import transformers.integrations.hub_kernels  # noqa: F401
    import transformers.modeling_layers  # noqa: F401
    import transformers.modeling_utils  # noqa: F401
    import uvicorn  # noqa: F401
    import uvloop  # noqa: F401
    import xgrammar  # noqa: F401
    import zmq  # noqa: F401

# its warnings, of hardware that isn't here, are no news to whoever runs the demo; each server's own are in its log
_show, warnings.showwarning = warnings.showwarning, lambda *_, **__: None
with Reads() as _sglangs:
    import sglang.srt.entrypoints.http_server  # noqa: F401
    import sglang.srt.managers.scheduler  # noqa: F401

warnings.showwarning = _show
gc.enable()
if "prometheus_client" in sys.modules:
    raise RuntimeError("prometheus_client is imported: it keeps the folder of its figures from then on")

# it learns where the title lies only while argv and environ are as the kernel put them
setproctitle.getproctitle()
# the library's fork server would live as long as its children
die_with_parent()


def fits(env: dict[str, str]) -> bool:
    """Return whether a process with these variables would have imported the same."""
    folders = env.get("PYTHONPATH", "").split(os.pathsep)
    first, more = folders[: len(_FOLDERS)], folders[len(_FOLDERS) :]
    if first != _FOLDERS or any((pathlib.Path(folder) / "sglang").exists() for folder in more):
        return False
    env = dict(env)
    _others.make_changes(env)
    return _sglangs.same(env)


def make_changes(environ) -> None:
    """Change the environment as the imports would have."""
    _others.make_changes(environ)
    _sglangs.make_changes(environ)
