"""Who may take part: what a server must be, and what a request must not ask for.

Everything here is closed by default: a server-wide misfit refuses to start with the full
list, a request that doesn't fit takes the ordinary path and its reason is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence

from .metrics import OWN_LABELS

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.managers.schedule_batch import Req


def unsupported_options(cfg: Any) -> List[str]:
    """What of the resolved server options ``cfg`` the handoff does not support yet, as the
    operator wrote it."""
    checks = (
        (
            cfg.disaggregation_mode not in ("prefill", "decode"),
            "servers outside PD disaggregation (--disaggregation-mode)",
        ),
        (
            cfg.disaggregation_transfer_backend != "mooncake",
            f"--disaggregation-transfer-backend {cfg.disaggregation_transfer_backend}",
        ),
        (
            cfg.disaggregation_decode_allocation_policy != "early",
            "--disaggregation-decode-allocation-policy "
            f"{cfg.disaggregation_decode_allocation_policy}",
        ),
        (cfg.tp_size > 1, f"--tp-size {cfg.tp_size}"),
        (cfg.pp_size > 1, f"--pp-size {cfg.pp_size}"),
        (cfg.dp_size > 1 or cfg.enable_dp_attention, "data parallelism"),
        (cfg.attn_cp_size > 1 or cfg.dcp_size > 1, "context parallelism"),
        (
            cfg.page_size is not None and cfg.page_size > 1,
            f"--page-size {cfg.page_size} (some attention backends set it, as Blackwell's default does; "
            "--attention-backend triton doesn't)",
        ),
        (cfg.enable_pdmux, "--enable-pdmux"),
        (cfg.enable_pd_role_switch, "--enable-pd-role-switch"),
        (cfg.optimistic_prefill_attempts > 0, "--optimistic-prefill-attempts"),
        (cfg.enable_mixed_chunk, "--enable-mixed-chunk"),
        (cfg.scheduler_recv_interval > 1, "--scheduler-recv-interval"),
        (
            cfg.enable_priority_scheduling and not cfg.disable_priority_preemption,
            "--enable-priority-scheduling with preemption",
        ),
        (
            cfg.speculative_algorithm is not None,
            f"--speculative-algorithm {cfg.speculative_algorithm}",
        ),
        (bool(cfg.enable_lora), "--enable-lora"),
        (cfg.enable_hisparse, "--enable-hisparse"),
        (cfg.enable_unified_memory, "--enable-unified-memory"),
        (cfg.enable_kv_cache_sharding, "--enable-kv-cache-sharding"),
        (cfg.enable_hierarchical_cache, "--enable-hierarchical-cache"),
        (cfg.enable_lmcache or cfg.enable_flexkv, "LMCache and FlexKV"),
        (cfg.radix_cache_backend is not None, f"--radix-cache-backend {cfg.radix_cache_backend}"),
        (cfg.enable_unified_cache_external_linker, "--enable-unified-cache-external-linker"),
        (cfg.enable_return_routed_experts, "--enable-return-routed-experts"),
        (cfg.enable_return_indexer_topk, "--enable-return-indexer-topk"),
        (cfg.kt_weight_path is not None, "--kt-weight-path"),
        (
            bool(OWN_LABELS & set(cfg.extra_metric_labels or ())),
            f"--extra-metric-labels with {', '.join(sorted(OWN_LABELS))}",
        ),
        (cfg.enable_memory_saver, "--enable-memory-saver"),
        (cfg.moe_a2a_backend != "none", f"--moe-a2a-backend {cfg.moe_a2a_backend}"),
        (cfg.dllm_algorithm is not None, "--dllm-algorithm"),
        (cfg.encoder_only or cfg.language_only, "encoder disaggregation"),
        (cfg.is_embedding, "--is-embedding"),
        (
            cfg.disaggregation_decode_enable_radix_cache,
            "--disaggregation-decode-enable-radix-cache",
        ),
        (
            cfg.disaggregation_decode_enable_offload_kvcache,
            "--disaggregation-decode-enable-offload-kvcache",
        ),
        (
            cfg.disaggregation_decode_host_receive_threshold < 1,
            "--disaggregation-decode-host-receive-threshold",
        ),
    )
    return [text for applies, text in checks if applies]


def unsupported_environment() -> List[str]:
    """The same for settings that SGLang takes from the environment."""
    from sglang.srt.environ import envs

    checks = (
        (envs.SGLANG_DISAGG_STAGING_BUFFER, "SGLANG_DISAGG_STAGING_BUFFER"),
        (envs.SGLANG_RUST_SERVER, "SGLANG_RUST_SERVER"),
    )
    return [name for env, name in checks if env.get()]


def refuse_unsupported(cfg: Any) -> None:
    """Raises:
    ValueError: naming every option that has to go before the handoff can be on, or those of the
        handoff when it is off.
    """
    if not cfg.disaggregation_seamless_handoff:
        raise ValueError(
            "--disaggregation-handoff-replay-mode and --disaggregation-handoff-verify need "
            "--disaggregation-seamless-handoff."
        )
    unsupported = unsupported_options(cfg) + unsupported_environment()
    if unsupported:
        raise ValueError(
            "--disaggregation-seamless-handoff does not support: "
            + ", ".join(unsupported)
            + ". Remove these options or drop --disaggregation-seamless-handoff."
        )


def refuse_unsupported_state(state_types: Sequence[Any], model_config: ModelConfig) -> None:
    """What is known once the model is loaded: KV alone is rebuilt by a replay, and only what no step
    changes in place may be sent while P decodes on.

    Args:
        state_types: what else than KV a request's transfer carries (``StateType``).

    Raises:
        ValueError: the model has such a state, or another of its own.
    """
    states = [str(getattr(state, "value", state)) for state in state_types]
    if model_config.is_encoder_decoder:
        states.append("the encoder's output")
    if model_config.use_ngram_embedding or model_config.use_engram:
        states.append("n-gram tables")
    if states:
        raise ValueError(
            "--disaggregation-seamless-handoff does not support this model: besides KV its requests have "
            + ", ".join(states)
            + ", as models with sliding windows, recurrent or sparse layers and the like do. Drop the flag."
        )


def request_misfit(req: Req) -> Optional[str]:
    """Why ``req`` takes the ordinary path, as a metric label; None if it may take part.

    Only what both workers read in the same request is looked at.
    """
    from sglang.srt.disaggregation.checksum import is_health_check_req
    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST

    params = req.sampling_params
    checks = (
        (is_health_check_req(req), "health_check"),
        (req.bootstrap_host == FAKE_BOOTSTRAP_HOST, "fake_transfer"),
        (params.n > 1, "parallel_samples"),
        (req.beam_group is not None, "beam_search"),
        (params.top_k != 1, "not_greedy"),
        (
            params.frequency_penalty != 0
            or params.presence_penalty != 0
            or params.repetition_penalty != 1,
            "penalties",
        ),
        (params.min_new_tokens > 0, "min_new_tokens"),
        (bool(params.logit_bias), "logit_bias"),
        (params.max_new_tokens < 1, "no_new_tokens"),
        (bool(params.custom_params), "custom_params"),
        (params.watermark is not None, "watermark"),
        (
            any((params.json_schema, params.regex, params.ebnf, params.structural_tag))
            or req.grammar is not None,
            "grammar",
        ),
        (req.return_logprob, "logprobs"),
        (bool(req.return_hidden_states), "hidden_states"),
        (req.return_routed_experts or req.return_indexer_topk, "routing_capture"),
        (req.return_sampling_mask, "sampling_mask"),
        (req.custom_logit_processor is not None, "custom_logit_processor"),
        (req.lora_id is not None, "lora"),
        (req.session is not None, "session"),
        (req.multimodal_inputs is not None, "multimodal"),
        (
            req.input_embeds is not None or req.positional_embed_overrides is not None,
            "input_embeds",
        ),
    )
    return next((reason for applies, reason in checks if applies), None)
