"""What a server imports of other people's, imported once, by the process from which `rig.warm` forks servers.

Nothing of SGLang is here: some of its modules read the environment when they are imported, and each server has its own.
Nor is Prometheus' client, for the same reason.
"""

import os

# read at import; the same for every server, see rig.servers.worker_env
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import aiohttp  # noqa: E402, F401
import compressed_tensors  # noqa: E402, F401
import fastapi  # noqa: E402, F401
import gguf  # noqa: E402, F401
import IPython  # noqa: E402, F401
import mistral_common  # noqa: E402, F401
import openai  # noqa: E402, F401
import requests  # noqa: E402, F401
import setproctitle  # noqa: E402
import tiktoken  # noqa: E402, F401
import torch._dynamo  # noqa: E402, F401
import torch.distributed.tensor  # noqa: E402, F401
import torch.fx.experimental.symbolic_shapes  # noqa: E402, F401
import torchvision  # noqa: E402, F401
import transformers.conversion_mapping  # noqa: E402, F401
import transformers.generation.continuous_batching  # noqa: E402, F401
import transformers.integrations.hub_kernels  # noqa: E402, F401
import transformers.modeling_layers  # noqa: E402, F401
import transformers.modeling_utils  # noqa: E402, F401
import uvicorn  # noqa: E402, F401
import uvloop  # noqa: E402, F401
import xgrammar  # noqa: E402, F401
import zmq  # noqa: E402, F401

from rig.process import die_with_parent  # noqa: E402

# it learns where the title lies only while argv and environ are as the kernel put them
setproctitle.getproctitle()
# the library's fork server would live as long as its children
die_with_parent()
