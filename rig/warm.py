"""Starts `python -m MODULE ...` by forking a process that has imported SGLang, and torch and its like.

The process is the standard library's fork server; it has one thread. What would have imported something else than it did is
started plainly, see `rig.warm_imports`.
"""

import contextlib
import multiprocessing
import os
import pathlib
import runpy
import signal
import site
import subprocess
import sys
import types

from rig.network import IN_NAMESPACE, enter

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["rig.warm_imports"])


class Popen:
    """A running `python -m MODULE ...`, with what `rig.process` needs of subprocess.Popen.

    Attributes:
        pid: its process id.
    """

    def __init__(self, command: list[str], out, env: dict[str, str], at_start):
        """Start `command`, which must be `fits`, in a session of its own.

        Args:
            out: open file for stdout and stderr.
            env: its whole environment.
            at_start: called in the new process first. A function of a module.
        """
        log = str(pathlib.Path(out.name).resolve())
        with _without_main():
            self._process = _context.Process(target=_become, args=(*_split(command), log, env, at_start))
            self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._process.exitcode

    def terminate(self) -> None:
        """Send SIGTERM."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def fits(command: list[str]) -> bool:
    """Return whether `command` is this Python's `-m MODULE ...`, in a network namespace or not."""
    return _split(command)[1] != []


def _split(command: list[str]) -> tuple[str | None, list[str]]:
    """Return the network namespace, and the module with its arguments, which is empty if it's another kind of command."""
    namespace = None
    if command[: len(IN_NAMESPACE)] == IN_NAMESPACE:
        namespace, command = command[len(IN_NAMESPACE)], command[len(IN_NAMESPACE) + 1 :]
    return namespace, command[2:] if command[:2] == [sys.executable, "-m"] else []


@contextlib.contextmanager
def _without_main():
    """A forked process would import our main module; it will have another."""
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _become(namespace: str | None, module: list[str], log: str, env: dict[str, str], at_start) -> None:
    """Be the process that a shell would have started, as far as the module can see."""
    from rig import warm_imports  # the fork server has it; whoever starts servers need not

    at_start()
    os.setsid()
    if namespace is not None:
        enter(namespace)
    with open(log, "ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    if not warm_imports.fits(env):
        os.execve(sys.executable, [sys.executable, "-m", *module], env)
    os.environ.clear()
    os.environ.update(env)
    warm_imports.make_changes(os.environ)
    standard = [path for path in sys.path if path.startswith(sys.base_prefix) and "site-packages" not in path]
    sys.path[:] = [os.getcwd(), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *standard]
    for folder in site.getsitepackages():
        site.addsitedir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rig"]:
        del sys.modules[name]
    multiprocessing.set_start_method(None, force=True)
    sys.argv[:] = module
    runpy.run_module(module[0], run_name="__main__", alter_sys=True)
