"""CLOSED-BY-DEFAULT: what is not supported takes today's path; a server-wide misfit refuses to start."""

from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.base.conn import StateType
from sglang.srt.disaggregation.handoff.eligibility import (
    refuse_unsupported,
    refuse_unsupported_state,
    request_misfit,
    unsupported_environment,
    unsupported_options,
)
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

# ------------------------------------------------------------------------------ the server
SUPPORTED = {
    "disaggregation_seamless_handoff": True, "disaggregation_handoff_replay_mode": "extend",
    "disaggregation_handoff_verify": False,
    "disaggregation_mode": "prefill", "disaggregation_transfer_backend": "mooncake",
    "disaggregation_decode_allocation_policy": "early", "tp_size": 1, "pp_size": 1, "dp_size": 1,
    "enable_dp_attention": False, "attn_cp_size": 1, "dcp_size": 1, "page_size": 1, "enable_pdmux": False,
    "enable_pd_role_switch": False, "optimistic_prefill_attempts": 0, "enable_mixed_chunk": False,
    "scheduler_recv_interval": 1, "enable_priority_scheduling": False, "disable_priority_preemption": False,
    "speculative_algorithm": None, "enable_lora": None, "enable_hisparse": False, "enable_unified_memory": False,
    "enable_kv_cache_sharding": False, "enable_hierarchical_cache": False, "enable_lmcache": False,
    "enable_flexkv": False, "enable_memory_saver": False, "moe_a2a_backend": "none", "dllm_algorithm": None,
    "encoder_only": False, "language_only": False, "is_embedding": False,
    "disaggregation_decode_enable_radix_cache": False, "disaggregation_decode_enable_offload_kvcache": False,
    "disaggregation_decode_host_receive_threshold": 1, "radix_cache_backend": None, "enable_unified_cache_external_linker": False,
    "enable_return_routed_experts": False, "enable_return_indexer_topk": False, "kt_weight_path": None,
    "extra_metric_labels": {"pod": "1"},
}  # fmt: skip
UNSUPPORTED = [
    ({"disaggregation_mode": "null"}, "--disaggregation-mode"),
    ({"disaggregation_transfer_backend": "nixl"}, "--disaggregation-transfer-backend nixl"),
    ({"disaggregation_decode_allocation_policy": "late"}, "--disaggregation-decode-allocation-policy late"),
    ({"tp_size": 2}, "--tp-size 2"),
    ({"pp_size": 2}, "--pp-size 2"),
    ({"dp_size": 2}, "data parallelism"),
    ({"enable_dp_attention": True}, "data parallelism"),
    ({"attn_cp_size": 2}, "context parallelism"),
    ({"dcp_size": 2}, "context parallelism"),
    ({"page_size": 64}, "--page-size 64"),
    ({"enable_pdmux": True}, "--enable-pdmux"),
    ({"enable_pd_role_switch": True}, "--enable-pd-role-switch"),
    ({"optimistic_prefill_attempts": 1}, "--optimistic-prefill-attempts"),
    ({"enable_mixed_chunk": True}, "--enable-mixed-chunk"),
    ({"scheduler_recv_interval": 2}, "--scheduler-recv-interval"),
    ({"enable_priority_scheduling": True}, "--enable-priority-scheduling"),
    ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE"),
    ({"enable_lora": True}, "--enable-lora"),
    ({"enable_hisparse": True}, "--enable-hisparse"),
    ({"enable_unified_memory": True}, "--enable-unified-memory"),
    ({"enable_kv_cache_sharding": True}, "--enable-kv-cache-sharding"),
    ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
    ({"enable_lmcache": True}, "LMCache"),
    ({"enable_flexkv": True}, "FlexKV"),
    ({"radix_cache_backend": "mine"}, "--radix-cache-backend mine"),
    ({"enable_unified_cache_external_linker": True}, "--enable-unified-cache-external-linker"),
    ({"enable_return_routed_experts": True}, "--enable-return-routed-experts"),
    ({"enable_return_indexer_topk": True}, "--enable-return-indexer-topk"),
    ({"kt_weight_path": "/w"}, "--kt-weight-path"),
    ({"extra_metric_labels": {"pod": "1", "reason": "2"}}, "--extra-metric-labels"),
    ({"enable_memory_saver": True}, "--enable-memory-saver"),
    ({"moe_a2a_backend": "deepep"}, "--moe-a2a-backend deepep"),
    ({"dllm_algorithm": "x"}, "--dllm-algorithm"),
    ({"encoder_only": True}, "encoder disaggregation"),
    ({"language_only": True}, "encoder disaggregation"),
    ({"is_embedding": True}, "--is-embedding"),
    ({"disaggregation_decode_enable_radix_cache": True}, "--disaggregation-decode-enable-radix-cache"),
    ({"disaggregation_decode_enable_offload_kvcache": True}, "--disaggregation-decode-enable-offload-kvcache"),
    ({"disaggregation_decode_host_receive_threshold": 0}, "--disaggregation-decode-host-receive-threshold"),
]  # fmt: skip


def server(**changes):
    assert set(changes) <= set(SUPPORTED)
    return SimpleNamespace(**(SUPPORTED | changes))


def test_settings_of_the_handoff_need_it():
    with pytest.raises(ValueError, match="need --disaggregation-seamless-handoff"):
        refuse_unsupported(server(disaggregation_seamless_handoff=False, disaggregation_handoff_verify=True))


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_plain_worker_of_either_role_may_start(mode):
    refuse_unsupported(server(disaggregation_mode=mode))


@pytest.mark.parametrize("page_size", [None, 1])
def test_page_size_one_however_it_is_said(page_size):
    assert unsupported_options(server(page_size=page_size)) == []


