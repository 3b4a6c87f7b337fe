"""The torch_native backend's replay rounds, against its own extend, which computes every row of the sequence."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention import torch_native_backend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.attention.torch_native_short_extend import TorchNativeShortExtend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.test.ci.ci_register import register_cpu_ci

from one_layer_pool import OneLayerPool

register_cpu_ci(est_time=5, suite="stage-b-test-cpu")

HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 16, 512
EXTENDS = [(40, 3), (0, 2), (130, 1), (7, 30)]  # prefix and new tokens of each request


def options(monkeypatch, flag, role):
    monkeypatch.setattr(
        torch_native_backend, "get_disagg",
        lambda: SimpleNamespace(disaggregation_seamless_handoff=flag, disaggregation_mode=role),
    )  # fmt: skip


@pytest.fixture
def backend(monkeypatch):
    options(monkeypatch, True, "decode")
    return made_backend()


def made_backend():
    torch.manual_seed(0)
    rows = ReqToTokenPool(8, 256, "cpu", False)
    return TorchNativeAttnBackend(SimpleNamespace(device="cpu", req_to_token_pool=rows, token_to_kv_pool=OneLayerPool(SLOTS, KV_HEADS, DIM, "cpu")))


def forward(backend, layer=None):
    """The output of one forward over EXTENDS, and how often the short extend took it."""
    slots, new_slots, pool = torch.randperm(SLOTS - 1) + 1, [], backend.token_to_kv_pool
    for row, (prefix, new) in enumerate(EXTENDS, 1):
        mine, slots = slots[: prefix + new], slots[prefix + new :]
        backend.req_to_token_pool.req_to_token[row, : prefix + new] = mine
        pool.k[mine[:prefix]], pool.v[mine[:prefix]] = torch.randn(2, prefix, KV_HEADS, DIM)
        new_slots.append(mine[prefix:])
    tokens = sum(new for _, new in EXTENDS)
    q, (k, v) = torch.randn(tokens, HEADS * DIM), torch.randn(2, tokens, KV_HEADS, DIM)
    prefixes, news = (torch.tensor(column) for column in zip(*EXTENDS))
    batch = SimpleNamespace(
        req_pool_indices=torch.arange(1, len(EXTENDS) + 1), seq_lens=prefixes + news, extend_prefix_lens=prefixes,
        extend_seq_lens=news, out_cache_loc=torch.cat(new_slots).long(), encoder_lens=None,
    )  # fmt: skip
    layer = layer or RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id=0)
    taken, short = [], backend.short_extend
    backend.short_extend = short and SimpleNamespace(forward=lambda *args: taken.append(short.forward(*args)) or taken[-1])
    ours = backend.forward_extend(q, k, v, layer, batch)
    backend.short_extend = None
    theirs = backend.forward_extend(q, k, v, layer, batch)
    return ours, theirs, taken


def test_a_replay_round_is_what_the_backends_own_extend_says(backend):
    ours, theirs, taken = forward(backend)
    assert taken == [True]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_sliding_window_is_the_backends_own(backend):
    ours, theirs, taken = forward(backend, RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id=0, sliding_window_size=8))
    assert taken == [False]
    assert torch.equal(ours, theirs)


def test_an_encoder_is_the_backends_own(backend):
    batch = SimpleNamespace(encoder_lens=torch.tensor([3]))
    layer = RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id=0)
    assert not backend.short_extend.forward(None, None, layer, batch)


@pytest.mark.parametrize("flag, role, made", [(True, "decode", True), (True, "prefill", False), (False, "decode", False)])
def test_only_a_decode_worker_with_the_flag_has_it(monkeypatch, flag, role, made):
    options(monkeypatch, flag, role)
    assert isinstance(made_backend().short_extend, TorchNativeShortExtend) == made
