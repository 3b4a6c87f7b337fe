"""Short extend attention: the cases of short_extend_cases.py, here on a GPU, else interpreted in their own process.

Triton decides at its import whether it interprets, and whoever imported it first in this process wants it compiled.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci

register_cpu_ci(est_time=75, suite="stage-b-test-cpu")
register_cuda_ci(est_time=120, stage="base-b", runner_config="1-gpu-small")

CASES = Path(__file__).with_name("short_extend_cases.py")

if torch.cuda.is_available():
    from short_extend_cases import *  # noqa: F403
else:

    @pytest.mark.timeout(600)
    def test_the_cases_in_the_interpreter():
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CASES],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert run.returncode == 0, run.stdout[-20000:]
