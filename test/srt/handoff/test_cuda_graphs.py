"""Which workers capture decode graphs: the options' resolution alone, no GPU."""

import pytest
from sglang.srt.arg_groups.cuda_graph_hook import handle_cuda_graph_config, resolving_view
from sglang.srt.server_args import ServerArgs


@pytest.mark.parametrize(
    "mode, handoff, backend",
    [("prefill", False, "disabled"), ("prefill", True, "full"), ("decode", False, "full"), ("decode", True, "full")],
)
def test_a_prefill_worker_with_the_handoff_keeps_its_decode_graphs(mode, handoff, backend):
    args = ServerArgs(
        model_path="none", device="cuda", disaggregation_mode=mode, disaggregation_seamless_handoff=handoff, page_size=1
    )
    handle_cuda_graph_config(args)
    assert resolving_view(args).cuda_graph_config.decode.backend == backend


def test_an_operator_can_turn_them_off():
    args = ServerArgs(
        model_path="none", device="cuda", disaggregation_mode="prefill", disaggregation_seamless_handoff=True,
        cuda_graph_backend_decode="disabled",
    )  # fmt: skip
    handle_cuda_graph_config(args)
    assert resolving_view(args).cuda_graph_config.decode.backend == "disabled"
