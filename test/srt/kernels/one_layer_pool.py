"""A KV pool of one layer, as far as an attention backend's extend needs it."""

import torch


class OneLayerPool:
    """``k``, ``v``: [slots, kv_heads, head_dim]. Slots of nobody hold NaN."""

    def __init__(self, slots: int, kv_heads: int, head_dim: int, device: str):
        self.size = slots
        self.k, self.v = (torch.full((slots, kv_heads, head_dim), float("nan"), device=device) for _ in range(2))

    def get_key_buffer(self, layer_id):
        return self.k

    def get_value_buffer(self, layer_id):
        return self.v

    def set_kv_buffer(self, layer, loc_info, k, v):
        self.k[loc_info.loc], self.v[loc_info.loc] = k.view(-1, *self.k.shape[1:]), v.view(-1, *self.v.shape[1:])
