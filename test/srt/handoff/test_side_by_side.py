"""The benchmark's figures, goals, report and picture, on answers made up here."""

import pytest

from benchmark.handoff.answer import Request
from benchmark.handoff.quantile import quantile
from benchmark.handoff.side_by_side import figures, picture, report, setups, verdict
from benchmark.handoff.side_by_side.figures import Block
from benchmark.handoff.side_by_side.setups import HANDOFF, PD, SETUPS, UNIFIED


def request(*gaps, ttft=1.0, sent_at=100.0, boundary=None, outcome=None, ids=None):
    """An answer whose tokens are so many seconds apart."""
    at = [sent_at + ttft]
    for gap in gaps:
        at.append(at[-1] + gap)
    record = {} if outcome is None else {"outcome": outcome, "boundary": boundary, "tokens_bridged": (boundary or 1) - 1}
    return Request(sent_at, tuple(at), tuple(ids or range(len(at))), record)


def switched(*gaps, boundary, **more):
    return request(*gaps, boundary=boundary, outcome="committed", **more)


def test_the_gap_at_the_switch_is_between_the_last_token_of_one_and_the_first_of_the_other():
    one = switched(0.1, 0.1, 0.5, 0.2, 0.2, boundary=3)
    assert one.boundary_gap == pytest.approx(0.5)
    assert one.itl == pytest.approx(0.15), "of the other gaps"
    assert one.decode_gaps == pytest.approx([0.2, 0.2])


def test_a_request_that_ended_on_P_has_no_switch_and_no_gaps_of_D():
    one = request(0.1, 0.1, outcome="finished", boundary=None)
    assert one.boundary is None and one.boundary_gap is None and one.decode_gaps == []


def test_a_commit_behind_the_last_token_is_no_switch():
    assert switched(0.1, 0.1, boundary=3).boundary is None


def test_without_a_handoff_all_gaps_are_of_one_worker():
    assert request(0.1, 0.3).decode_gaps == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize("share, value", [(0.5, 5), (0.95, 10), (0.1, 1), (0.0, 1), (1.0, 10)])
def test_quantiles_are_values_that_were_seen(share, value):
    assert quantile(range(10, 0, -1), share) == value


def test_no_quantile_of_nothing():
    assert quantile([], 0.5) is None


def test_the_ttft_in_parts_is_the_ttft():
    record = {"outcome": "committed", "boundary": 2, "prefill_ms": 60.0, "at_ms": {"arrived": -5.0, "opened": 70.0, "first_relay": 73.0}}
    parts = Request(100.0, (100.1, 100.2, 100.3), (1, 2, 3), record).ttft_parts
    wanted = {"P, receipt to t1": 0.06, "before its receipt, and t1's way": 0.015, "until D relays it": 0.003}
    assert parts == pytest.approx(wanted | {"outside the schedulers": 0.022})
    assert sum(parts.values()) == pytest.approx(0.1)
    assert request(0.1).ttft_parts == {} == switched(0.1, 0.1, boundary=2).ttft_parts


@pytest.mark.parametrize(
    "at_ms, parts",
    [
        ({"kv_arrived": 5, "draining": 10, "committed": 12, "first_own_token": 22}, [0, 0, 2, 10]),
        ({"kv_arrived": 30, "draining": 20, "committed": 44, "first_own_token": 51}, [20, 0, 14, 7]),
        ({"kv_arrived": 4, "draining": 60, "committed": 60, "first_own_token": 70}, [0, 50, 0, 10]),
    ],
    ids=["all before it", "the KV is late", "P is late"],
)
def test_the_gap_in_parts_is_the_gap(at_ms, parts):
    record = {"outcome": "committed", "boundary": 2, "at_ms": {"last_relay": 10, **at_ms}}
    found = Request(100.0, (100.1, 100.2, 100.3), (1, 2, 3), record).gap_parts
    assert list(found.values()) == pytest.approx([ms / 1e3 for ms in parts])
    assert sum(found.values()) == pytest.approx((at_ms["first_own_token"] - 10) / 1e3)
    assert Request(100.0, (100.1, 100.2), (1, 2), record).gap_parts == {}, "the answer ended at the switch"


def test_throughput_runs_from_the_first_request_to_the_last_token():
    block = Block(PD, (request(1.0, ttft=1.0, sent_at=10.0), request(1.0, ttft=2.0, sent_at=11.0)))
    assert block.tokens_per_s == pytest.approx(4 / 4.0)


def of_three_arms(handoff_gap=0.12, handoff_ttft=1.01, handoff_itl=0.1, wrong=False):
    plain = [request(0.1, 0.1, 0.1, 0.1)]
    seamless = [switched(0.1, handoff_gap, handoff_itl, handoff_itl, boundary=2, ttft=handoff_ttft)]
    if wrong:
        seamless[0] = switched(0.1, 0.1, 0.1, 0.1, boundary=2, ids=[0, 1, 2, 3, 9])
    return [Block(UNIFIED, tuple(plain)), Block(PD, tuple(plain)), Block(HANDOFF, tuple(seamless))]


def missed(blocks, at_once=8):
    of_arm = {block.arm: figures.of_arm([block]) for block in blocks}
    return [goal.what.partition(",")[0] for goal in verdict.goals(of_arm, at_once) if not goal.met]


def test_goals_are_met_by_figures_within_them():
    assert missed(of_three_arms()) == []


@pytest.mark.parametrize(
    "change, what",
    [
        ({"handoff_ttft": 1.2}, ["TTFT p50", "tokens per second"]),
        ({"handoff_gap": 0.3}, ["gap at the switch in ITLs", "gap at the switch in ITLs", "tokens per second"]),
        ({"handoff_itl": 0.11}, ["ITL p50 of tokens after the switch", "tokens per second"]),
    ],
)
def test_each_goal_is_missed_by_its_own_figure(change, what):
    found = missed(of_three_arms(**change))
    assert set(found) <= set(what) and what[0] in found


def test_load_is_judged_under_load_alone():
    assert not {"tokens per second", "ITL p50 of tokens after the switch"} & set(missed(of_three_arms(handoff_itl=0.5), at_once=1))


def test_a_different_answer_is_named():
    assert verdict.different(of_three_arms()) == []
    assert verdict.different(of_three_arms(wrong=True)) == [f"{HANDOFF} answered request 0 differently from {UNIFIED}"]


def test_the_report_has_every_event_and_a_row_of_each_arm():
    result = report.build(SETUPS[0], 8, of_three_arms())
    assert [len(block["requests"][0]["at"]) for block in result["blocks"]] == [5, 5, 5]
    table = report.table(result)
    assert all(f"\n| {arm} | 1 |" in table for arm in (UNIFIED, PD, HANDOFF))
    assert "1 committed" in table and "differ from the unified server's: 0" in table


def test_the_picture_is_drawn_also_without_any_switch(tmp_path):
    blocks = of_three_arms()
    picture.draw({"with": blocks, "without": blocks[:2] + [Block(HANDOFF, (request(0.1),))]}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_every_arm_is_asked_the_same_and_no_two_prompts_begin_alike():
    setup = setups.SETUPS[0]
    prompts = setup.prompts(1, 50)
    assert prompts == setup.prompts(1, 50) != setup.prompts(2, 50)
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 50 and {len(prompt) for prompt in prompts} == {setup.prompt}
