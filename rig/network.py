"""Four hosts on one machine: prefill, decode, router and control (where `rig/control_proxy.py` runs, if at all) in network
namespaces, the link of the prefill host shaped.

One bridge joins the hosts; the rig itself sits at its address GATEWAY. Needs root and iproute2. The names carry the id of
the process that made them: what a crashed run left behind goes away when the next one starts.
"""

import ctypes
import ipaddress
import itertools
import json
import os
import re
import shutil
import signal
import subprocess

IN_NAMESPACE = ["ip", "netns", "exec"]  # before a namespace's name and a command
_CLONE_NEWNET = 0x40000000
HOSTS = {"prefill": 1, "decode": 2, "router": 3, "control": 4}  # last number of the address
GATEWAY = 254
# A short queue, as a switch has: a long one would let bulk transfers delay every other message by seconds.
BURST, LATENCY = "16kb", "20ms"
# No host's: a bridge drops what is sent there. A filter by address would need modules that small kernels lack.
NOBODY = "02:00:00:00:00:00"
_NAME = re.compile(r"^(rig(\d+)n\d+)[a-z]*$")
_count = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)
_open: set[str] = set()  # bridges of this process


class CannotShape(RuntimeError):
    """This machine can't make namespaces or shape a link. The message says why and what to do."""


def problem() -> str | None:
    """Return why namespaces can't be made here, or None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run as root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: apt-get install iproute2"
    return None


def shaped_by_kernel() -> tuple[bool, str]:
    """Return whether the KV link can be a network link shaped by the kernel here, and in words how it's slowed down."""
    try:
        Network().close()
    except CannotShape as reason:
        return False, f"delayed by the transfer plugin ({reason})"
    return True, "shaped by the kernel (tc tbf between network namespaces)"


def enter(namespace: str) -> None:
    """Move the calling thread, and what it starts, into a network namespace.

    Raises:
        OSError: there is none of this name, or the process isn't root's.
    """
    with open(f"/run/netns/{namespace}") as file:
        if _libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"can't enter the network namespace {namespace}")


