"""Where and when something was measured."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import subprocess


def commit() -> str:
    """The commit of this repository that runs, in short; with a plus if files differ from it; "unknown" outside of git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        said = subprocess.run(command, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        said = ""
    return said or "unknown"


def describe() -> dict:
    """This machine, today."""
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
    }
