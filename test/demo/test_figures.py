"""The demo's figures, spans and verdict on answers made up by hand."""

import dataclasses

import pytest

from demo import facts, report, verdict
from demo.measure import DECODE, PREFILL, UNIFIED, Figures, Run, Token, equal, figures, makers, most_typical, summary
from demo.table import table


def run(at, boundary=1, arm="PD + handoff", prompt="p", ids=None, bridged=None, worker=None, **fields) -> Run:
    """A run with tokens at the times `at`, in seconds; P makes those up to `boundary`, or `worker` all of them."""
    made_by = [worker] * len(at) if worker else makers(len(at), boundary)
    tokens = tuple(map(Token, at, ids or range(len(at)), made_by))
    handoff = {} if bridged is None else {"outcome": "committed", "tokens_bridged": bridged}
    return Run(arm, prompt, 1000, tokens, "text", at[-1] + 0.5, handoff=handoff, **fields)


def test_figures_are_milliseconds_on_the_clients_clock():
    one = figures(run([2.0, 2.1, 2.2, 2.9, 3.0], boundary=3))
    assert one.ttft_ms == pytest.approx(2000)
    assert one.largest_gap_ms == pytest.approx(700)
    assert one.switch_gap_ms == pytest.approx(700)  # between the third token, the last one of P, and the fourth
    assert one.median_itl_ms == pytest.approx(100)
    assert one.end_to_end_ms == pytest.approx(3500)
    assert one.tokens_bridged == 2


def test_gap_at_the_switch_is_not_the_largest_gap():
    one = figures(run([1.0, 1.9, 2.0, 2.1], boundary=2))
    assert one.switch_gap_ms == pytest.approx(100) and one.largest_gap_ms == pytest.approx(900)


def test_tokens_of_one_event_have_no_gap_between_them():
    one = figures(run([1.0, 1.0, 1.0, 1.3]))
    assert one.median_itl_ms == 0 and one.largest_gap_ms == pytest.approx(300)


def test_without_a_switch_there_is_no_gap_at_it():
    assert figures(run([1.0, 1.1], worker=UNIFIED)).switch_gap_ms is None
    assert figures(run([1.0, 1.1], worker=UNIFIED)).tokens_bridged == 0
    assert figures(run([1.0, 1.1], boundary=None)).switch_gap_ms is None  # ended on a relayed token


def test_one_token_has_no_gaps():
    one = figures(run([1.0]))
    assert one == Figures(1000, None, None, None, 1500, 0)
    assert summary([one]) == one


def test_first_token_is_of_the_prefill_worker_also_without_handoff():
    assert makers(3, 1) == [PREFILL, DECODE, DECODE]
    assert makers(2, None) == [PREFILL, PREFILL]
    assert makers(2, 5) == [PREFILL, PREFILL]


def test_an_arm_is_the_median_of_its_requests_and_the_largest_gap_of_all():
    each = [figures(run([at, at + gap, at + 2 * gap], boundary=2)) for at, gap in ((1.0, 0.1), (2.0, 0.9), (4.0, 0.2))]
    one = summary(each)
    assert one.ttft_ms == pytest.approx(2000)
    assert one.switch_gap_ms == one.median_itl_ms == pytest.approx(200)
    assert one.largest_gap_ms == pytest.approx(900)


def test_requests_without_a_switch_do_not_count_in_its_median():
    each = [figures(run([1.0, 1.1])), figures(run([1.0, 1.3])), figures(run([1.0], boundary=None))]
    assert summary(each).switch_gap_ms == pytest.approx(200)


def test_outputs_are_equal_only_in_every_token_and_in_text():
    wanted = run([1, 2, 3])
    assert equal(run([4, 5, 6], arm="unified"), wanted)
    assert not equal(run([1, 2, 3], ids=[0, 1, 9]), wanted)
    assert not equal(run([1, 2]), wanted)
    assert not equal(dataclasses.replace(wanted, text="other"), wanted)


def test_the_typical_prompt_is_nearest_to_the_medians():
    def prompt(ttft, switch):
        return [run([ttft, ttft + 0.1], worker=UNIFIED), run([ttft + 2, ttft + 2 + switch])]

    assert most_typical({"slow": prompt(9, 0.1), "usual": prompt(2, 0.2), "fast": prompt(1, 0.3)}) == "usual"


