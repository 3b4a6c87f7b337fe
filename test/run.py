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
LOG = ROOT / "build" / "test" / "without_servers.log"
PYTEST = (sys.executable, "-m", "pytest")
BESIDE = ("test", "-m", "not real", "-n", "2", "--dist", "worksteal")


def main() -> int:
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with_servers = [file for file in sorted(ROOT.glob("test/**/test_*.py")) if "mark.real" in file.read_text()]
    print(f"tests without servers run beside these: {LOG.relative_to(ROOT)}", flush=True)
    with open(LOG, "w") as log:
        beside = subprocess.Popen([*PYTEST, *BESIDE], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_last_in_line)
    try:
        failed = subprocess.run([*PYTEST, *map(str, with_servers), "-m", "real"], cwd=ROOT).returncode
        beside_failed = beside.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(beside.pid, signal.SIGTERM)
    text = LOG.read_text()
    print("\n== tests without servers\n" + (text if beside_failed else text.rstrip().rpartition("\n")[2]))
    return failed or beside_failed


def _last_in_line() -> None:
    """A session of its own, since the kernel may weigh sessions against each other before it looks at a process."""
    os.setsid()
    os.nice(19)
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/autogroup").write_text("19")


if __name__ == "__main__":
    sys.exit(main())
