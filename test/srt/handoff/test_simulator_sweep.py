"""The sweep: its figures by hand, closed loops, and that the handoff loses nowhere it was once seen to lose."""

from collections import Counter

import pytest

from benchmark.handoff.simulator.costs import H20_EAGER_16, H200_EAGER_16, Network
from benchmark.handoff.simulator.decode_worker import DecodeWorker
from benchmark.handoff.quantile import quantile
from benchmark.handoff.simulator.load import Load, Point, load
from benchmark.handoff.simulator.sweep import grid, report
from benchmark.handoff.simulator.workload import HANDOFF, PD, Workload
from benchmark.handoff.simulator.world import Setup, World


def a_load(ttft, latency, tokens_per_s, **count):
    return Load(ttft, [0.01], [0.01], latency, tokens_per_s, Counter(count))


# ------------------------------------------------------------------------- figures
@pytest.mark.parametrize("share, expected", [(0.5, 2), (0.51, 3), (0.95, 4), (1.0, 4), (0.0, 1)])
def test_quantile_is_a_value_seen(share, expected):
    assert quantile([4, 1, 3, 2], share) == expected


def test_an_arm_is_compared_request_by_request():
    pd = a_load([1.0, 2.0], [3.0, 5.0], 100.0)
    arm = a_load([0.5, 2.1], [3.0, 4.0], 98.0, **{"not bridged: prompts_wait": 1})
    assert grid.compared(pd, arm) == {
        "ttft_saved_mean": 200.0, "ttft_saved_least": -100.0, "latency_saved_mean": 500.0,
        "throughput": 0.98, "bridged": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    "saved, throughput, loses", [(-9, 0.981, False), (-11, 1.0, True), (50, 0.979, True), (50, 1.02, False)]
)
def test_a_cell_loses_by_its_ttft_or_its_throughput(saved, throughput, loses):
    arms = {PD: {"ttft_mean": 1000.0}, grid.ADMITTED: {"ttft_saved_mean": saved, "throughput": throughput}}
    assert bool(grid.losses([{"arms": arms}], grid.ADMITTED)) is loses


def test_the_report_names_what_loses():
    cell = grid.result(grid.Cell(H20_EAGER_16, 0.7, 12.5, 1024, requests=4))
    text = report.markdown({"H20": [cell]}, [cell], "the command", 4)
    assert "the command" in text and "lose: H20, handoff\n\nNone." in text
    cell["arms"][grid.ADMITTED]["throughput"] = 0.5
    assert "| 50.0% |" in report.markdown({"H20": [cell]}, [], "", 4)


# ----------------------------------------------------------------------- closed loops
def test_a_closed_loop_keeps_so_many_at_work():
    ended = []
    workload = Workload(20, 1.0, [1024], (8, 40), PD, at_once=3)
    World(Setup(H20_EAGER_16, Network.of_report(), workload), ended.append).run()
    assert len(ended) == 20 and sum(r.arrival == 0 for r in ended) == 3
    ends = {r.ended_at for r in ended}
    assert all(r.arrival in ends for r in ended if r.arrival)
    for request in ended:
        assert sum(r.arrival <= request.arrival < r.ended_at for r in ended) <= 3


# --------------------------------------------------------------- where it was seen to lose
def test_a_decode_worker_short_of_kv_slots_is_not_slowed():
    """H200, prompts of 4K at 70%: D's KV slots are the bottleneck, its batch is not at its limit."""
    cell = grid.Cell(H200_EAGER_16, 0.7, 18.8, 4096, requests=150)
    pd, arm = (load(cell.point, mode) for mode in (PD, HANDOFF))
    compared = grid.compared(pd, arm)
    assert compared["ttft_saved_mean"] > 0 and compared["throughput"] > 0.99


def test_the_longest_gaps_under_load_are_what_PD_waits_for_t1():
    """No client waits for a prompt chunk, 0.5 s and more, once P has seen a few transfers."""
    point = Point(H20_EAGER_16, requests=150)
    arm = load(point, HANDOFF)
    assert quantile(arm.gap, 0.98) < 0.1 < H20_EAGER_16.prefill(0, 4096)


@pytest.mark.parametrize("mode", [PD, HANDOFF])
def test_no_more_run_than_there_are_places(monkeypatch, mode):
    """A request that is handed over waits for its place as an ordinary one does."""
    batches, real = [], DecodeWorker._join_batch

    def join(self, request, basis):
        real(self, request, basis)
        batches.append(self._batch)

    monkeypatch.setattr(DecodeWorker, "_join_batch", join)
    load(grid.Cell(H20_EAGER_16, 0.7, 12.5, 512, (128, 256), places=8, requests=60).point, mode)
    assert max(batches) == 8