def test_transfer_spans_are_those_of_the_request():
    events = [
        {"at": 90.0, "what": "start", "bytes": 5},  # an earlier request's
        {"at": 91.0, "what": "end", "bytes": 5},
        {"at": 102.0, "what": "queued", "rid": "r", "last": True},
        {"at": 102.1, "what": "start", "bytes": 5},
        {"at": 105.1, "what": "end", "bytes": 5},
        {"at": 105.2, "what": "done", "rid": "r", "ok": True},
    ]
    spans = facts.of_transfer(events, "r", facts.Clock(sent_at=100.0, epoch=0.0))
    assert spans[facts.PROMPT] == [(0.0, pytest.approx(2.0))]
    assert spans[facts.TRANSFER] == [(pytest.approx(2.1), pytest.approx(5.1))]
    with pytest.raises(ValueError, match="no whole transfer of request other"):
        facts.of_transfer(events, "other", facts.Clock(100.0, 0.0))


def test_handoff_spans_are_on_the_clients_clock():
    record = {
        "outcome": "committed",
        "started_at": 5100.5,
        "at_ms": {"sealing": 1000, "draining": 1050, "committed": 1200},
        "rounds": [[1060, 1190, 7]],
    }
    clock = facts.Clock(sent_at=100.0, epoch=5000.0)  # so the handoff was offered 0.5 s after the request was sent
    spans = facts.of_handoff(record, clock)
    assert spans[facts.SEAL] == [(pytest.approx(1.5), pytest.approx(1.55))]
    assert spans[facts.REPLAY] == [(pytest.approx(1.56), pytest.approx(1.69))]
    assert spans[facts.COMMIT] == [(pytest.approx(1.7), pytest.approx(1.7))]
    assert facts.of_handoff({"outcome": "finished"}, clock) == facts.of_handoff({}, clock) == {}


def three_arms(bridged=5, ids=None) -> list[Run]:
    """One prompt's runs whose TTFTs are 2 s, 5 s and 2.1 s."""
    return [
        run([2.0, 2.1, 2.2], arm="unified", worker=UNIFIED),
        run([5.0, 5.1, 5.2], arm="PD"),
        run([2.1, 2.2, 2.3], boundary=2, ids=ids, bridged=bridged),
    ]


def test_the_demo_succeeds_when_outputs_are_equal_and_handed_off():
    result = report.build({}, {"p": three_arms()})
    assert result["problems"] == [] and all(goal["met"] for goal in result["goals"])
    assert [goal["value"] for goal in result["goals"]] == pytest.approx([0.42, 1.05, 1.0, 1.0])
    assert [arm["equal_output"] for arm in result["arms"]] == [None, True, True]


def test_the_demo_fails_when_an_output_differs():
    result = report.build({}, {"good": three_arms(), "bad": three_arms(ids=[0, 7, 2])})
    assert len(result["problems"]) == 1 and "from token 2 on" in result["problems"][0]
    assert [arm["equal_output"] for arm in result["arms"]] == [None, True, False]
    assert not next(goal for goal in result["goals"] if goal["what"] == "requests with equal output")["met"]


def test_the_demo_fails_without_enough_handoffs():
    assert "no handoff took place" in report.build({}, {"p": three_arms(bridged=None)})["problems"][0]
    assert "no handoff took place" in report.build({}, {"p": three_arms(bridged=0)})["problems"][0]
    nine_of_ten = {str(i): three_arms(bridged=i) for i in range(10)}
    assert report.build({}, nine_of_ten)["problems"] == []
    assert "only 8 of 10" in report.build({}, nine_of_ten | {"1": three_arms(bridged=0)})["problems"][0]


def test_first_difference_counts_from_one():
    assert verdict.first_difference([1, 2, 3], [1, 5, 3]) == 2
    assert verdict.first_difference([1, 2], [1, 2, 3]) == 3


def test_a_missed_ttft_goal_is_shown_but_is_no_problem():
    slow = three_arms()
    slow[2] = run([4.0, 4.1, 4.2], boundary=2, bridged=1)
    result = report.build({}, {"p": slow})
    assert result["problems"] == [] and "MISSED" in result["goals"][0]["text"]


def test_the_table_has_a_row_per_arm_and_says_what_differs():
    text = table(report.build({}, {"p": three_arms(ids=[0, 7, 2])})["arms"])
    head, _, unified, pd, handoff, _ = text.splitlines()
    assert unified.split()[-1] == "reference" and pd.split()[-1] == "yes" and handoff.split()[-1] == "NO"
    assert len({len(head), len(unified), len(pd), len(handoff)}) == 1
    assert "2,100" in handoff
