"""The simulator: public rows, repeatable runs, every invariant under faults, and that it has teeth."""

import random
from statistics import median_high

import pytest

from benchmark.handoff.simulator import core, costs, invariants, report, rough
from benchmark.handoff.simulator.costs import ALL, H20_EAGER_16, H20_GRAPH, H200_GRAPH
from benchmark.handoff.simulator.costs import Costs, Network
from benchmark.handoff.simulator.events import Clock
from benchmark.handoff.simulator.faults import Faults, FaultRates
from benchmark.handoff.simulator.invariants import Slots, Violation
from benchmark.handoff.simulator.load import Point, load
from benchmark.handoff.simulator.predict import compare, single
from benchmark.handoff.simulator.workload import HANDOFF, PD, Request, Workload
from benchmark.handoff.simulator.world import Setup, World

NETWORK = Network.of_report()
MS = 1e-3


def run(requests=400, seed=5, **changes):
    setup = rough.setup(requests, seed)
    setup = Setup(**{**vars(setup), **changes})
    world = World(setup)
    world.run()
    return setup, world


# ------------------------------------------------------------------------- the figures
def test_public_rows_are_reproduced():
    rows = {(name, figure): (said, got) for name, figure, said, got in report.public_rows()}
    said, got = rows["16K", "PD - unified (calibrated from)"]
    assert got == pytest.approx(said, abs=0.1 * MS)
    said, got = rows["32K", "PD - unified"]  # a prediction
    assert got == pytest.approx(said, abs=2.5 * MS)
    for figure in ("unified TTFT", "PD TTFT"):
        said, got = rows["32K", figure]
        assert got == pytest.approx(said, rel=0.015)


def test_ideal_shares_give_the_floors():
    """H20 and H200 at full peak: decode steps and replay rounds of design/kernels.md, in ms."""
    h20 = Costs("", costs.H20_FLOPS, costs.H20_MEMORY, 1.0, 1.0, 1.0, 0.0)
    h200 = Costs("", costs.H200_FLOPS, costs.H200_MEMORY, 1.0, 1.0, 1.0, 0.0)
    assert costs.QWEN3_8B.kv_token_bytes == 147_456
    for context, step, floor_16, floor_32 in ((16384, 4.70, 5.14, 6.19), (32768, 5.31, 6.19, 8.28)):
        assert h20.decode(1, context) / MS == pytest.approx(step, abs=0.01)
        assert h20.replay([(8, context)]) / MS == pytest.approx(step, abs=0.01)
        assert h20.replay([(16, context)]) / MS == pytest.approx(floor_16, abs=0.02)
        assert h20.replay([(32, context)]) / MS == pytest.approx(floor_32, abs=0.02)
    for context, step in ((16384, 3.92), (32768, 4.42)):
        assert h200.decode(1, context) / MS == pytest.approx(step, abs=0.01)
        assert h200.replay([(32, context)]) / MS == pytest.approx(step, abs=0.01)


@pytest.mark.parametrize("prompt", [4096, 16384, 32768])
def test_handoff_takes_the_tail_out_of_the_ttft(prompt):
    for each in (H20_EAGER_16, H200_GRAPH):
        result = compare(each, prompt, NETWORK)
        assert result.pd_tail > 30 * MS and 0 <= result.handoff_tail < 1 * MS
        assert result.handoff.boundary > 1


def test_gap_at_the_boundary_is_a_decode_step():
    """P's last token and D's last round come together."""
    for each in ALL:
        gap = single(HANDOFF, each, NETWORK, 16384).gap
        assert gap == pytest.approx(each.decode(1, 16384), abs=0.5 * MS)


def test_gap_at_the_first_boundary_is_a_replay_round_and_a_decode_step():
    """D knows no costs yet, and few entries are left when the KV comes: P stops at once, then D replays."""
    for each in ALL:
        gap = single(HANDOFF, each, NETWORK, 4096, before=0).gap
        assert gap == pytest.approx(each.replay([(8, 4096)]) + each.decode(1, 4096), abs=0.5 * MS)


