"""Write the tiny random Qwen3 model that tests run on, as a Hugging Face folder.

usage: python cpu/models/tiny_qwen3.py OUT_DIR --dtype float32|bfloat16

4 layers, hidden 128, 2 KV heads of 32: 2 KiB of KV per token in float32. The weights are drawn with a fixed seed.
"""

import argparse
import json
import pathlib

import byte_tokenizer
import torch
from safetensors.torch import save_file

SEED = 1
STD = 0.2  # large enough for greedy decoding to wander instead of repeating one id
LAYERS, HIDDEN, INTERMEDIATE = 4, 128, 256
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
CONTEXT = 32768


def weights() -> dict[str, torch.Tensor]:
    """Return the checkpoint's tensors by name, float32. Matrices are [out features, in features]."""
    generator = torch.Generator().manual_seed(SEED)

    def random(*shape):
        return torch.randn(*shape, generator=generator) * STD

    tensors = {"model.embed_tokens.weight": random(byte_tokenizer.VOCAB_SIZE, HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{name}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            f"{name}.self_attn.q_norm.weight": torch.ones(HEAD_DIM),
            f"{name}.self_attn.k_norm.weight": torch.ones(HEAD_DIM),
            f"{name}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{name}.mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{name}.mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{name}.mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
        }
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    tensors["lm_head.weight"] = random(byte_tokenizer.VOCAB_SIZE, HIDDEN)
    return tensors


def config(dtype: str, tokenizer) -> dict:
    """Return config.json of the model; `dtype` is the type of the stored weights."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": byte_tokenizer.VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": dtype,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer.build()
    tokenizer.save_pretrained(args.out)
    dtype = getattr(torch, args.dtype)
    tensors = {name: tensor.to(dtype) for name, tensor in weights().items()}
    (args.out / "config.json").write_text(json.dumps(config(args.dtype, tokenizer), indent=1) + "\n")
    # last, because `make models` takes this file as the sign of a finished model
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
