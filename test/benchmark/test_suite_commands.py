"""The benchmark suite's launch lines and command line."""

import shlex

import pytest

from benchmark.handoff.suite import __main__ as suite
from benchmark.handoff.suite import arms, commands
from benchmark.handoff.suite.commands import Hardware
from benchmark.handoff.suite.running import by_hand

TWO_HOSTS = Hardware(hosts=("10.0.0.1", "10.0.0.2"), ib_devices=("mlx5_0", "mlx5_1"), gpus=("0", "0"))


@pytest.mark.parametrize("arm", arms.ARMS, ids=lambda arm: arm.key)
def test_every_worker_line_is_one_that_sglang_understands(arm):
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    for worker in commands.of_workers(arm, TWO_HOSTS):
        python, m, module, *options = worker.argv
        assert (m, module) == ("-m", "sglang.launch_server")
        read = parser.parse_args(options)
        assert (read.model_path, read.page_size) == ("Qwen/Qwen3-8B", 1)
        assert read.disaggregation_seamless_handoff == arm.handoff
        side = {"prefill": "prefill", "decode": "decode"}.get(worker.name, "null")
        assert read.disaggregation_mode == side
        policy = "prefill_complete" if arm is arms.PREFILL_COMPLETE else "early"
        assert read.disaggregation_decode_allocation_policy == policy
        replay = "decode" if arm is arms.HANDOFF_DECODE and side == "decode" else "extend"
        assert read.disaggregation_handoff_replay_mode == replay


def test_every_arm_has_two_workers_each_on_its_device():
    for arm in arms.ARMS:
        workers = commands.of_workers(arm, Hardware(gpus=("3", "5")))
        assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["3", "5"]
        assert len({worker.url for worker in workers}) == 2


def test_the_router_stands_before_both_workers():
    pd = commands.of_router(arms.PD, TWO_HOSTS, "sglang", 0).argv
    assert pd[pd.index("--prefill") + 1 :][:2] == ["http://10.0.0.1:30000", "8998"]
    assert pd[pd.index("--decode") + 1] == "http://10.0.0.2:30001"
    two = commands.of_router(arms.UNIFIED, TWO_HOSTS, "smg", 0).argv
    assert two[two.index("--worker-urls") + 1 :][:2] == ["http://10.0.0.1:30000", "http://10.0.0.2:30001"]
    assert "--pd-disaggregation" in pd and "--pd-disaggregation" not in two


def test_mini_lb_stands_before_pd_alone():
    routers = ["sglang", "smg", "mini_lb"]
    assert arms.routers_of(arms.PD, routers) == routers and arms.routers_of(arms.UNIFIED, routers) == routers[:2]
    with pytest.raises(ValueError, match="prefill and decode"):
        commands.of_router(arms.UNIFIED, TWO_HOSTS, "mini_lb", 0)


def test_printed_lines_start_every_arm_and_measure_it():
    text = suite.launch_lines(arms.ARMS, ["sglang"], TWO_HOSTS)
    for arm in arms.ARMS:
        for worker in commands.of_workers(arm, TWO_HOSTS):
            assert f"{worker} &" in text.splitlines()
            assert shlex.split(str(worker))[2] == "python"
        line = next(line for line in text.splitlines() if f"--at {arm.key}=" in line)
        options = suite._parser().parse_args(shlex.split(line)[3:])
        running = by_hand(options.at[0], "sglang")
        assert running.arm is arm and running.urls == {"sglang": "http://10.0.0.1:30010"}
        assert running.workers == ("http://10.0.0.1:30000", "http://10.0.0.2:30001")


@pytest.mark.parametrize("text", ["pd", "pd=", "pd=http://a", "nobody=http://a,http://b"])
def test_servers_started_by_hand_must_be_named_in_full(text):
    with pytest.raises(ValueError, match="isn't ARM=ROUTER_URL"):
        by_hand(text, "sglang")


def test_the_command_prints_without_starting_anything(monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["suite", "--print-commands", "--arms", "pd", "--backend", "nixl", "--model", "my/model"]
    )
    assert suite.main() == 0
    shown = capsys.readouterr().out
    assert "--disaggregation-transfer-backend nixl" in shown and "--model-path my/model" in shown and "unified" not in shown