class Network:
    """The bridge, the namespaces and the shaped link. `close` takes all of it away again.

    Attributes:
        addresses: IPv4 address of each host of `HOSTS`.
    """

    def __init__(self, link_mbit: float | None = None):
        """Make the network, after taking away what crashed runs left.

        Args:
            link_mbit: rate of what leaves the prefill host, in Mbit/s; None: not limited.

        Raises:
            CannotShape: see `problem`, or a command of iproute2 failed.
        """
        if reason := problem():
            raise CannotShape(reason)
        remove_leftovers()
        # a bridge's name has at most 15 characters, so does a host's end of a link with its one letter more
        self._bridge = f"rig{os.getpid()}n{next(_count)}"
        _open.add(self._bridge)
        subnet = _unused_subnet()
        self.addresses = {host: str(subnet[number]) for host, number in HOSTS.items()}
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{subnet[GATEWAY]}/{subnet.prefixlen}", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for host in HOSTS:
                self._add_host(host, subnet.prefixlen)
            self.set_rate(link_mbit)
        except BaseException:
            self.close()
            raise

    def command(self, host: str, command: list[str]) -> list[str]:
        """Return the command line that runs `command` on `host`. The process keeps its id: nothing stays in between."""
        return [*IN_NAMESPACE, self._namespace(host), *command]

    def set_rate(self, mbit: float | None) -> None:
        """Let what leaves the prefill host pass at `mbit` Mbit/s from now on; None: not limited."""
        namespace = self._namespace("prefill")
        if mbit is None:
            subprocess.run(_in(namespace, "tc", "qdisc", "del", "dev", "eth0", "root"), capture_output=True)
            return
        shape = ["tbf", "rate", f"{mbit}mbit", "burst", BURST, "latency", LATENCY]
        _run(*_in(namespace, "tc", "qdisc", "replace", "dev", "eth0", "root", *shape))

    def down(self, host: str) -> None:
        """Cut `host` off. Packets are lost, connections stay open, as when a cable is pulled."""
        _run("ip", "link", "set", self._link(host), "down")

    def up(self, host: str) -> None:
        """Connect `host` again."""
        _run("ip", "link", "set", self._link(host), "up")

    def cut(self, one: str, other: str) -> None:
        """Lose every packet between two hosts, both ways; each still reaches the rest. Connections stay open."""
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, there, "replace", "lladdr", NOBODY, "nud", "permanent")

    def heal(self, one: str, other: str) -> None:
        """Undo `cut`. What TCP held back comes late: its pause between two tries has doubled with each."""
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, there, "del")

    def _neighbour(self, here: str, there: str, action: str, *fields: str) -> None:
        where = [self.addresses[there], "dev", "eth0"]
        _run(*_in(self._namespace(here), "ip", "neigh", action, *where, *fields))

    def close(self) -> None:
        """Take everything away. Processes on the hosts must have ended. Can be called twice."""
        for host in HOSTS:
            subprocess.run(["ip", "link", "del", self._link(host)], capture_output=True)
            subprocess.run(["ip", "netns", "del", self._namespace(host)], capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)
        _open.discard(self._bridge)

    def _namespace(self, host: str) -> str:
        return f"{self._bridge}{host}"

    def _link(self, host: str) -> str:
        return f"{self._bridge}{host[0]}"

    def _add_host(self, host: str, prefix_length: int) -> None:
        namespace, link = self._namespace(host), self._link(host)
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", link, "master", self._bridge, "up")
        _run(*_in(namespace, "ip", "addr", "add", f"{self.addresses[host]}/{prefix_length}", "dev", "eth0"))
        _run(*_in(namespace, "ip", "link", "set", "eth0", "up"))
        _run(*_in(namespace, "ip", "link", "set", "lo", "up"))


def remove_leftovers() -> list[str]:
    """Take away namespaces and bridges of runs that have ended, with the processes still in them. Return their names."""
    removed = []
    for namespace in _names(["ip", "-json", "netns", "list"], "name"):
        if _dead(namespace):
            for pid in _run("ip", "netns", "pids", namespace).split():
                os.kill(int(pid), signal.SIGKILL)
            _run("ip", "netns", "del", namespace)
            removed.append(namespace)
    for link in _names(["ip", "-json", "link", "show"], "ifname"):
        if _dead(link):
            # a pair's end may be gone with its namespace meanwhile
            subprocess.run(["ip", "link", "del", link], capture_output=True)
            removed.append(link)
    return removed


def _dead(name: str) -> bool:
    """Return whether `name` is one of the rig's and the process that made it has ended."""
    match = _NAME.match(name)
    if match is None:
        return False
    bridge, pid = match[1], int(match[2])
    if pid == os.getpid():  # an earlier process may have had this one's id
        return bridge not in _open
    return not os.path.exists(f"/proc/{pid}")


def _names(command: list[str], field: str) -> list[str]:
    return [entry[field] for entry in json.loads(_run(*command) or "[]")]


def _unused_subnet() -> ipaddress.IPv4Network:
    """Return a /24 of 10.9.0.0/16 that overlaps nothing that has a route here."""
    routes = [route["dst"] for route in json.loads(_run("ip", "-json", "-4", "route", "show") or "[]")]
    used = [ipaddress.ip_network(dst) for dst in routes if dst != "default"]
    for subnet in ipaddress.ip_network("10.9.0.0/16").subnets(new_prefix=24):
        if not any(subnet.overlaps(other) for other in used):
            return subnet
    raise CannotShape("all of 10.9.0.0/16 is in use on this machine: free a /24 of it")


def _in(namespace: str, *command: str) -> list[str]:
    return [*IN_NAMESPACE, namespace, *command]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotShape(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
