"""Replay rounds as captured graphs in SGLang's Triton backend, against the same rounds run eagerly.

The graphs are CUDA's when there is a GPU. Else they are what CUDA would keep of the launches, the tensors' addresses and
the numbers, launched again by Triton's interpreter.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from triton_backend_cases import DEVICE, DIM, GPU, HEADS, KV_HEADS, SLOTS, backend, extend_batch, filled, new_rows, numbers

from sglang.kernels.ops.attention import short_extend_attention as short
from sglang.srt.layers.attention import triton_short_extend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from one_layer_pool import OneLayerPool

REQUESTS = 4  # request slots of the graphs
CONTEXT = 256
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Launches:
    """What a CUDA graph keeps of the kernel and of the pool's writes, for machines without CUDA."""

    def __init__(self, monkeypatch, pool):
        self.kept, self.captured, attend, write = None, [], short.short_extend_attention_fwd, pool.set_kv_buffer

        def launch(function):
            def launched(*args, **kwargs):
                if self.kept is not None:
                    self.kept.append((function, args, kwargs))
                self.captured.append((function, args, kwargs))
                return function(*args, **kwargs)

            return launched

        monkeypatch.setattr(triton_short_extend, "short_extend_attention_fwd", launch(attend))
        monkeypatch.setattr(pool, "set_kv_buffer", launch(write))

    def capture(self, run):
        self.kept = []
        output, (kept, self.kept) = run(), (self.kept, None)

        def replay():
            for function, args, kwargs in kept:
                function(*args, **kwargs)

        return replay, output


class CudaGraphs:
    def capture(self, run):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = run()
        return graph.replay, output


class Runner:
    """A decode worker's backend and pool, and the buffers of a prefill graph runner: static ones that it fills before a replay."""

    def __init__(self, monkeypatch, max_seq_len=None):
        prefill = SimpleNamespace(max_seq_len=max_seq_len)
        config = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(prefill=prefill)))
        monkeypatch.setattr(triton_short_extend, "get_exec", lambda: config)
        self.pool, self.rows = OneLayerPool(SLOTS, KV_HEADS, DIM, DEVICE), ReqToTokenPool(8, CONTEXT, DEVICE, False)
        self.backend = backend(self.pool, self.rows)
        self.backend.short_extend = triton_short_extend.TritonShortExtend(self.backend)
        self.backend.max_context_len = CONTEXT
        self.layer = RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id=0)
        self.how = CudaGraphs() if GPU else Launches(monkeypatch, self.pool)
        self.graphs = {}
        self.q = torch.zeros(64, HEADS * DIM, device=DEVICE)
        self.k, self.v = torch.zeros(2, 64, KV_HEADS, DIM, device=DEVICE)
        self.slots = numbers([0] * 64)
        self.seq_lens, self.extend_lens, self.request_rows = (numbers([0] * REQUESTS) for _ in range(3))

    def capture(self, *buckets):
        for bucket in sorted(buckets, reverse=True):
            lens = [bucket] + [0] * (REQUESTS - 1)
            self.seq_lens.copy_(numbers(lens)), self.extend_lens.copy_(numbers(lens))
            batch = extend_batch(self.backend, lens, lens, self.slots[:bucket], self.request_rows)
            batch.full_prefill_cuda_graph_capture = True
            batch.seq_lens, batch.extend_seq_lens = self.seq_lens, self.extend_lens
            self.backend.init_forward_metadata_out_graph(batch, in_capture=True)

            def run(bucket=bucket, batch=batch):
                return self._forward(batch, self.q[:bucket], self.k[:bucket], self.v[:bucket])

            run()
            self.graphs[bucket] = self.how.capture(run)
        return self

    def fill(self, extends, seed):
        """KV of requests with (prefix, new) tokens each, and a batch over the new ones."""
        torch.manual_seed(seed)
        batch = filled(self.backend, extends)
        return batch, *new_rows(batch)

    def eager(self, batch, q, k, v):
        self.backend.init_forward_metadata(batch)
        return self._forward(batch, q, k, v)

    def replay(self, batch, q, k, v):
        """The smallest bucket's graph, its unused tokens and request slots padded as the prefill runner pads them."""
        tokens, requests = batch.extend_num_tokens, batch.batch_size
        bucket = min(size for size in self.graphs if size >= tokens)
        self.q[:tokens], self.k[:tokens], self.v[:tokens] = q, k, v
        self.slots.zero_()
        self.slots[:tokens] = batch.out_cache_loc
        for static, live in (
            (self.seq_lens, batch.seq_lens), (self.extend_lens, batch.extend_seq_lens), (self.request_rows, batch.req_pool_indices)
        ):  # fmt: skip
            static.zero_()
            static[:requests] = live
        padded = copy.copy(batch)
        padded.batch_size = REQUESTS
        padded.seq_lens, padded.extend_seq_lens, padded.req_pool_indices = self.seq_lens, self.extend_lens, self.request_rows
        self.backend.init_forward_metadata_out_graph(padded)
        replay, output = self.graphs[bucket]
        replay()
        return output[:tokens].clone()

    def _forward(self, batch, q, k, v, **more):
        return self.backend.forward_extend(q, k, v, self.layer, batch, **more)


