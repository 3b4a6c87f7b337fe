"""Limits of the regression stages, all in one place. Change one only with a reason, and the figures that show it."""

from handoff_regression import Thresholds

# One pair, tiny model, a KV link so slow that PD's wait for it is most of the TTFT, whatever the machine does.
# Measured on 2 cores (docs/measurements.md): TTFT ratio 0.2, gap 0.03 of what was saved. Without the early t1
# the ratio is 1; a seal that is answered only by resends leaves a gap of 0.6.
CPU = Thresholds(ttft_ratio=0.6, gap_share=0.5)

# H20, 1P1D, Qwen3-8B bf16, TP1, Mooncake RDMA, one request at a time. PD's exposed tail there is 62.8 to 64.6 ms
# (public report). Goals, not measured yet: a quarter of it, and a switch that is no more than a slow step.
H20 = Thresholds(ttft_ratio=1.0, tail_ms=16.0, gap_in_itls_p50=1.5, gap_in_itls_p95=2.5)
# By prompt length, in tokens.
H20_PROMPTS = (4_096, 16_384, 32_768)
