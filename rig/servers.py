"""How SGLang's servers and routers are started: command lines and variables, nothing running."""

import dataclasses
import os
import pathlib
import sys
import urllib.parse
from collections.abc import Sequence

from rig import ports

ROOT = pathlib.Path(__file__).resolve().parent.parent
TINY = ROOT / "build" / "models" / "tiny-qwen3-float32"
TINY_BF16 = ROOT / "build" / "models" / "tiny-qwen3-bfloat16"
SMOLLM2 = ROOT / "build" / "models" / "smollm2-135m-instruct"
STAND_IN = ROOT / "cpu" / "stand_in"
PLUGIN = ROOT / "rig" / "plugin"

# each does nothing without a variable of its own; the same for all, because SGLang reads this one when it's imported
PLUGINS = "transfer_hold,control_endpoint,poll_failures,wait_asleep,paced_forward"
HANDOFF_FLAG = "--disaggregation-seamless-handoff"
# health check of each kind of router; the Rust one is healthy before it knows any worker, but not ready
ROUTERS = {"sglang": "/readiness", "smg": "/readiness", "mini_lb": "/health"}


@dataclasses.dataclass(frozen=True)
class Options:
    """What the workers of a stack have in common.

    Attributes:
        model: folder of the model.
        dtype: type of weights and KV. float32 gives the same tokens whatever the batch.
        overlap: SGLang's overlap scheduler (its default), or the plain loop.
        max_total_tokens: KV slots of each worker.
        max_running_requests: requests of each worker that run at once.
        chunked_prefill_size: longest prompt piece of one forward, in tokens.
        fast_start: fork a server's children and import only the served models: half the time to start, see `rig/plugin`.
        args: more arguments for every worker.
        env: more variables for every worker.
    """

    model: pathlib.Path = TINY
    dtype: str = "float32"
    overlap: bool = True
    max_total_tokens: int = 65536
    max_running_requests: int = 32
    chunked_prefill_size: int = 2048
    fast_start: bool = True
    args: tuple[str, ...] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)


def worker_command(options: Options, url: str) -> list[str]:
    """Return the command line of a unified server on CPU that listens at `url`, with page size 1.

    Raises:
        FileNotFoundError: the model hasn't been made.
    """
    if not (options.model / "model.safetensors").exists():
        raise FileNotFoundError(f"there is no model in {options.model}: run `make models`")
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(options.model)]
    command += _listen(url) + ["--device", "cpu", "--attention-backend", "torch_native"]
    command += ["--dtype", options.dtype, "--page-size", "1"]
    command += ["--max-total-tokens", str(options.max_total_tokens)]
    command += ["--max-running-requests", str(options.max_running_requests)]
    command += ["--chunked-prefill-size", str(options.chunked_prefill_size)]
    # the idle schedulers would otherwise each spin on a core
    command += ["--sleep-on-idle", "--skip-server-warmup"]
    if not options.overlap:
        command += ["--disable-overlap-schedule"]
    return command + list(options.args)


def prefill_command(options: Options, url: str, bootstrap_port: int, handoff: bool) -> list[str]:
    """Return the command line of a prefill worker that sends KV by Mooncake over TCP."""
    command = worker_command(options, url)
    command += ["--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "mooncake_tcp"]
    command += ["--disaggregation-bootstrap-port", str(bootstrap_port)]
    return command + ([HANDOFF_FLAG] if handoff else [])


def decode_command(options: Options, url: str, handoff: bool) -> list[str]:
    """Return the command line of a decode worker that receives KV by Mooncake over TCP."""
    command = worker_command(options, url)
    command += ["--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "mooncake_tcp"]
    # the other kinds of backup of a retracted request's KV need a GPU
    command += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
    return command + ([HANDOFF_FLAG] if handoff else [])


def router_command(kind: str, url: str, prefill: str, bootstrap_port: int, decode: str) -> list[str]:
    """Return the command line of a router in front of one prefill and one decode worker.

    Args:
        kind: "sglang" (the Rust router), "smg" (its successor) or "mini_lb" (the Python one).
        url: where it listens.
        prefill, decode: base URLs of the workers.
        bootstrap_port: the prefill worker's port for decode workers.
    """
    workers = ["--pd-disaggregation", "--prefill", prefill, str(bootstrap_port), "--decode", decode]
    return _router(kind) + workers + _listen(url) + _router_options(kind)


def replicas_router_command(kind: str, url: str, workers: Sequence[str]) -> list[str]:
    """Return the command line of a router that takes turns between unified servers.

    Args:
        kind: "sglang" or "smg"; the third is for PD alone.
        url: where it listens.
        workers: base URLs of the servers.
    """
    if kind == "mini_lb":
        raise ValueError("mini_lb routes between prefill and decode workers only")
    return _router(kind) + ["--worker-urls", *workers] + _listen(url) + _router_options(kind)


def _router(kind: str) -> list[str]:
    if kind not in ROUTERS:
        raise ValueError(f"unknown router {kind!r}: choose one of {', '.join(ROUTERS)}")
    if kind == "smg":
        return [sys.executable, "-m", "smg.launch_router"]
    return [sys.executable, str(ROOT / "rig" / "router_main.py")]


def _router_options(kind: str) -> list[str]:
    if kind == "mini_lb":
        return ["--mini-lb"]
    return ["--prometheus-port", str(ports.free_port()), "--policy", "round_robin"]


def worker_env(options: Options, url: str) -> dict[str, str]:
    """Return the variables of a worker that others reach at the host of `url`."""
    env = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_HOST_IP": urllib.parse.urlsplit(url).hostname,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": _python_path(PLUGIN, STAND_IN),
        "SGLANG_PLUGINS": PLUGINS,
    }
    if options.fast_start:
        env |= {"SGLANG_PLUGINS": f"{PLUGINS},fast_start", "SGLANG_EXTERNAL_MODEL_PACKAGE": "rig_models"}
    return env | options.env


def hold_env(directory: pathlib.Path) -> dict[str, str]:
    """Return the variables by which a prefill worker's transfers are controlled through `directory`, see `rig.hold`."""
    return {"RIG_TRANSFER_DIR": str(directory)}


def _listen(url: str) -> list[str]:
    address = urllib.parse.urlsplit(url)
    return ["--host", address.hostname, "--port", str(address.port)]


def _python_path(*first: pathlib.Path) -> str:
    """Return PYTHONPATH with the folders `first` in front of what's there."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, first), *([inherited] if inherited else [])])
