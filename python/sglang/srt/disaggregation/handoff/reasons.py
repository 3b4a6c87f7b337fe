"""Why a request was not handed off, or its handoff failed: what an operator reads of each reason."""

from __future__ import annotations

# Of requests that nobody waits for or that were handed off before; no operator need be told.
QUIET = frozenset({"health_check", "fake_transfer", "rebootstrap", "retracted", "client"})
# Of which a busy worker sees many: a line for each would flood the log at info level.
EXPECTED = QUIET | {"not_opened"}

REASONS = {
    # what the request asks for; it is the same on both workers
    "health_check": "it is a health check",
    "fake_transfer": "its KV is not transferred (warm-up)",
    "parallel_samples": "it asks for several answers (n > 1)",
    "beam_search": "it asks for beam search",
    "not_greedy": "it samples; only greedy requests take part (temperature 0)",
    "penalties": "it has a frequency, presence or repetition penalty",
    "min_new_tokens": "it has a minimum length (min_new_tokens)",
    "logit_bias": "it has a logit bias",
    "no_new_tokens": "it asks for no new token",
    "custom_params": "it has custom sampling parameters",
    "watermark": "it is watermarked",
    "grammar": "its output is constrained (JSON schema, regex, grammar, structural tag)",
    "logprobs": "it asks for log probabilities",
    "hidden_states": "it asks for hidden states",
    "routing_capture": "it asks for routed experts or indexer choices",
    "sampling_mask": "it asks for the sampling mask",
    "custom_logit_processor": "it has a custom logit processor",
    "lora": "it uses a LoRA adapter",
    "session": "it belongs to a session",
    "multimodal": "it has images, video or audio",
    "input_embeds": "it brings its own embeddings",
    # what has happened to it before
    "rebootstrap": "it was retracted on decode and asks for its KV again",
    "retracted": "it has output of before a retraction",
    # what the other worker said, or didn't
    "no_offer": "the decode worker offered nothing: start it with --disaggregation-seamless-handoff too",
    "offer_version": "the decode worker offers another protocol version: run the same release on both",
    "offer_malformed": "the decode worker's offer can't be read: run the same release on both",
    "offer_repeated": "its room had a request before whose offer is still there",
    "peer_silent": "the decode worker has confirmed nothing of an earlier request: can this worker reach its control port?",
    "not_opened": "its KV was there before prefill's first word, as with a short prompt on a fast link; if that is "
    "so of every request, the prefill worker accepts none: start it with --disaggregation-seamless-handoff too",
    "config": "the two workers serve different models, dtypes, quantization, end tokens or weight versions",
    "client": "the client went away, or the request was aborted",
    "conflict": "the two workers' logs or first tokens disagree",
    "transfer": "the KV transfer failed",
    "timeout": "the other worker was silent for too long",
    "no_slot": "decode has no KV slot for the replay, and prefill had stopped for good",
}


def explain(reason: str) -> str:
    """For a log line."""
    return REASONS.get(reason, reason)
