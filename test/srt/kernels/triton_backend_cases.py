"""SGLang's Triton backend with the handoff's replay rounds, against its own extend kernel.

On a GPU when there is one, else in Triton's interpreter, as short_extend_cases.py.
"""

from types import SimpleNamespace

import pytest
import torch

GPU = torch.cuda.is_available()
if not GPU:
    import triton_interpreter

    triton_interpreter.use()

from sglang.kernels.ops.attention import short_extend_attention as short
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from sglang.srt.layers.attention import triton_short_extend
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.mem_cache.kv_loc_plan import KVLocPlan
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from one_layer_pool import OneLayerPool

DEVICE = "cuda" if GPU else "cpu"
HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 64, 512
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Round:
    """A backend with the KV of some requests, (prefix, new) tokens each, and a forward over the new ones."""

    def __init__(self, *extends, seed=0):
        torch.manual_seed(seed)
        self.pool, rows = OneLayerPool(SLOTS, KV_HEADS, DIM, DEVICE), ReqToTokenPool(8, 256, DEVICE, False)
        self.backend = backend(self.pool, rows)
        self.batch = filled(self.backend, extends)
        self.q, self.k_new, self.v_new = new_rows(self.batch)
        self.layer = RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id=0)

    def forward(self, short_extend: bool, **more):
        self.backend.short_extend = triton_short_extend.TritonShortExtend(self.backend) if short_extend else None
        self.backend.init_forward_metadata(self.batch)
        return self.backend.forward_extend(self.q, self.k_new, self.v_new, self.layer, self.batch, **more)


def numbers(values):
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def filled(backend, extends):
    """A batch over requests of (prefix, new) tokens each, their prefixes' KV in scattered slots of the pool."""
    pool, table = backend.token_to_kv_pool, backend.req_to_token
    free, new_slots = torch.randperm(SLOTS - 1, device=DEVICE) + 1, []
    for row, (prefix, new) in enumerate(extends, 1):
        mine, free = free[: prefix + new], free[prefix + new :]
        table[row, : prefix + new] = mine
        pool.k[mine[:prefix]], pool.v[mine[:prefix]] = torch.randn(2, prefix, KV_HEADS, DIM, device=DEVICE)
        new_slots.append(mine[prefix:])
    new = [new for _, new in extends]
    return extend_batch(
        backend, [prefix + new for prefix, new in extends], new, torch.cat(new_slots).long(), numbers(range(1, len(extends) + 1))
    )


def new_rows(batch):
    """q, k and v of a batch's new tokens."""
    tokens = batch.extend_num_tokens
    return torch.randn(tokens, HEADS * DIM, device=DEVICE), *torch.randn(2, tokens, KV_HEADS, DIM, device=DEVICE)


def extend_batch(backend, lens, new, slots, request_rows):
    """What an extend reads of a ForwardBatch over requests of ``lens`` tokens, ``new`` of them new."""
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND, batch_size=len(lens), spec_info=None, encoder_lens=None, extend_num_tokens=sum(new),
        req_pool_indices=request_rows, seq_lens=numbers(lens), seq_lens_cpu=torch.tensor(lens),
        extend_prefix_lens=numbers(lens) - numbers(new), extend_prefix_lens_cpu=[all - some for all, some in zip(lens, new)],
        extend_seq_lens=numbers(new), extend_seq_lens_cpu=list(new),
        out_cache_loc=slots, out_cache_loc_is_physical=True,
        mha_one_shot=False, attn_attend_prefix_cache=False, full_prefill_cuda_graph_capture=False,
    )  # fmt: skip
    batch.kv_loc_plan = KVLocPlan(
        source=backend.kv_index_translator, req_pool_indices=request_rows, seq_lens=batch.seq_lens,
        seq_lens_cpu=batch.seq_lens_cpu, write_virtual=slots,
    )  # fmt: skip
    return batch


def backend(pool, rows):
    """As its constructor leaves it, as far as an extend needs it: the rest asks for a model and a GPU."""
    made = TritonAttnBackend.__new__(TritonAttnBackend)
    vars(made).update(
        token_to_kv_pool=pool, req_to_token_pool=rows, req_to_token=rows.req_to_token, device=DEVICE, page_size=1,
        kv_index_translator=KVIndexTranslator(
            req_to_token=rows.req_to_token, token_to_kv_pool_allocator=None, token_to_kv_pool=pool, page_size=1, device=DEVICE,
        ),
        kv_indptr=torch.zeros(9, dtype=torch.int32, device=DEVICE), window_kv_indptr=None,
        qo_indptr=torch.zeros(9, dtype=torch.int64, device=DEVICE), sliding_window_size=None, use_sliding_window_kv_pool=False,
        dllm_attention=None, dcp_size=1, enable_deterministic=False, use_mla=False, use_verify_shared_kv=False, use_dense_fp8_chunked_prefill=False,
        use_verify_splitkv=False, allow_bidirectional_attention_in_extend=True, extend_attention_fwd=extend_attention_fwd,
    )  # fmt: skip
    return made


@pytest.fixture
def calls(monkeypatch):
    """How often the short extend kernel ran."""
    counted = []

    def counting(*args, **kwargs):
        counted.append(kwargs)
        return short.short_extend_attention_fwd(*args, **kwargs)

    monkeypatch.setattr(triton_short_extend, "short_extend_attention_fwd", counting)
    return counted


def test_a_replay_round_is_what_the_backends_own_kernel_says(calls):
    extends = [(40, 3), (0, 2), (130, 1)]
    ours = Round(*extends).forward(True)
    assert len(calls) == 1
    wanted = Round(*extends).forward(False)
    assert len(calls) == 1 and torch.isfinite(ours).all()
    torch.testing.assert_close(ours, wanted, atol=2e-5, rtol=2e-5)


def test_the_layers_of_a_forward_share_its_metadata(calls):
    one = Round((40, 3))
    one.forward(True)
    scratch = calls[0]["scratch"]
    one.backend.forward_extend(one.q, one.k_new, one.v_new, one.layer, one.batch)
    assert calls[1]["scratch"] is scratch
    one.batch = SimpleNamespace(**vars(one.batch))
    one.backend.init_forward_metadata(one.batch)
    one.backend.forward_extend(one.q, one.k_new, one.v_new, one.layer, one.batch)
    assert calls[2]["scratch"] is not scratch


def test_the_logit_cap_reaches_the_kernel(calls):
    ours, wanted = Round((40, 3)), Round((40, 3))
    for one in (ours, wanted):
        one.layer.logit_cap = 2.0
    capped = ours.forward(True)
    torch.testing.assert_close(capped, wanted.forward(False), atol=2e-5, rtol=2e-5)
    assert calls and not torch.allclose(capped, Round((40, 3)).forward(False), atol=1e-2)


@pytest.mark.parametrize(
    "what",
    [
        {"attn_type": AttentionType.ENCODER_ONLY},
        {"sliding_window_size": 16},
        {"xai_temperature_len": 8},
    ],
    ids=str,
)
def test_what_the_kernel_does_not_do_is_left_to_the_backend(calls, what):
    one = Round((40, 3))
    vars(one.layer).update(what)
    if "sliding_window_size" in what:
        assert not triton_short_extend.TritonShortExtend(one.backend).forward(one.q, one.q.clone(), one.layer, one.batch, 0.0, plain=True)
    else:
        one.forward(True)
    assert not calls


def test_a_long_extend_is_left_to_the_backend(calls):
    Round((8, short.MAX_LEN_EXTEND + 1)).forward(True)
    assert not calls
