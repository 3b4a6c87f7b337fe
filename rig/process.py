"""One real process: started in a group of its own, watched while it comes up, ended by its id."""

import ctypes
import os
import pathlib
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from rig import warm

TAIL_LINES, TAIL_WIDTH = 40, 300
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessDied(RuntimeError):
    """A process ended on its own. The message shows the tail of its log."""


class NotReady(TimeoutError):
    """A process didn't answer its health check in time. The message shows the tail of its log."""


def die_with_parent() -> None:
    """Let the kernel kill the calling process when the thread that made it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A running command with a log file. It's killed by the kernel when the rig dies, whatever the way.

    Attributes:
        name: for messages, e.g. "prefill".
        pid: process id, which is also the id of its process group.
        log: path of the file with its stdout and stderr.
        started_at: `time.monotonic()` seconds at the start.
        ready_after: seconds from the start until `wait_ready` saw it ready; None before.
    """

    def __init__(
        self, name: str, command: list[str], log: pathlib.Path, env: dict[str, str] | None = None, *, forked: bool = False
    ):
        """Start `command` with the variables of `env` on top of the environment.

        Args:
            forked: fork it from `rig.warm`, if the command fits.

        Raises:
            RuntimeError: not called from the main thread. The kernel ends a child when the *thread* that made it ends.
        """
        self.name, self.command, self.log = name, command, pathlib.Path(log)
        self._env, self._forked = env or {}, forked and warm.fits(command)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._start("wb")

    def start_again(self) -> None:
        """Start the same command once more after the process has ended. The log goes on, `pid` is a new one.

        Raises:
            RuntimeError: it still runs, or this isn't the main thread.
        """
        if self.alive():
            raise RuntimeError(f"{self.name} (pid {self.pid}) still runs")
        self._start("ab")

    def _start(self, log_mode: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"start {self.name} from the main thread: a child dies together with the thread that started it")
        env = os.environ | self._env
        with open(self.log, log_mode) as out:
            if self._forked:
                self._popen = warm.Popen(self.command, out, env, die_with_parent)
            else:
                self._popen = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=env,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
        self.pid = self._popen.pid
        self.started_at = time.monotonic()
        self.ready_after: float | None = None

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self._popen.poll() is None

    def tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last `lines` lines of the log, each cut to `TAIL_WIDTH` characters: SGLang logs its 500 arguments in one."""
        last = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(line if len(line) <= TAIL_WIDTH else line[:TAIL_WIDTH] + " ..." for line in last)

    def check_alive(self) -> None:
        """Raise `ProcessDied` if the process has ended."""
        code = self._popen.poll()
        if code is not None:
            raise ProcessDied(f"{self.name} (pid {self.pid}) ended with code {code}. End of {self.log}:\n{self.tail()}")

    def wait_ready(self, url: str, timeout: float) -> None:
        """Wait until a GET of `url` answers 200.

        Args:
            url: health check.
            timeout: seconds, counted from now.

        Raises:
            ProcessDied: it ended first.
            NotReady: it didn't answer in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.check_alive()
            if _answers(url):
                self.ready_after = time.monotonic() - self.started_at
                return
            if time.monotonic() > deadline:
                raise NotReady(
                    f"{self.name} (pid {self.pid}) didn't answer {url} within {timeout:.0f} s. End of {self.log}:\n{self.tail()}"
                )
            time.sleep(0.2)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process and return. `stop` must follow."""
        if self.alive():
            self._popen.terminate()

    def stop(self, timeout: float = 5) -> None:
        """End the process: SIGTERM, then after `timeout` seconds SIGKILL to it and its group. Can be called twice."""
        self.ask_to_stop()
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        self._signal_group(signal.SIGKILL)
        self._popen.wait()

    def kill(self) -> None:
        """End the process and its group at once, as a crash would."""
        self._signal_group(signal.SIGKILL)
        self._popen.wait()

    def freeze(self) -> None:
        """Stop the process and its group (SIGSTOP) until `thaw`: alive, but silent."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._signal_group(signal.SIGCONT)

    def _signal_group(self, sig: int) -> None:
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:
            pass


def wait_ended(pid: int, timeout: float = 5) -> None:
    """Wait until the process `pid` has ended, whoever its parent is; a zombie has.

    Raises:
        TimeoutError: it still runs after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while _runs(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} still runs after {timeout} s")
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
