"""Launch lines of the arms on GPUs: two devices each, whatever the arm."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys

from rig import servers

from .arms import Arm

BOOTSTRAP_PORT = 8998


@dataclasses.dataclass(frozen=True)
class Hardware:
    """
    Attributes:
        model: path or Hugging Face name.
        gpus: CUDA device ids of the two workers; the same twice when each has a host of its own.
        hosts: addresses of the two workers, which know each other by them.
        ib_devices: RDMA devices of the two; empty: Mooncake chooses.
        backend: of the KV transfer.
        args: more arguments for every worker.
        port: the first worker's; the others follow.
    """

    model: str = "Qwen/Qwen3-8B"
    gpus: tuple[str, str] = ("0", "1")
    hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.1")
    ib_devices: tuple[str, ...] = ()
    backend: str = "mooncake"
    args: tuple[str, ...] = ()
    port: int = 30000

    def url(self, worker: int) -> str:
        """Base URL of worker 0 or 1."""
        return f"http://{self.hosts[worker]}:{self.port + worker}"

    def router_url(self, number: int) -> str:
        """Base URL of the router with this number. They run beside worker 0."""
        return f"http://{self.hosts[0]}:{self.port + 10 + number}"


@dataclasses.dataclass(frozen=True)
class Command:
    """
    Attributes:
        name: of the process.
        env: variables on top of the environment.
        health: URL that answers 200 when it's ready.
    """

    name: str
    url: str
    argv: list[str]
    env: dict[str, str]
    health: str

    def __str__(self) -> str:
        """A line for the shell."""
        argv = ["python" if part == sys.executable else _short(part) for part in self.argv]
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(argv)])


def of_workers(arm: Arm, hardware: Hardware) -> list[Command]:
    """The arm's two workers."""
    names = ("prefill", "decode") if arm.pd else ("unified-0", "unified-1")
    return [
        Command(
            name=name,
            url=hardware.url(worker),
            argv=_worker(arm, hardware, worker),
            env={"CUDA_VISIBLE_DEVICES": hardware.gpus[worker], "SGLANG_HOST_IP": hardware.hosts[worker]},
            health=hardware.url(worker) + "/health",
        )
        for worker, name in enumerate(names)
    ]


def of_router(arm: Arm, hardware: Hardware, kind: str, number: int) -> Command:
    """A router before the arm's workers."""
    url, workers = hardware.router_url(number), [hardware.url(0), hardware.url(1)]
    if arm.pd:
        argv = servers.router_command(kind, url, workers[0], BOOTSTRAP_PORT, workers[1])
    else:
        argv = servers.replicas_router_command(kind, url, workers)
    return Command(f"router-{kind}", url, argv, {}, url + servers.ROUTERS[kind])


def serving(arm: Arm, hardware: Hardware, prompt: int, output: int, concurrency: int = 1, requests: int = 24) -> str:
    """The line by which `sglang.benchmark.serving` measures a running arm, for the shell."""
    argv = ["python", "-m", "sglang.benchmark.serving", "--backend", "sglang", "--base-url", hardware.router_url(0)]
    argv += ["--model", hardware.model, "--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1"]
    argv += ["--random-input-len", str(prompt), "--random-output-len", str(output), "--num-prompts", str(requests)]
    argv += ["--max-concurrency", str(concurrency)]
    return shlex.join(argv + (["--pd-separated"] if arm.pd else []))


def _worker(arm: Arm, hardware: Hardware, worker: int) -> list[str]:
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", hardware.model, "--tp-size", "1"]
    # page size 1 is what the handoff needs today, so all arms have it
    argv += ["--host", hardware.hosts[worker], "--port", str(hardware.port + worker), "--page-size", "1", *hardware.args]
    if not arm.pd:
        return argv
    argv += ["--disaggregation-mode", ("prefill", "decode")[worker], "--disaggregation-transfer-backend", hardware.backend]
    argv += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
    if hardware.ib_devices:
        argv += ["--disaggregation-ib-device", hardware.ib_devices[worker]]
    argv += [servers.HANDOFF_FLAG] if arm.handoff else []
    return argv + list(arm.worker_args) + (list(arm.decode_args) if worker == 1 else [])


def _short(part: str) -> str:
    return os.path.relpath(part, servers.ROOT) if part.startswith(f"{servers.ROOT}{os.sep}") else part
