"""The models that `make models` wrote."""

import json

import pytest
from transformers import AutoTokenizer

from rig import servers


@pytest.fixture(scope="module", params=[servers.TINY, servers.TINY_BF16], ids=lambda path: path.name)
def tiny(request):
    config = json.loads((request.param / "config.json").read_text())
    return config, AutoTokenizer.from_pretrained(request.param)


def test_tiny_tokenizer_decodes_every_id(tiny):
    config, tokenizer = tiny
    assert len(tokenizer) == config["vocab_size"]
    tokens = tokenizer.convert_ids_to_tokens(range(config["vocab_size"]))
    assert len(set(tokens)) == len(tokens)
    assert all(tokenizer.decode([i]) for i in range(config["vocab_size"]))


def test_tiny_tokenizer_keeps_any_text(tiny):
    _, tokenizer = tiny
    text = "Ünïcode 漢字 🙂\n\ttab, plain words, \x00 and all"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    # a character may be split over tokens: each of its bytes is one
    assert tokenizer.decode(tokenizer.encode("漢")[:1]) == "\ufffd"


def test_tiny_context_and_end(tiny):
    config, tokenizer = tiny
    assert config["max_position_embeddings"] >= 16384
    assert config["eos_token_id"] == tokenizer.eos_token_id != config["bos_token_id"]


def test_smollm2_chat_template():
    tokenizer = AutoTokenizer.from_pretrained(servers.SMOLLM2)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
