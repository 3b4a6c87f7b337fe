"""Replay by decode steps, and the comparison of replay and log: real workers, answers as the unified server's."""

import dataclasses
import itertools
import random
import shutil
import threading

import pytest
import safetensors.torch
import torch
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from rig import client, servers, stack
from rig.stack import Options
from sglang.srt.disaggregation.handoff.timing import Timing

register_cpu_ci(est_time=120, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

STEPS, VERIFY = ("--disaggregation-handoff-replay-mode", "decode"), ("--disaggregation-handoff-verify",)
# Tiny Qwen3 has 2 KiB of KV per token: 1,000 tokens take 0.4 s at this rate.
LINK_MBIT = 40
# of one length: upstream aborts every request whose id begins with the one that is named
rids = (f"modes-{n:04}" for n in itertools.count())


@dataclasses.dataclass(frozen=True)
class Mode:
    steps: bool
    verify: bool
    overlap: bool

    def __str__(self) -> str:
        parts = ("decode" if self.steps else "extend", "verify" if self.verify else "", "overlap" if self.overlap else "plain")
        return "-".join(filter(None, parts))

    @property
    def args(self) -> tuple[str, ...]:
        return STEPS * self.steps + VERIFY * self.verify


MODES = [Mode(True, False, True), Mode(False, True, False)]


def run_stack(mode: Mode, **more):
    """A fast P can't end by itself what asks for more than 100 tokens."""
    env = hs.BRIDGE_ALWAYS | {hs.BUDGET_VARIABLE: "100"}
    return stack.pair(Options(overlap=mode.overlap, env=env), prefill_handoff=True, decode_handoff=True, **more)


@pytest.fixture(scope="module", params=MODES, ids=str)
def pair(request, oracle):
    with run_stack(request.param, decode_args=request.param.args) as running:
        running.oracle, running.mode = oracle, request.param
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    yield
    if "pair" in request.fixturenames:
        hs.nothing_is_left(request.getfixturevalue("pair"))


def check_record(record: dict, mode: Mode) -> None:
    """Of a request that D took over from a P that stopped when it was asked to."""
    before_last = record["boundary"] - 1
    # what P sealed of itself it wasn't asked for; half, since marks are set a little after a message was sent
    at_ms = record["at_ms"]
    asked_once = "sealing" not in at_ms or at_ms["draining"] - at_ms["sealing"] < Timing().resend * 1e3 / 2
    # Asked again, P stops at once, which may be at the last of the tokens that D has replayed already.
    assert record["replayed"] in ((before_last,) if asked_once else (before_last, record["boundary"])), record
    assert record["replayed"] == sum(tokens for _, _, tokens in record["rounds"])
    if mode.steps:
        assert all(tokens == 1 for _, _, tokens in record["rounds"])
    if mode.verify:  # t1 to t(b-1) predict t2 to t(b)
        assert record["verify"] == {"compared": before_last, "mismatches": 0, "noted": []}
    else:
        assert "verify" not in record


def test_equal_to_unified(pair):
    prompts = [hs.prompt(6000 + n, length) for n, length in enumerate([1, 30, 300, 700, 1000, 1500, 2049, 2500] * 2)]
    sampling = dict(max_new_tokens=150, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    pair.set_link(LINK_MBIT)
    answers = client.generate_all(pair.url, prompts, at_once=8, **sampling)
    for answer, right in zip(answers, expected):
        hs.same(answer, right)
    committed = [hs.handoff(a) for a in answers if hs.handoff(a)["outcome"] == "committed"]
    assert len([record for record in committed if record["tokens_bridged"] > 3]) >= len(prompts) // 4, list(map(hs.handoff, answers))
    for record in committed:
        check_record(record, pair.mode)


def test_a_long_log_is_replayed(pair):
    ids, sampling = hs.prompt(6100, 300), dict(max_new_tokens=400, ignore_eos=True)
    answer = hs.generate_held(pair, ids, tokens_first=60, rid=next(rids), **sampling)
    hs.same(answer, pair.oracle(ids, **sampling))
    assert hs.handoff(answer)["tokens_bridged"] >= 59
    check_record(hs.handoff(answer), pair.mode)


def test_32_at_once_and_some_clients_leave(pair):
    """Several rounds in flight when the request they are for goes away."""
    rng = random.Random(6200)
    prompts = [hs.prompt(6200 + n, rng.randrange(20, 800)) for n in range(32)]
    sampling = dict(max_new_tokens=120, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    pair.set_link(4 * LINK_MBIT)
    streams = [client.start_generate(pair.url, ids, rid=next(rids), **sampling) for ids in prompts]
    leaving = rng.sample(streams, 12)

    def leave(stream, after):
        try:
            stream.wait_for_tokens(after)
        except client.RequestFailed:
            pass  # it was over before
        stream.disconnect()

    threads = [threading.Thread(target=leave, args=(stream, rng.randrange(1, 100))) for stream in leaving]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream, right in zip(streams, expected):
        if stream in leaving:
            got = stream.answer.ids
            assert got == right.ids[: len(got)]
        else:
            hs.same(stream.result(), right)


@pytest.fixture(scope="module")
def other_head(tmp_path_factory):
    """The tiny model with another output matrix: it writes the same KV and says something else."""
    folder = tmp_path_factory.mktemp("models") / "other-head"
    shutil.copytree(servers.TINY, folder)
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["lm_head.weight"] = torch.roll(tensors["lm_head.weight"], 1, dims=0)
    file.unlink()
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_a_decode_worker_with_another_model_is_found_out(oracle, other_head):
    """Every prediction is the next id; the client still gets P's tokens up to the boundary."""
    mode = Mode(True, True, True)
    ids, sampling = hs.prompt(6300, 300), dict(max_new_tokens=200, ignore_eos=True)
    args = (*mode.args, "--model-path", str(other_head), "--enable-metrics")
    with run_stack(mode, decode_args=args) as pair:
        answer = hs.generate_held(pair, ids, tokens_first=30, rid=next(rids), **sampling)
        record = hs.handoff(answer)
        boundary, verify = record["boundary"], record["verify"]
        assert answer.ids[:boundary] == oracle(ids, **sampling).ids[:boundary]
        assert verify["mismatches"] == verify["compared"] == boundary - 1
        first = verify["noted"][0]
        assert (first["entry"], first["logged"], first["predicted"]) == (2, answer.ids[1], answer.ids[1] + 1)
        assert first["margin"] > 0
        assert hs.sample(pair.decode, "sglang:handoff_verified_tokens_total", agree="false") == boundary - 1
        assert hs.sample(pair.decode, "sglang:handoff_verified_tokens_total", agree="true") == 0
        assert hs.sample(pair.decode, "sglang:handoff_mismatch_margin_count") == boundary - 1
        hs.assert_empty(pair)