def test_early_prompts_wait_their_turn():
    """Queueing on P: of requests that come together, each waits for the prompts before it."""
    ended = []
    workload = Workload(4, 1e6, [16384], (4, 4))
    World(Setup(H20_GRAPH, NETWORK, workload), ended.append).run()
    first = sorted(r.first_at for r in ended)
    assert all(b - a >= H20_GRAPH.ttft(16384) - 1e-9 for a, b in zip(first, first[1:]))
    # at most one bridge step between two prefill batches, and two chunks a prompt
    assert first[1] - first[0] <= H20_GRAPH.ttft(16384) + 2 * H20_GRAPH.decode(4, 4 * 16400)


def test_two_requests_share_one_pair():
    """One takes over in the turn in which the other's replay round begins."""
    for spacing in (0.05, 0.1, 0.2, 0.4):
        workload = Workload(12, 1 / spacing, [4096], (30, 60))
        world = World(Setup(H200_GRAPH, NETWORK, workload, seed=2))
        world.run()
        assert world.count["finished"] == 12


def test_under_load_P_makes_way():
    """Without the admission a SealRequest waits for the prompt chunk that P is in."""
    pd, always, admitted = (
        load(Point(H20_GRAPH), mode, admits) for mode, admits in ((PD, True), (HANDOFF, False), (HANDOFF, True))
    )
    chunk = H20_GRAPH.prefill(0, 8192)
    assert median_high(pd.gap) < 0.02 and median_high(always.gap) > 0.8 * chunk
    # closed with t1, the gap is what PD adds to the TTFT
    assert median_high(admitted.gap) < 0.08 and median_high(admitted.ttft) < median_high(pd.ttft)


# ------------------------------------------------------------------------- repeatable
def test_same_seed_same_report():
    one, again, other = (report.fault_run(*run(seed=s)) for s in (7, 7, 8))
    assert one == again != other


# ---------------------------------------------------------------------------- faults
def test_every_invariant_under_faults():
    """All kinds of faults at once. A violation raises; then every way out must have been seen."""
    setup, world = run(4000, seed=3)
    assert world.done == 4000 and not world.live
    for outcome in (
        "finished", "aborted", "error", "committed", "committed alone", "resumed",
        "finished on a relayed token", "ordinary: not_opened", "made way for a prompt", "not bridged: prompts_wait",
    ):  # fmt: skip
        assert world.count[outcome], outcome
    # FENCED: a new process that has the port of a killed one gets that one's messages
    assert world.control.dropped["unknown_session"]
    for fault in (
        "dropped", "duplicated", "delayed", "silenced", "kv_failure", "kv_stall", "abort",
        "p_restart", "d_restart", "full",
    ):  # fmt: skip
        assert world.faults.count[fault], fault


@pytest.mark.parametrize("fault", ["drop", "duplicate", "delay", "kv_failure", "abort", "kv_stall"])
def test_one_kind_of_fault_for_every_second(fault):
    setup, world = run(200, rates=FaultRates(**{fault: 0.5}))
    assert world.done == 200
    if fault in ("drop", "duplicate", "delay", "kv_stall"):
        assert world.count["finished"] == 200
    if fault == "kv_failure":
        # P goes on alone, unless D had no Open yet
        assert world.count["finished"] > 150


def test_no_faults_no_surprises():
    setup, world = run(300, rates=FaultRates())
    assert world.count["finished"] == 300
    assert not any(world.count[k] for k in ("committed alone", "resumed", "no slot", "error"))


def test_product_timing_meets_faults_too():
    setup, world = run(300, timing=core.Timing())
    assert world.done == 300


# ------------------------------------------------------------------------------ teeth
def mutant_relays_one_less(monkeypatch):
    real = core.DecodeMachine.take_relay
    monkeypatch.setattr(core.DecodeMachine, "take_relay", lambda self: real(self)[1:])


