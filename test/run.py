"""All tests: `python test/run.py`. Those without servers run beside the others, on what these leave of the cores.

Those with servers wait a lot, for deadlines and for processes to start: a third of two cores' time is left.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rig.process import die_with_parent  # noqa: E402

LOG = ROOT / "build" / "test" / "without_servers.log"
PYTEST = (sys.executable, "-m", "pytest")
BESIDE = ("test", "-m", "not real", "-n", "2", "--dist", "worksteal")
CLEANUP_S = 60  # servers and network namespaces are ended by those who started them


def main() -> int:
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with_servers = [str(file) for file in sorted(ROOT.glob("test/**/test_*.py")) if "mark.real" in file.read_text()]
    print(f"tests without servers run beside these: {LOG.relative_to(ROOT)}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with open(LOG, "w") as log, contextlib.ExitStack() as cleanup:
        beside = subprocess.Popen([*PYTEST, *BESIDE], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_last_in_line)
        cleanup.callback(_end, beside)
        others = subprocess.Popen([*PYTEST, *with_servers, "-m", "real"], cwd=ROOT, preexec_fn=die_with_parent)
        cleanup.callback(_end, others)
        failed, beside_failed = others.wait(), beside.wait()
    text = LOG.read_text()
    print("\n== tests without servers\n" + (text if beside_failed else text.rstrip().rpartition("\n")[2]))
    return failed or beside_failed


def _last_in_line() -> None:
    """A session of its own, since the kernel may weigh sessions against each other before it looks at a process."""
    die_with_parent()
    os.setsid()
    os.nice(19)
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/autogroup").write_text("19")


def _end(process: subprocess.Popen) -> None:
    """As Ctrl-C would, so that it cleans up; nothing if it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLEANUP_S)
        process.kill()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
