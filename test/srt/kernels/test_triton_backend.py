"""The Triton backend's replay rounds, eager and as graphs: the cases of two files, on a GPU, else each interpreted in its own process."""

import pytest
import torch
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci

from interpreted import run_interpreted

register_cpu_ci(est_time=120, suite="stage-b-test-cpu")
register_cuda_ci(est_time=120, stage="base-b", runner_config="1-gpu-small")

if torch.cuda.is_available():
    from triton_backend_cases import *  # noqa: F403
    from triton_graph_cases import *  # noqa: F403
else:

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("cases", ["triton_backend_cases.py", "triton_graph_cases.py"])
    def test_the_cases_in_the_interpreter(cases):
        run_interpreted(cases)