def mutant_commits_unreplayed(monkeypatch):
    real = core.DecodeMachine._advance

    def advance(self, now):
        if self.state is core.DecodeState.DRAINING and self.log.complete and not self.replay_in_flight:
            self.replayed = len(self.log) - 1
        return real(self, now)

    monkeypatch.setattr(core.DecodeMachine, "_advance", advance)


def mutant_ignores_the_lease(monkeypatch):
    monkeypatch.setattr(core.PrefillMachine, "lease_end", property(lambda self: 1e18))


def mutant_generates_when_sealed(monkeypatch):
    def close(self, now, reason):
        self.end_reason, self._still_since = reason, now
        return self._sealed_message(now)

    monkeypatch.setattr(core.PrefillMachine, "_close", close)


def mutant_never_ends(monkeypatch):
    monkeypatch.setattr(core.PrefillMachine, "done", property(lambda self: False))


@pytest.mark.parametrize(
    "mutant, invariant",
    [
        (mutant_relays_one_less, "ONCE"),
        (mutant_commits_unreplayed, "KV"),
        (mutant_ignores_the_lease, "ONE-GENERATOR"),
        (mutant_generates_when_sealed, "ONE-GENERATOR"),
        (mutant_never_ends, "TERMINATES"),
    ],
)
def test_a_broken_machine_is_noticed(monkeypatch, mutant, invariant):
    mutant(monkeypatch)
    # long answers, so that P is still at it when its silence ends
    workload = Workload(600, 20.0, [512, 2048], (100, 400), rooms=64)
    rates = FaultRates(silence=0.5, silence_mean=2.0, drop=0.02)
    with pytest.raises(Violation, match=f"^{invariant}"):
        run(600, workload=workload, rates=rates, max_bridge=512, p_rows=40_000, d_rows=60_000)


def test_slots_free_once():
    request = Request(1, HANDOFF, 0, 0, 10, 5, core.EndReason.LENGTH, 0.0, 1, 1, 1)
    slots = Slots("p0", 100)
    assert slots.take(request, 60) and not slots.take(request, 41) and slots.free == 40
    with pytest.raises(Violation, match="FREED-ONCE"):
        slots.give_back(request, 61)
    with pytest.raises(Violation, match="FREED-ONCE"):
        slots.check_empty()
    slots.release(request)
    slots.check_empty()
    with pytest.raises(Violation, match="FREED-ONCE"):
        slots.release(request)


def test_client_sees_each_token_once():
    request = Request(1, HANDOFF, 0, 0, 10, 5, core.EndReason.LENGTH, 0.0, 3, 7, 1)
    invariants.seen(request, 1, [request.token(1), request.token(2)], 0.0)
    for start, tokens in (
        (2, [request.token(2)]),  # again
        (4, [request.token(4)]),  # a gap
        (3, [request.token(4)]),  # another token
        (3, [request.token(i) for i in range(3, 7)]),  # too many
    ):
        with pytest.raises(Violation, match="^ONCE"):
            invariants.seen(request, start, tokens, 0.0)
        request.seen = 2  # a run would have ended here


# ----------------------------------------------------------------------------- parts
def test_clock_keeps_order_and_refuses_the_past():
    clock, seen = Clock(), []
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        clock.at(time, seen.append, name)
    clock.run()
    assert seen == ["a", "b", "c"] and clock.now == 2.0
    with pytest.raises(ValueError):
        clock.at(1.0, seen.append, "past")


def test_a_silent_way_loses_everything_for_a_while():
    faults = Faults(FaultRates(silence=1.0, silence_mean=1.0), random.Random(1))
    for _ in range(20):  # both directions are cut by some of these
        faults.silence(0.0, "p0", "d0")
    assert faults.deliveries(0.0, "tcp://p0:1", "tcp://d0:1") == ()
    assert faults.deliveries(0.0, "tcp://p1:1", "tcp://d0:1") == (0.0,)
    assert faults.deliveries(1e6, "tcp://p0:1", "tcp://d0:1") == (0.0,)
