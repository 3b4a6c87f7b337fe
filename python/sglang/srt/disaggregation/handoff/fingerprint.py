"""What P and D must share for the handed-over answer to be the one answer."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Iterable, Optional


def config_fingerprint(
    hf_config: Any, *, dtype: str, quantization: Optional[str], eos: Iterable[int], weight_version: Optional[str]
) -> bytes:
    """8 bytes over the model's shape, numerics and weight version (BLAKE2b).

    The model path is left out: the same model may lie elsewhere on the other host.
    """
    fields = (
        "architectures",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rope_theta",
        "rope_scaling",
        "max_position_embeddings",
    )
    shape = {name: getattr(hf_config, name, None) for name in fields}
    text = json.dumps(
        [shape, dtype, quantization, sorted(eos), weight_version],
        sort_keys=True,
        default=str,
    )
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
