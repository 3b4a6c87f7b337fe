"""SGLang's own classes, unchanged."""

from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.qwen3 import Qwen3ForCausalLM

EntryClass = [LlamaForCausalLM, Qwen3ForCausalLM]