def test_each_replay_of_one_capture_gives_the_eager_rounds_bits(monkeypatch):
    runner = Runner(monkeypatch).capture(8, 16)
    for seed, extends in enumerate(
        (
            [(40, 3), (0, 2), (130, 1)],  # padding of tokens and requests
            [(7, 5)],  # fewer requests than before
            [(200, 8)],  # longer KV, a whole bucket
            [(40, 9), (3, 1), (2, 2), (100, 1)],  # all request slots, the other bucket
            [(0, 1)],
        )
    ):
        batch = runner.fill(extends, seed)
        replayed = runner.replay(*batch)
        assert torch.equal(runner.pool.k[batch[0].out_cache_loc], batch[2]), "the new rows of the KV cache"
        assert torch.isfinite(replayed).all()
        assert torch.equal(replayed, runner.eager(*batch)), extends


def test_padded_rows_are_zero_and_change_nothing(monkeypatch):
    """What lies in them goes on through the model, and into the pool's dummy slot."""
    runner = Runner(monkeypatch).capture(8)
    runner.replay(*runner.fill([(40, 8)], 1))
    runner.q[3:] = float("nan")
    batch = runner.fill([(30, 3)], 2)
    assert torch.equal(runner.replay(*batch), runner.eager(*batch))
    assert (runner.graphs[8][1][3:] == 0).all()


def test_a_replay_lets_go_of_the_last_eager_rounds_scratch(monkeypatch):
    runner = Runner(monkeypatch).capture(4)
    batch = runner.fill([(30, 3)], 1)
    runner.eager(*batch)
    assert runner.backend.short_extend._metadata is not None
    runner.replay(*batch)
    assert runner.backend.short_extend._metadata is None


def test_graphs_of_all_buckets_read_the_same_buffers_and_launch_no_more_than_theirs(monkeypatch):
    runner = Runner(monkeypatch)
    if GPU:
        pytest.skip("looks at the launches that the interpreter keeps")
    runner.capture(4, 16)
    launches = [args + (kwargs["scratch"].out,) for function, args, kwargs in runner.how.captured if "scratch" in kwargs]
    large, small = launches[0], launches[-1]
    for one in (6, 7, 8, -1):  # qo_indptr, kv_indptr, kv_indices, scratch
        assert large[one].data_ptr() == small[one].data_ptr()
    assert (large[9], small[9]) == (16, 4)  # max_len_extend
    assert large[10] == small[10] == CONTEXT  # max_len_kv


@pytest.mark.parametrize("max_seq_len, wanted", [(None, CONTEXT), (100, 100), (10**6, CONTEXT), (2, 4)])
def test_max_seq_len_of_the_graph_config_bounds_what_a_graph_is_sized_for(monkeypatch, max_seq_len, wanted):
    runner = Runner(monkeypatch, max_seq_len).capture(4)
    metadata = runner.backend.short_extend._graph_metadata
    assert metadata.max_len_kv == wanted and metadata.kv_indices.shape == (REQUESTS * wanted,)


@pytest.mark.parametrize(
    "of, what, said",
    [
        ("layer", {"sliding_window_size": 16}, "sliding window"),
        ("layer", {"xai_temperature_len": 8}, "temperature"),
        ("backend", {"enable_deterministic": True}, "--enable-deterministic-inference"),
        ("backend", {"use_sliding_window_kv_pool": True}, "sliding window"),
    ],
    ids=lambda value: str(value),
)
def test_a_capture_says_what_the_kernel_does_not_do(monkeypatch, of, what, said):
    runner = Runner(monkeypatch)
    vars(getattr(runner, of)).update(what)
    with pytest.raises(ValueError, match=f"{said}.*--cuda-graph-config"):
        runner.capture(4)


def test_a_capture_refuses_sinks(monkeypatch):
    runner = Runner(monkeypatch)
    forward = runner._forward
    monkeypatch.setattr(runner, "_forward", lambda *args: forward(*args, sinks=torch.zeros(HEADS, device=DEVICE)))
    with pytest.raises(ValueError, match="sinks"):
        runner.capture(4)


def test_a_bucket_that_one_request_could_overfill_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="bucket of 65 tokens, more than 64"):
        Runner(monkeypatch).capture(short.MAX_LEN_EXTEND + 1)


def test_other_modes_graphs_are_the_backends(monkeypatch):
    batch = SimpleNamespace(forward_mode=ForwardMode.DECODE)
    assert not Runner(monkeypatch).backend.short_extend.init_graph_metadata(batch, in_capture=True)
