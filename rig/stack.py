"""Whole stacks as context managers: a unified server, or prefill and decode workers behind a router.

    with stack.pair(namespaces=True, link_mbit=40) as pair:
        client.generate(pair.url, [5, 6, 7], max_new_tokens=8)
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import time

from rig import ports, servers
from rig.control_proxy import ControlProxy
from rig.hold import Hold
from rig.network import HOSTS, Network
from rig.process import Process
from rig.servers import Options

START_TIMEOUT_S = 300  # fifteen times what a server needs alone on two cores
MISSED = "Lost connection with prefill instance (bootstrap_addr: "  # what D logs once it has dropped its connections
MISSED_TIMEOUT_S = 60
LOOPBACK = "127.0.0.1"
_runs = itertools.count(1)


@dataclasses.dataclass
class Server:
    """A running server: its base URL and its process."""

    url: str
    process: Process

    @property
    def log(self) -> pathlib.Path:
        """Path of the log file."""
        return self.process.log

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid


@dataclasses.dataclass
class Pair:
    """A prefill and a decode worker behind a router.

    Attributes:
        prefill, decode, router: the three servers.
        hold: holds KV transfers.
        network: their hosts and links, when they run in namespaces; None on loopback.
        unified: a server without disaggregation beside them, to compare with; None unless asked for.
        control: spoils the handoff's messages; None unless faults were asked for.
        poll_failures: file for `fail_polls`.
        more_routers: other kinds of router in front of the same workers, by kind.
    """

    prefill: Server
    decode: Server
    router: Server
    hold: Hold
    network: Network | None
    unified: Server | None
    control: ControlProxy | None
    poll_failures: pathlib.Path
    more_routers: dict[str, Server] = dataclasses.field(default_factory=dict)
    _prefill_ends: int = 0

    @property
    def url(self) -> str:
        """Base URL of the router."""
        return self.router.url

    def set_link(self, mbit: float | None) -> None:
        """Change the rate of the KV link, in Mbit/s, at once; None: not limited."""
        (self.network or self.hold).set_rate(mbit)

    def fail_polls(self, chance: float) -> None:
        """Let each look of a worker at a KV transfer say "failed" with this chance. 0: no more. Needs `with_faults`."""
        if not chance:
            self.poll_failures.unlink(missing_ok=True)
            return
        new = self.poll_failures.with_suffix(".new")
        new.write_text(str(chance))
        new.rename(self.poll_failures)

    def start_again(self, side: str) -> None:
        """Start the worker `side`, "prefill" or "decode", at its old address after it has ended, and wait for its health.

        A prefill worker is started once D has noticed that it's gone; D must have known it.

        Raises:
            ProcessDied, NotReady: it didn't come up. The message shows the tail of its log.
            TimeoutError: D hasn't noticed.
        """
        server: Server = getattr(self, side)
        if side == "prefill":
            self._wait_until_missed()
        _empty_metrics(server.log)  # else the new process would go on counting where the old one was killed
        server.process.start_again()
        server.process.wait_ready(server.url + "/health", START_TIMEOUT_S)

    def _wait_until_missed(self) -> None:
        """D learns by missed heartbeats only. It would go on with the old connections of a worker that is back before that,
        and every request would wait for SGLang's bootstrap timeout. Forked servers are so quick, those on GPUs aren't."""
        self._prefill_ends += 1
        deadline = time.monotonic() + MISSED_TIMEOUT_S
        while self.decode.log.read_text(errors="replace").count(MISSED) < self._prefill_ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.decode.log} doesn't say {MISSED!r} within {MISSED_TIMEOUT_S} s")
            time.sleep(0.1)


def new_run_folder() -> pathlib.Path:
    """Return an empty folder for the logs of one stack, under build/rig/."""
    folder = servers.ROOT / "build" / "rig" / f"{os.getpid()}-{next(_runs)}"
    # an earlier process may have had this one's id, and left files by which transfers are held
    shutil.rmtree(folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def unified(options: Options = Options(), folder: pathlib.Path | None = None):
    """Run one server that does prefill and decode, and yield it as `Server` once it's healthy.

    Raises:
        ProcessDied, NotReady: it didn't come up. The message shows the tail of its log.
    """
    with contextlib.ExitStack() as cleanup:
        server = start_unified(cleanup, options, folder or new_run_folder())
        server.process.wait_ready(server.url + "/health", START_TIMEOUT_S)
        yield server


def start_unified(cleanup: contextlib.ExitStack, options: Options, folder: pathlib.Path) -> Server:
    """Start a unified server, leaving its end to `cleanup`, and return it without waiting for its health."""
    url = f"http://{LOOPBACK}:{ports.free_port()}"
    env = servers.worker_env(options, url)
    return _start(cleanup, "unified", servers.worker_command(options, url), url, folder, env, options.fast_start)


@contextlib.contextmanager
def pair(
    options: Options = Options(),
    *,
    prefill_handoff: bool = False,
    decode_handoff: bool = False,
    prefill_args: tuple[str, ...] = (),
    decode_args: tuple[str, ...] = (),
    prefill_env: dict[str, str] | None = None,
    decode_env: dict[str, str] | None = None,
    router: str = "sglang",
    router_args: tuple[str, ...] = (),
    more_routers: tuple[str, ...] = (),
    namespaces: bool = False,
    link_mbit: float | None = None,
    with_unified: bool = False,
    with_faults: bool = False,
    folder: pathlib.Path | None = None,
):
    """Run a prefill worker, a decode worker and a router, and yield them as `Pair` once all are healthy.

    Args:
        options: what both workers have in common.
        prefill_handoff, decode_handoff: start that side with seamless handoff.
        prefill_args, decode_args: more arguments for one side.
        prefill_env, decode_env: more variables for one side.
        router: "sglang", "smg" or "mini_lb".
        router_args: more arguments for it.
        more_routers: other kinds to run beside it, on the same host.
        namespaces: each on a host of its own, the prefill host's link shaped by the kernel (`rig.network`, needs root).
            Otherwise all on loopback, transfers slowed down by the plugin.
        link_mbit: rate of the KV link in Mbit/s; None: not limited.
        with_unified: run a unified server with the same options as well, on loopback.
        with_faults: the handoff's messages pass through `Pair.control`, and `Pair.fail_polls` works.
        folder: where logs go; must be empty or absent.

    Raises:
        CannotShape: namespaces can't be made here.
        ProcessDied, NotReady: a part didn't come up. The message shows the tail of its log.
    """
    folder = folder or new_run_folder()
    hold = Hold(folder / "transfer")
    with contextlib.ExitStack() as cleanup:
        network = cleanup.enter_context(contextlib.closing(Network())) if namespaces else None
        address = network.addresses if network else dict.fromkeys(HOSTS, LOOPBACK)
        url = {host: f"http://{address[host]}:{ports.free_port()}" for host in HOSTS}
        bootstrap_port = ports.free_port()

        def start(host: str, command: list[str], env: dict[str, str]) -> Server:
            command = network.command(host, command) if network else command
            return _start(cleanup, host, command, url[host], folder, env, options.fast_start)

        control, poll_failures = None, folder / "poll_failures"
        if with_faults:
            endpoints = [f"tcp://{address['control']}:{ports.free_port()}" for _ in range(2)]
            control = ControlProxy(folder / "control", *endpoints)
            start("control", control.command(), {})

        def faults_env(worker: str) -> dict[str, str]:
            return control.env(worker) | {"RIG_POLL_FAILURES": str(poll_failures)} if control else {}

        prefill = start(
            "prefill",
            servers.prefill_command(options, url["prefill"], bootstrap_port, prefill_handoff) + list(prefill_args),
            servers.worker_env(options, url["prefill"])
            | servers.hold_env(hold.directory)
            | faults_env("prefill")
            | (prefill_env or {}),
        )
        decode = start(
            "decode",
            servers.decode_command(options, url["decode"], decode_handoff) + list(decode_args),
            servers.worker_env(options, url["decode"]) | faults_env("decode") | (decode_env or {}),
        )
        alone = start_unified(cleanup, options, folder) if with_unified else None
        for server in filter(None, (prefill, decode, alone)):
            server.process.wait_ready(server.url + "/health", START_TIMEOUT_S)
        hold.check_armed()
        # last: started before its workers, the router looks for them only every so often
        command = servers.router_command(router, url["router"], url["prefill"], bootstrap_port, url["decode"])
        front = start("router", command + list(router_args), {})
        beside = {}
        for kind in more_routers:
            where = f"http://{address['router']}:{ports.free_port()}"
            command = servers.router_command(kind, where, url["prefill"], bootstrap_port, url["decode"])
            command = network.command("router", command) if network else command
            beside[kind] = _start(cleanup, f"router-{kind}", command, where, folder, {}, False)
        for kind, one in ((router, front), *beside.items()):
            one.process.wait_ready(one.url + servers.ROUTERS[kind], START_TIMEOUT_S)
        running = Pair(prefill, decode, front, hold, network, alone, control, poll_failures, beside)
        running.set_link(link_mbit)
        try:
            yield running
        finally:
            # all at once, then `cleanup` waits for each: a worker takes seconds to end
            for server in filter(None, (front, *beside.values(), decode, prefill, alone)):
                server.process.ask_to_stop()


@contextlib.contextmanager
def replicas(options: Options = Options(), *, count: int = 2, routers: tuple[str, ...] = ("sglang",)):
    """Run unified servers behind routers on loopback, and yield the servers and the routers by kind, once all are healthy.

    Raises:
        ProcessDied, NotReady: a part didn't come up. The message shows the tail of its log.
    """
    folder = new_run_folder()
    with contextlib.ExitStack() as cleanup:
        workers = [start_unified(cleanup, options, folder / str(number)) for number in range(count)]
        for worker in workers:
            worker.process.wait_ready(worker.url + "/health", START_TIMEOUT_S)
        fronts = {}
        for kind in routers:
            url = f"http://{LOOPBACK}:{ports.free_port()}"
            command = servers.replicas_router_command(kind, url, [worker.url for worker in workers])
            fronts[kind] = _start(cleanup, f"router-{kind}", command, url, folder, {}, False)
        for kind, front in fronts.items():
            front.process.wait_ready(front.url + servers.ROUTERS[kind], START_TIMEOUT_S)
        try:
            yield workers, fronts
        finally:
            for server in (*fronts.values(), *workers):
                server.process.ask_to_stop()


@contextlib.contextmanager
def side_by_side(options: Options = Options(), *, handoff_args: tuple[str, ...] = (), **link):
    """Run a `Pair` with a unified server beside it, and one with seamless handoff, all up at once, and yield both.

    Args:
        options: of all workers; with RIG_IDLE_PAUSE_S those of the arms that aren't asked leave the cores alone.
        handoff_args: more arguments for the decode worker with handoff.
        link: `namespaces` and `link_mbit` as in `pair`.
    """
    with contextlib.ExitStack() as cleanup:
        plain = cleanup.enter_context(pair(options, with_unified=True, **link))
        on = {"prefill_handoff": True, "decode_handoff": True, "decode_args": handoff_args}
        yield plain, cleanup.enter_context(pair(options, **on, **link))


def _start(
    cleanup: contextlib.ExitStack, name: str, command: list[str], url: str, folder: pathlib.Path, env: dict[str, str], forked: bool
) -> Server:
    log = folder / f"{name}.log"
    env = {"PROMETHEUS_MULTIPROC_DIR": str(_empty_metrics(log))} | env
    process = Process(name, command, log, env, forked=forked)
    cleanup.callback(process.stop)
    return Server(url, process)


def _empty_metrics(log: pathlib.Path) -> pathlib.Path:
    """An empty folder beside a server's log for its metrics. SGLang would make one itself, but too late where a plugin has
    imported Prometheus' client before, and forked servers would share one."""
    folder = log.with_suffix(".metrics")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