def test_priority_scheduling_without_preemption_is_supported():
    assert unsupported_options(server(enable_priority_scheduling=True, disable_priority_preemption=True)) == []


@pytest.mark.parametrize("changes, text", UNSUPPORTED)
def test_an_option_that_is_not_supported_refuses_to_start(changes, text):
    (reason,) = unsupported_options(server(**changes))
    assert text in reason
    with pytest.raises(ValueError, match="does not support"):
        refuse_unsupported(server(**changes))


def test_one_error_lists_all_of_them():
    changes = {}
    for change, _ in UNSUPPORTED:
        changes |= change
    with pytest.raises(ValueError) as error:
        refuse_unsupported(server(**changes))
    for _, text in UNSUPPORTED:
        assert text in str(error.value)
    assert "drop --disaggregation-seamless-handoff" in str(error.value)


@pytest.mark.parametrize("name", ["SGLANG_DISAGG_STAGING_BUFFER", "SGLANG_RUST_SERVER"])
def test_the_environment_refuses_to_start_too(name, monkeypatch):
    assert unsupported_environment() == []
    monkeypatch.setenv(name, "1")
    assert unsupported_environment() == [name]
    with pytest.raises(ValueError, match=name):
        refuse_unsupported(server())


def test_a_model_whose_requests_have_more_than_kv_refuses_to_start():
    def model(**has):
        return SimpleNamespace(**{"is_encoder_decoder": False, "use_ngram_embedding": False, "use_engram": False} | has)

    refuse_unsupported_state([], model())
    with pytest.raises(ValueError, match="mamba, swa.*Drop the flag"):
        refuse_unsupported_state([StateType.MAMBA, StateType.SWA], model())
    with pytest.raises(ValueError, match="encoder's output"):
        refuse_unsupported_state([], model(is_encoder_decoder=True))
    for table in ("use_ngram_embedding", "use_engram"):
        with pytest.raises(ValueError, match="n-gram tables"):
            refuse_unsupported_state([], model(**{table: True}))


def test_the_options_are_upstreams_own():
    """A renamed option would be an AttributeError at start, or worse, a default that is never looked at."""
    from sglang.srt.arg_groups.field_order import POSITIONAL_FIELD_ORDER

    known = set(POSITIONAL_FIELD_ORDER)
    assert set(SUPPORTED) <= known, set(SUPPORTED) - known


# ------------------------------------------------------------------------------ the request
def request(params=(), **changes):
    sampling = SamplingParams(**({"temperature": 0, "max_new_tokens": 8} | dict(params)))
    sampling.normalize(SimpleNamespace(encode=lambda text, **_: [1] * len(text)))
    rid = changes.pop("rid", "r")
    later = {name: changes.pop(name) for name in ("beam_group", "multimodal_inputs", "grammar", "session") if name in changes}
    req = Req(rid, "", [1, 2, 3], sampling, **changes)
    for name, value in later.items():
        assert hasattr(req, name)
        setattr(req, name, value)
    return req


MISFITS = [
    ("health_check", {"rid": "HEALTH_CHECK_1"}),
    ("fake_transfer", {"bootstrap_host": FAKE_BOOTSTRAP_HOST}),
    ("parallel_samples", {"params": {"n": 2}}),
    ("beam_search", {"beam_group": object()}),
    ("not_greedy", {"params": {"temperature": 0.7}}),
    ("not_greedy", {"params": {"temperature": 1.0, "top_k": 2}}),
    ("penalties", {"params": {"frequency_penalty": 0.1}}),
    ("penalties", {"params": {"presence_penalty": -0.1}}),
    ("penalties", {"params": {"repetition_penalty": 1.1}}),
    ("min_new_tokens", {"params": {"min_new_tokens": 1}}),
    ("logit_bias", {"params": {"logit_bias": {"5": 1.0}}}),
    ("no_new_tokens", {"params": {"max_new_tokens": 0}}),
    ("custom_params", {"params": {"custom_params": {"a": 1}}}),
    ("grammar", {"params": {"json_schema": "{}"}}),
    ("grammar", {"params": {"regex": "a*"}}),
    ("grammar", {"params": {"ebnf": "root ::= 'a'"}}),
    ("grammar", {"params": {"structural_tag": "{}"}}),
    ("grammar", {"grammar": object()}),
    ("logprobs", {"return_logprob": True}),
    ("hidden_states", {"return_hidden_states": True}),
    ("routing_capture", {"return_routed_experts": True}),
    ("sampling_mask", {"return_sampling_mask": True}),
    ("custom_logit_processor", {"custom_logit_processor": "x"}),
    ("lora", {"lora_id": "a"}),
    ("session", {"session": object()}),
    ("multimodal", {"multimodal_inputs": object()}),
    ("input_embeds", {"input_embeds": [[0.0]]}),
]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0, "top_k": 1},
        {"max_new_tokens": 1},
        {"stop": ["x"]},
        {"stop_token_ids": [3]},
        {"ignore_eos": True},
        {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
    ],
)
def test_a_greedy_request_takes_part(params):
    assert request(params) is not None and request_misfit(request(params)) is None


@pytest.mark.parametrize("reason, changes", MISFITS)
def test_a_misfit_takes_the_ordinary_path_and_says_why(reason, changes):
    assert request_misfit(request(**changes)) == reason


def test_the_reasons_fit_a_metric_label():
    """Few, short, and never made of what a client sent."""
    reasons = {reason for reason, _ in MISFITS}
    assert len(reasons) <= 32 and all(reason.replace("_", "").isalpha() for reason in reasons)
