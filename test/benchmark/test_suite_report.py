"""The benchmark suite's files, report and pictures, on answers made up here."""

import dataclasses
import gzip
import json

import pytest

from benchmark.handoff.answer import Request
from benchmark.handoff.suite import __main__ as suite
from benchmark.handoff.suite import again, arms, picture, report
from benchmark.handoff.suite.block import CANCELLED, ERROR, WHOLE, Block, Sample

RUN = {
    "machine": {"date": "2026-11-30", "cpu": "a processor", "cores": 2, "load_average_before": 0.5},
    "where": "no GPU, tiny",
    "link": "KV link of 40 Mbit/s.",
    "seed": 1,
    "commit": "abc1234",
    "notes": ["a note"],
}


def block(
    arm, ttfts=(0.1, 0.2, 0.3), case="expected: closed loop, 1 at once", router="sglang", plan="1-0-3", ids=(7, 8, 9, 10)
):
    samples = []
    for number, ttft in enumerate(ttfts):
        sent_at = 50.0 + number
        at = tuple(sent_at + ttft + n / 10 for n in range(4))
        record = {"outcome": "committed", "boundary": 2} if "handoff" in arm else {}
        bucket = ("64-255", "256-1023")[number % 2]
        request = Request(sent_at, at, tuple(ids), record)
        samples.append(Sample(request, number, 100, 4, bucket, "4", WHOLE, at[-1], sent_at - 0.01 if number else None))
    return Block(case, arm, router, plan, tuple(samples), (), 0.25, 1.5)


def of_all_arms():
    return [block(arm.name, plan=plan) for plan in ("1-0-3", "1-1-3") for arm in arms.ARMS]


def test_raw_events_come_back_as_they_were(tmp_path):
    blocks = of_all_arms()
    report.save_raw(RUN, blocks, tmp_path)
    runs, back = report.load_raw([tmp_path / report.RAW])
    assert runs == [RUN]
    for one, other in zip(back, blocks, strict=True):
        assert (one.case, one.arm, one.router, one.plan, one.client_cores) == (
            other.case,
            other.arm,
            other.router,
            other.plan,
            0.25,
        )
        for got, put in zip(one.samples, other.samples, strict=True):
            assert got.request.at == pytest.approx([at - 50.0 for at in put.request.at], abs=1e-5)
            assert got.request.ids == put.request.ids and got.request.handoff == put.request.handoff
            assert got.late == pytest.approx(put.late, abs=2e-5)
            assert (got.ended, got.prompt_bucket, got.number) == (put.ended, put.prompt_bucket, put.number)


def test_the_same_events_give_the_same_file(tmp_path):
    for name in ("one", "two"):
        report.save_raw(RUN, of_all_arms(), tmp_path / name)
    assert (tmp_path / "one" / report.RAW).read_bytes() == (tmp_path / "two" / report.RAW).read_bytes()


def test_there_is_a_row_for_each_arm_and_router_with_the_right_values():
    blocks = [*of_all_arms(), block(arms.PD.name, router="smg", ttfts=(1.5, 1.6, 1.7))]
    result = report.build([RUN], blocks)
    rows = {(row["arm"], row["router"]): row for row in result["rows"]}
    assert list(rows) == [
        ("unified x2", "sglang"),
        ("PD", "sglang"),
        ("PD", "smg"),
        ("PD, prefill_complete", "sglang"),
        ("PD + handoff", "sglang"),
        ("PD + handoff, decode replay", "sglang"),
    ]
    assert rows["PD", "smg"]["all"]["ttft"]["p50"]["value"] == pytest.approx(1600)
    assert rows["PD + handoff", "sglang"]["all"]["requests"] == 6
    assert rows["PD + handoff", "sglang"]["all"]["boundary_gap"]["p95"]["value"] == pytest.approx(100)
    assert rows["PD", "sglang"]["all"]["boundary_gap"] is None
    text = report.markdown(result)
    assert "| PD | smg | 3 | 3 / 0 / 0 | 1,600 / 1,700* / 1,700* [" in text
    assert (
        "| prompt 64-255 | PD | smg | 2 | " in text
        and "| prompt 256-1023 | PD | smg | 1 | 1,600* / 1,600* / 1,600* |" in text
    )
    assert "Measured 2026-11-30 on a processor, 2 cores" in text and "Commit abc1234." in text and "- a note" in text
    assert "| PD | smg | 0.75 [0.75, 0.75] | 3.00 [3.00, 3.00] |" in text and "| 0.25 | 1.50 [1.50, 1.50] |" in text


