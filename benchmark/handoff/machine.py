"""Where and when something was measured."""

from __future__ import annotations

import datetime
import os
import platform


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
