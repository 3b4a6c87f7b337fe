"""Which of upstream's own test kits (`sglang.test.kits` of the release) run against P + D + router, and which don't.

The one table to review: every kit file of the release, every class of tests in those that run, every test of those
classes. `test_seamless_handoff_upstream_kits.py` checks that nothing is missing, and runs the rest.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One test of a kit.

    Attributes:
        stack: "text" (SmolLM2, a slow link, no timeouts) or "tiny" (four requests at once, upstream's timeouts on).
        handoff: its requests are to take part in the handoff, at least one of them.
        says: what the test says when it fails, with the flag off and on alike; None: it passes with both.
        compared: answers have to agree word for word; not so where they depend on the moment or are sampled.
        slow_s: too slow for CI, or of little use there: seconds that it took once, both stacks at once on two busy cores.
            It runs with UPSTREAM_KITS=all.
    """

    stack: str
    handoff: bool = True
    says: str | None = None
    compared: bool = True
    slow_s: int | None = None


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A test that doesn't run, and why."""

    why: str


# What SmolLM2 with its 135 million parameters doesn't know, the kit's own message says.
KITS = {
    "abort_timeout_kit": {
        "AbortAllMixin": {"test_abort_all": Case("tiny", compared=False)},
        "WaitingTimeoutMixin": {
            # With the flag off the worker's 503 arrives, but sglang-router words it anew, without the `object` that is
            # looked for. With the flag on there is none: who waits for a slot on D is relayed P's tokens.
            "test_waiting_timeout": Case("tiny", says="0 != 1", compared=False),
        },
        "RunningTimeoutTwoWaveMixin": {"test_running_timeout_no_crash": Case("tiny", compared=False)},
    },
    "basic_api_contract_kit": {
        "BasicAPIContractMixin": {
            "test_health": Case("text", handoff=False),
            "test_health_generate": Case("text", handoff=False),
            "test_get_server_info": Case("text", handoff=False, compared=False),
            "test_get_model_info": Case("text", handoff=False),
            "test_openai_chat_completion": Case("text"),
            "test_openai_completion": Case("text"),
        }
    },
    "basic_decode_correctness_kit": {
        "BasicDecodeCorrectnessMixin": {
            "test_capital_france": Case("text"),
            "test_basic_math": Case("text", says="'391' not found", slow_s=9),
            "test_color_completion": Case("text", slow_s=10),
            "test_ascii_ratio": Case("text"),
            "test_no_repetition_blowup": Case("text"),
            "test_determinism_temp_zero": Case("text", slow_s=9),
            "test_max_token_one": Case("text"),
        }
    },
    "basic_scheduler_stress_kit": {
        "BasicSchedulerStressMixin": {
            "test_streaming_response": Case("text"),
            "test_concurrent_requests": Case("text", says="concurrent answers correct: 0/8"),
            "test_long_prompt": LeftOut(
                "its 8,023 tokens take SmolLM2 a minute on one core; the tiny model's tokenizer makes 36,000 of them, more "
                "than its context. test_seamless_handoff.py has prompts of 6,000 tokens in chunks"
            ),
        }
    },
    "json_constrained_kit": {
        "JSONConstrainedMixin": {
            "test_json_generate": Case("text", handoff=False, says="Expecting ',' delimiter", slow_s=27),
            "test_json_invalid": Case("text", handoff=False, compared=False),
            "test_json_openai": Case("text", handoff=False, slow_s=13),
            "test_mix_json_and_other": LeftOut(
                "its 40 answers of up to 128 tokens take SmolLM2 minutes on one core; test_json_generate asks for one"
            ),
        }
    },
    "matched_stop_kit": {
        "MatchedStopMixin": {
            "test_finish_stop_str": Case("text", slow_s=31),
            "test_finish_stop_regex_str": LeftOut(
                "sglang-router drops `stop_regex` on /v1/chat/completions, so the test fails after 1,000 tokens, which take "
                "a minute and a half on one core. Its first half runs as test_stop_regex_on_completions"
            ),
            "test_finish_stop_eos": Case("text"),
            "test_finish_length": Case("text"),
        }
    },
    "pause_generation_kit": {
        "PauseResumeInPlaceMixin": {"test_pause_resume_in_place": Case("text", handoff=False, compared=False, slow_s=33)},
    },
    "pd_parity_kit": {
        "PDLogprobParityMixin": {"test_logprob_parity": Case("tiny", handoff=False)},
    },
}

_EVAL = "downloads its questions, and judges what a large model knows"
_N = "asks for n=3; through sglang-router PD without the flag gives no answer to that, ever"
_SPECULATION = "needs speculative decoding, which the flag refuses at start"
_CUDA = "no server: tests CUDA kernels or caches in the process"

LEFT_OUT = {
    "anthropic_messages_kit": "sglang-router doesn't serve /v1/messages; the client's package isn't installed",
    "attention_unittest": _CUDA,
    "cache_hit_kit": "downloads its conversations; the decode worker's prefix cache is refused with the flag",
    "dsa_metadata_kit": _CUDA,
    "ebnf_constrained_kit": _N,
    "eval_accuracy_kit": _EVAL,
    "fwd_occupancy_kit": "measures how busy a GPU is",
    "json_mode_kit": "json_object through a grammar, as the JSON kit that runs",
    "kl_divergence_kit": "downloads its prompts",
    "lm_eval_kit": _EVAL,
    "mmmu_vlm_kit": _EVAL,
    "perf_bench_kit": "no test: bounds for the speed of named machines",
    "prefix_cache_branching_kit": "for models with a hybrid cache",
    "radix_cache_server_kit": "no test class; its ids lie outside the tiny model's vocabulary, and are too many for SmolLM2",
    "reasoning_kit": "needs a model that thinks between tags",
    "regex_constrained_kit": _N,
    "spec_decoding_kit": _SPECULATION,
    "spec_server_kits": _SPECULATION,
    "streaming_session_kit": "sglang-router doesn't serve sessions",
    "unified_radix_cache": _CUDA,
    "unified_radix_cache_kit": _EVAL,
    "vlm_perf_kit": "measures a vision model's speed on a GPU",
}
