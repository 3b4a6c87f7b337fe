"""Which workers capture decode graphs: the options' resolution alone, no GPU."""

import pytest
from sglang.srt.arg_groups import memory_hook
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


@pytest.mark.parametrize("handoff, decode_backend, reserved", [(True, None, True), (True, "disabled", False), (False, None, False)])
def test_memory_is_kept_for_them(handoff, decode_backend, reserved):
    def megabytes(mode, on, backend):
        args = ServerArgs(
            model_path="none", device="cuda", disaggregation_mode=mode, disaggregation_seamless_handoff=on, page_size=1,
            cuda_graph_backend_decode=backend, cuda_graph_backend_prefill="disabled", cuda_graph_max_bs_decode=64,
        )  # fmt: skip
        handle_cuda_graph_config(args)
        return memory_hook.reserve_for_graph_mb(args)

    assert megabytes("prefill", handoff, decode_backend) == (megabytes("decode", False, None) if reserved else 0)
    assert megabytes("decode", False, None) > 0


def test_an_operator_can_turn_them_off():
    args = ServerArgs(
        model_path="none", device="cuda", disaggregation_mode="prefill", disaggregation_seamless_handoff=True,
        cuda_graph_backend_decode="disabled",
    )  # fmt: skip
    handle_cuda_graph_config(args)
    assert resolving_view(args).cuda_graph_config.decode.backend == "disabled"
