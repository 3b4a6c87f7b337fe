"""Cases in a process of their own: Triton decides at its import whether it interprets, and whoever imported it first in
this one wants it compiled."""

import os
import subprocess
import sys
from pathlib import Path


def run_interpreted(cases: str) -> None:
    """Run the tests of a file beside this one.

    Raises:
        AssertionError: one failed; the message shows pytest's output.
    """
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).with_name(cases)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-20000:]
