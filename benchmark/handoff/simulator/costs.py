"""What a forward costs: a roofline with stated parameters, each with its source.

Times in seconds, sizes in bytes. Nothing is fitted elsewhere: a parameter that no data sheet
gives is computed here, in the open, from the public row that it names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Sequence, Tuple


@dataclass(frozen=True)
class Row:
    """One row of the public report: H20, 1P1D, Qwen3-8B bf16, TP1, Mooncake RDMA, concurrency 1."""

    prompt: int  # tokens
    unified_ttft: float
    pd_ttft: float
    tail: float  # pd_ttft - unified_ttft, as reported
    itl: float


ROW_16K = Row(16384, 2.29978, 2.36438, 0.06460, 0.00660)
ROW_32K = Row(32768, 5.73405, 5.79683, 0.06278, 0.00795)


@dataclass(frozen=True)
class Model:
    """Qwen3-8B bf16, from its published configuration: 36 layers, hidden 4096, 32 query and 8 KV
    heads of 128, MLP 12288; weights 16.4 GB."""

    layers: int = 36
    hidden: int = 4096
    query_width: int = 32 * 128
    kv_width: int = 8 * 128
    mlp: int = 12288
    weight_bytes: float = 16.4e9

    @property
    def token_flops(self) -> float:
        """Multiply-adds counted twice, of one token through the layers' matrices (no LM head)."""
        attention = 2 * self.hidden * (self.query_width + self.kv_width)
        return 2.0 * self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def pair_flops(self) -> float:
        """Attention between one query token and one KV token: QK and PV."""
        return 4.0 * self.layers * self.query_width

    @property
    def kv_token_bytes(self) -> float:
        """K and V, two bytes each: 147,456."""
        return 2.0 * 2 * self.layers * self.kv_width


QWEN3_8B = Model()


@dataclass(frozen=True)
class Costs:
    """One accelerator with one replay mode.

    Attributes:
        flops: dense bf16 peak, per second (data sheet).
        memory: HBM bytes per second (data sheet).
        prefill_share, weight_share, kv_share: of the peaks, what is reached.
        replay_launch: an eager EXTEND takes at least this; 0 where a CUDA graph replays it.
        chunk: prompt tokens per prefill forward. SGLang 0.5.23 sets 8192 on H20 and H200.
    """

    name: str
    flops: float
    memory: float
    prefill_share: float
    weight_share: float
    kv_share: float
    replay_launch: float
    chunk: int = 8192
    model: Model = QWEN3_8B

    def prefill(self, done: int, tokens: int) -> float:
        """One prompt chunk of ``tokens`` after ``done`` tokens, causal attention."""
        pairs = tokens * done + tokens * (tokens + 1) / 2
        flops = tokens * self.model.token_flops + pairs * self.model.pair_flops
        return max(flops / (self.flops * self.prefill_share), self._weights())

    def decode(self, batch: int, context: float) -> float:
        """One decode step; ``context`` is the KV tokens of the whole batch."""
        return self._weights() + context * self.model.kv_token_bytes / (self.memory * self.kv_share)

    def replay(self, parts: Sequence[Tuple[int, int]]) -> float:
        """One EXTEND forward over several requests: (new tokens, KV tokens) of each."""
        rate = self.flops * self.prefill_share
        tokens = sum(new for new, _ in parts)
        time = max(self._weights(), tokens * self.model.token_flops / rate)
        for new, context in parts:
            read = context * self.model.kv_token_bytes / (self.memory * self.kv_share)
            time += max(read, new * context * self.model.pair_flops / rate)
        return max(self.replay_launch, time)

    def _weights(self) -> float:
        return self.model.weight_bytes / (self.memory * self.weight_share)

    def ttft(self, prompt: int) -> float:
        """Prompt forward of an idle worker, chunk by chunk."""
        starts = range(0, prompt, self.chunk)
        return sum(self.prefill(s, min(self.chunk, prompt - s)) for s in starts)


# H20 data sheet: 148 TFLOPS dense bf16, 4.0 TB/s. H200: 989 TFLOPS, 4.8 TB/s.
H20_FLOPS, H20_MEMORY = 148e12, 4.0e12
H200_FLOPS, H200_MEMORY = 989e12, 4.8e12


def _calibrated() -> Dict[str, float]:
    """From the public H20 rows: the prefill share from the 16K row alone (the 32K TTFT is then a
    prediction); weight and KV share from both rows' ITL, a line through two points."""
    ideal = Costs("", H20_FLOPS, H20_MEMORY, 1.0, 1.0, 1.0, 0.0)
    slope = (ROW_32K.itl - ROW_16K.itl) / (ROW_32K.prompt - ROW_16K.prompt)
    weights = ROW_16K.itl - slope * ROW_16K.prompt
    return {
        "prefill_share": ideal.ttft(ROW_16K.prompt) / ROW_16K.unified_ttft,
        "weight_share": QWEN3_8B.weight_bytes / H20_MEMORY / weights,
        "kv_share": QWEN3_8B.kv_token_bytes / H20_MEMORY / slope,
    }


# Public report, H20: EXTEND of 1-16 tokens takes 13-16 ms whatever its length (host launches).
EAGER_FAST, EAGER_SLOW = 0.013, 0.016
_SHARES = _calibrated()
H20_GRAPH = Costs("H20 graph replay", H20_FLOPS, H20_MEMORY, replay_launch=0.0, **_SHARES)
H20_EAGER_13 = replace(H20_GRAPH, name="H20 eager 13 ms", replay_launch=EAGER_FAST)
H20_EAGER_16 = replace(H20_GRAPH, name="H20 eager 16 ms", replay_launch=EAGER_SLOW)
# H200: no public row. The shares of H20 are assumed, the prefill share cut to what dense bf16
# GEMMs commonly reach there (assumed 0.6). Launches are host work: the same 13-16 ms.
H200_GRAPH = replace(
    H20_GRAPH, name="H200 graph replay", flops=H200_FLOPS, memory=H200_MEMORY, prefill_share=0.6
)
H200_EAGER_13 = replace(H200_GRAPH, name="H200 eager 13 ms", replay_launch=EAGER_FAST)
H200_EAGER_16 = replace(H200_GRAPH, name="H200 eager 16 ms", replay_launch=EAGER_SLOW)
ALL = (H20_EAGER_16, H20_EAGER_13, H20_GRAPH, H200_EAGER_16, H200_EAGER_13, H200_GRAPH)


@dataclass(frozen=True)
class Network:
    """Attributes:
    control: one control message, one way, with the receiver's next look (s). Assumed 0.1 ms:
        TCP in one rack.
    kv_latency: fixed part of a transfer, with its status message (s). Assumed 0.2 ms.
    kv_rate: KV bytes per second of one prefill worker, its chunks one after the other.
    poll: one turn of an idle scheduler loop (s). Assumed 0.05 ms.
    """

    control: float = 0.0001
    kv_latency: float = 0.0002
    kv_rate: float = 0.0
    poll: float = 0.00005

    @classmethod
    def of_report(cls) -> Network:
        """The rate calibrated from the 16K row alone. What PD adds to the TTFT is the metadata's
        way to P, one transfer of the last chunk (the others hide behind the next chunk's forward)
        and its latency. So the 32K row is a prediction."""
        fixed = cls.control + cls.kv_latency
        rate = 8192 * QWEN3_8B.kv_token_bytes / (ROW_16K.pd_ttft - ROW_16K.unified_ttft - fixed)
        return cls(kv_rate=rate)