def test_one_length_has_no_table_of_buckets():
    one = block("PD")
    samples = tuple(dataclasses.replace(s, prompt_bucket="4096") for s in one.samples)
    text = report.markdown(report.build([RUN], [dataclasses.replace(one, samples=samples)]))
    assert "All prompts and answers are of one length." in text and "prompt 4096" not in text


def test_nothing_wrong_ends_with_0():
    result = report.build([RUN], of_all_arms())
    assert result["compared"] == 24 and suite.exit_code(result, exact=True) == 0
    assert "compared with the unified server's: 24, different: 0" in report.markdown(result)


def test_a_different_answer_is_shown_and_ends_with_1_where_numbers_are_exact():
    blocks = of_all_arms()
    blocks[1] = block("PD", ids=(7, 8, 9, 11))
    result = report.build([RUN], blocks)
    assert len(result["different"]["PD"]) == 3 and "request 0: from token 4 on" in report.markdown(result)
    assert suite.exit_code(result, exact=True) == 1 and suite.exit_code(result, exact=False) == 0


@pytest.mark.parametrize("change", [{"kept": ("a worker isn't idle",)}, {"error": True}])
def test_errors_and_leaks_are_shown_and_end_with_1(change):
    blocks = of_all_arms()
    if change.pop("error", False):
        failed = dataclasses.replace(blocks[1].samples[0], ended=ERROR, error="it broke")
        change = {"samples": (failed, *blocks[1].samples[1:])}
    blocks[1] = dataclasses.replace(blocks[1], **change)
    result = report.build([RUN], blocks)
    assert suite.exit_code(result, exact=False) == 1
    assert "it broke" in report.markdown(result) or "a worker isn't idle" in report.markdown(result)


def test_pictures_are_drawn_also_of_arms_without_switch_and_of_cut_answers(tmp_path):
    blocks = [*of_all_arms(), block("PD", case="hard: closed loop, 8 at once", router="mini_lb")]
    cut = dataclasses.replace(blocks[-1].samples[0], ended=CANCELLED, request=Request(50.0, (), (), {}))
    blocks[-1] = dataclasses.replace(blocks[-1], samples=(cut, *blocks[-1].samples[1:]))
    paths = picture.draw(report.build([RUN], blocks), blocks, tmp_path)
    assert [path.name for path in paths] == ["distributions.png", "prompts.png"]
    assert all(path.stat().st_size > 10_000 for path in paths)
    assert set(picture.COLOURS) == {arm.name for arm in arms.ARMS}


def test_runs_are_put_together(tmp_path, monkeypatch):
    report.save_raw(RUN, [block("unified x2"), block("PD")], tmp_path / "1")
    report.save_raw(RUN, [block("PD + handoff"), block("PD", plan="2-0-3")], tmp_path / "2")
    files = [str(tmp_path / n / report.RAW) for n in ("1", "2")]
    monkeypatch.setattr("sys.argv", ["again", *files, "--out", str(tmp_path / "all")])
    again.main()
    result = json.loads((tmp_path / "all" / report.FIGURES).read_text())
    assert [(row["arm"], row["all"]["requests"]) for row in result["rows"]] == [
        ("unified x2", 3),
        ("PD", 6),
        ("PD + handoff", 3),
    ]
    assert result["compared"] == 6 and (tmp_path / "all" / report.TEXT).exists()


def test_runs_of_different_models_are_not_put_together(tmp_path):
    report.save_raw(RUN, [block("PD")], tmp_path / "1")
    report.save_raw(RUN | {"where": "no GPU, smollm2"}, [block("PD")], tmp_path / "2")
    with pytest.raises(ValueError, match="can't be put together"):
        report.load_raw([tmp_path / "1" / report.RAW, tmp_path / "2" / report.RAW])


def test_raw_events_are_small(tmp_path):
    report.save_raw(RUN, of_all_arms() * 20, tmp_path)
    raw = (tmp_path / report.RAW).read_bytes()
    assert len(raw) < len(gzip.decompress(raw)) / 5
