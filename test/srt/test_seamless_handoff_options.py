"""The flag itself: declared, refused with the full list, harmless on one side only; other routers, starts and few slots."""

import argparse
import itertools
import time

import pytest
from sglang.srt.server_args import ServerArgs
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from rig import client, ports, process, servers, stack
from rig.stack import Options

register_cpu_ci(est_time=180, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

FLAG = servers.HANDOFF_FLAG
rids = (f"options-{n}" for n in itertools.count())


def test_flags_are_in_the_help():
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    for flag in (FLAG, "--disaggregation-handoff-replay-mode", "--disaggregation-handoff-verify"):
        assert flag in parser.format_help()


def test_unsupported_options_are_refused_with_the_full_list(tmp_path):
    """A prefill worker's command with more arguments, to its end."""
    unfit = ["--page-size", "16", "--enable-mixed-chunk", "--scheduler-recv-interval", "4"]
    url = f"http://127.0.0.1:{ports.free_port()}"
    command = servers.prefill_command(Options(), url, ports.free_port(), handoff=True)
    command += [*unfit, "--optimistic-prefill-attempts", "2"]
    worker = process.Process("prefill", command, tmp_path / "log", servers.worker_env(Options(), url), forked=True)
    with pytest.raises(process.ProcessDied):
        worker.wait_ready(url + "/health", timeout=120)
    error = next(line for line in worker.log.read_text().splitlines() if line.startswith("ValueError"))
    named = ("--page-size 16", "--enable-mixed-chunk", "--scheduler-recv-interval", "--optimistic-prefill-attempts")
    for option in (FLAG, *named):
        assert option in error
    assert "Remove these options" in error


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_flag_on_one_side_only(oracle, side):
    """Ordinary path, one warning, a counter: the answers are as ever."""
    flags = {f"{s}_handoff": s == side for s in ("prefill", "decode")}
    with stack.pair(Options(), **flags) as pair:
        for n in range(3):
            ids, sampling = hs.prompt(3000 + n, 100), dict(max_new_tokens=12, ignore_eos=True)
            answer = client.generate(pair.url, ids, **sampling)
            assert answer.ids == oracle(ids, **sampling).ids
            expected = {"outcome": "ordinary", "reason": "not_opened"} if side == "decode" else None
            assert answer.meta_info.get("handoff") == expected
        warned = getattr(pair, side).log.read_text().count(f"start it with {FLAG} too")
        assert warned == 1
        hs.assert_empty(pair)
        other = {"prefill": "decode", "decode": "prefill"}[side]
        assert hs.server_info(getattr(pair, other)) is None
        info = hs.server_info(getattr(pair, side))
        (peer,) = info["peers"]
        # A prefill worker without the flag says nothing at all.
        reason, agreed = ("not_opened", None) if side == "decode" else ("no_offer", False)
        assert info["enabled"] and peer["opened"] == 0 and peer["agreed"] is agreed
        assert peer["refused"] == {reason: 3} and info["outcomes"][f"ordinary/{reason}"] == 3


def test_bridge_pauses_when_prefill_runs_short_of_slots(oracle):
    """Three prompts of 800 tokens leave P 600 slots for 3 x 400 tokens: the bridges pause, nothing fails."""
    few = dict(prefill_args=("--max-total-tokens", "3000"))
    with stack.pair(Options(env=hs.BRIDGE_ALWAYS), prefill_handoff=True, decode_handoff=True, **few) as pair:
        prompts, sampling = [hs.prompt(3100 + n, 800) for n in range(3)], dict(max_new_tokens=400, ignore_eos=True)
        pair.hold.all()
        streams = [client.start_generate(pair.url, ids, rid=next(rids), **sampling) for ids in prompts]
        before, now = -1, 0
        while now != before or now == 0:
            before = now
            time.sleep(1.5)
            now = sum(len(s.answer.ids) for s in streams)
        assert 3 * 100 < now <= 603  # as many as there are slots, and three t1 that need none
        pair.hold.release()
        for under_way, ids in zip(streams, prompts):
            hs.same(under_way.result(), oracle(ids, **sampling))
        hs.assert_empty(pair)


@pytest.fixture(scope="module")
def as_upstream():
    """Nothing of the rig's faster start: each process spawned and importing for itself. Behind upstream's Python router."""
    # at 2 KiB of KV per token a chat's prompt of 36 tokens takes 0.3 s
    link = dict(router="mini_lb", link_mbit=2, decode_args=("--enable-metrics",))
    # importing every model that there is would take two minutes
    options = Options(fast_start=False, env={"SGLANG_EXTERNAL_MODEL_PACKAGE": "rig_models"})
    with stack.pair(options, prefill_handoff=True, decode_handoff=True, **link) as running:
        yield running


def test_behind_mini_lb(oracle, as_upstream):
    """/generate and chat, streamed and not, all handed over and equal to the unified server's."""
    pair, sampling = as_upstream, dict(max_new_tokens=200, ignore_eos=True)
    for stream in (True, False):
        ids = hs.prompt(3200 + stream, 150)
        answer = client.generate(pair.url, ids, stream=stream, **sampling)
        assert answer.ids == oracle(ids, **sampling).ids
        text = f"Behind another router, {stream}."
        right = client.chat(oracle.server.url, text, max_tokens=40, stream=False, ignore_eos=True)
        answer = client.chat(pair.url, text, max_tokens=40, stream=stream, ignore_eos=True)
        assert (answer.text, answer.finish_reason) == (right.text, right.finish_reason)
    # the server's own request at its start takes the ordinary path
    taken_over = [n for (outcome, _), n in hs.counters(pair.decode).items() if outcome in ("committed", "finished")]
    assert sum(taken_over) == 4
    hs.assert_empty(pair)


def test_started_as_upstream_does(oracle, as_upstream):
    """Nothing of the handoff rests on the rig's faster start."""
    # more than P bridges: the KV takes a second, in which a fast P would end it
    ids, sampling = hs.prompt(3210, 150), dict(max_new_tokens=600, ignore_eos=True)
    answer = hs.generate_held(as_upstream, ids, tokens_first=8, rid=next(rids), **sampling)
    assert hs.handoff(answer)["outcome"] == "committed"
    hs.same(answer, oracle(ids, **sampling))
    hs.assert_empty(as_upstream)
