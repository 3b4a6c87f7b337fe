"""Short extend attention: the cases of short_extend_cases.py, on a GPU, else interpreted in their own process."""

import pytest
import torch
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci

from interpreted import run_interpreted

register_cpu_ci(est_time=75, suite="stage-b-test-cpu")
register_cuda_ci(est_time=120, stage="base-b", runner_config="1-gpu-small")

if torch.cuda.is_available():
    from short_extend_cases import *  # noqa: F403
else:

    @pytest.mark.timeout(600)
    def test_the_cases_in_the_interpreter():
        run_interpreted("short_extend_cases.py")
