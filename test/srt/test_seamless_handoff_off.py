"""With the flag off the patched SGLang does what the released one does: same answers, same batches, same scheduler calls.

The released one is the tree's own first commits: the pristine wheel, plus the one patch that lets a CPU worker take part
in PD at all (without it there would be nothing to compare).
"""

import os
import pathlib
import subprocess

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from rig import client, stack
from rig.stack import Options

register_cpu_ci(est_time=180, suite="stage-b-test-cpu")
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "tree"
RECORDER = pathlib.Path(__file__).parent / "call_recorder"
ROLES = ("prefill", "decode")
# The main process asks for it at some time after the start, so it may fall into the recording or not.
NOT_COMPARED = "Scheduler.handle_freeze_gc"
LAST = 777  # tokens of the last prompt: longer than any sequence before it, but for the 2,500


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The tree before any of the handoff's patches, without our files."""
    folder = tmp_path_factory.mktemp("released") / "tree"
    log = subprocess.run(
        ["git", "-C", TREE, "log", "--reverse", "--format=%H %(trailers:key=Patch,valueonly,separator=)"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()
    commit = next(line.split()[0] for line in log if line.endswith(" cpu-pd"))
    subprocess.run(["git", "-C", TREE, "worktree", "add", "--detach", "--quiet", folder, commit], check=True)
    yield folder
    subprocess.run(["git", "-C", TREE, "worktree", "remove", "--force", folder], check=True)


def run(tree: pathlib.Path, out: pathlib.Path, monkeypatch, handoff: bool) -> dict:
    """Run one workload on a pair from `tree`; return its answers, and by role the calls and batches."""
    out.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (RECORDER, tree))))
    monkeypatch.setenv("CALL_RECORDER_DIR", str(out))
    # Requests one after the other, overlap off: which batches are run is then no matter of time.
    options = Options(overlap=False, args=("--random-seed", "7"), env={"SGLANG_PLUGINS": "transfer_hold,fast_start,call_recorder"})
    with stack.pair(options, prefill_handoff=handoff, decode_handoff=handoff) as pair:
        answers = [
            client.generate(pair.url, hs.prompt(n, length), max_new_tokens=8, ignore_eos=True)
            for n, length in enumerate((1, 40, 40, 2500))
        ]
        answers.append(client.generate(pair.url, hs.prompt(1, 40), max_new_tokens=8, stream=False, stop_token_ids=answers[1].ids[3:4]))
        answers.append(client.generate(pair.url, hs.prompt(7, 60), max_new_tokens=8, temperature=0.8))
        long = client.start_generate(pair.url, hs.prompt(8, LAST), max_new_tokens=4000, ignore_eos=True)
        long.wait_for_tokens(3)
        long.disconnect()
        hs.assert_empty(pair)
    return {
        "answers": [(a.ids, a.text, a.finish_reason, sorted(a.meta_info)) for a in answers],
        "calls": {role: calls((out / f"calls.{role}").read_text().splitlines()) for role in ROLES},
        "batches": {role: (out / f"batches.{role}").read_text().splitlines() for role in ROLES},
    }


def calls(lines: list[str]) -> set[str]:
    """The recorded calls that don't depend on the moment."""
    return {line for line in lines if NOT_COMPARED not in line}


def without_tail(batches: list[str]) -> list[str]:
    """The batches before the last request's: disconnected, it runs for as long as it takes to notice."""
    first = next(n for n, line in enumerate(batches) if f"seq_lens=[{LAST}]" in line or f"seq_lens=[{LAST + 1}]" in line)
    return batches[:first]


def test_flag_off_is_as_released(released, tmp_path, monkeypatch):
    before = run(released, tmp_path / "released", monkeypatch, handoff=False)
    after = run(TREE, tmp_path / "patched", monkeypatch, handoff=False)
    assert after["answers"] == before["answers"]
    for role in ROLES:
        assert without_tail(after["batches"][role]) == without_tail(before["batches"][role])
        # the profiler must have seen the event loop at work
        assert len(before["calls"][role]) > 200
    if after["calls"] == before["calls"]:
        return
    # Some calls depend on the moment. What one build does in both of its runs, the other must do in one of its own.
    before_again = run(released, tmp_path / "released-again", monkeypatch, handoff=False)
    after_again = run(TREE, tmp_path / "patched-again", monkeypatch, handoff=False)
    for role in ROLES:
        of_released = before["calls"][role], before_again["calls"][role]
        of_patched = after["calls"][role], after_again["calls"][role]
        assert set.intersection(*of_patched) - set.union(*of_released) == set(), role
        assert set.intersection(*of_released) - set.union(*of_patched) == set(), role


def test_the_comparison_sees_the_handoff(tmp_path, monkeypatch):
    """With the flag on, the same comparison must find the handoff's calls: else it proves nothing."""
    on = run(TREE, tmp_path / "on", monkeypatch, handoff=True)
    calls = {role: "\n".join(on["calls"][role]) for role in ROLES}
    assert "next_bridge_batch" in calls["prefill"] and "start_bridge" in calls["prefill"]
    assert "relay_handoffs" in calls["decode"] and "offer_handoff" in calls["decode"]
    assert any(line.startswith("DECODE") for line in on["batches"]["prefill"])
