"""Workers keep to a stated pace, prompts by their tokens and decode steps by their batch."""

import itertools
import time

import pytest

from rig import client, pace, stack

PACED = pace.Pace(token=0.01, extend=0.1, step=0.2, more=0.1)


@pytest.mark.parametrize("tokens, seconds", [(1, 0.1), (10, 0.1), (30, 0.3)])
def test_an_extend_takes_its_tokens_and_no_less_than_the_least(tokens, seconds):
    assert PACED.of_extend(tokens) == pytest.approx(seconds)


@pytest.mark.parametrize("batch, seconds", [(1, 0.2), (4, 0.5)])
def test_a_step_takes_longer_with_each_other_request(batch, seconds):
    assert PACED.of_step(batch) == pytest.approx(seconds)


def test_a_worker_reads_what_it_was_told(monkeypatch):
    assert pace.of_env() is None
    for name, value in PACED.env().items():
        monkeypatch.setenv(name, value)
    assert pace.of_env() == PACED


@pytest.mark.real
def test_a_server_keeps_to_it():
    with stack.unified(stack.Options(overlap=False, env=PACED.env())) as server:
        began = time.monotonic()
        alone = client.generate(server.url, list(range(10, 110)), max_new_tokens=4, ignore_eos=True)
        assert alone.ttft >= PACED.of_extend(100)
        assert time.monotonic() - began >= PACED.of_extend(100) + 3 * PACED.of_step(1)
        pair = [client.start_generate(server.url, [n, n + 1], max_new_tokens=8, ignore_eos=True) for n in (10, 20)]
        for stream in pair:
            ids_at = [event.at for event in stream.result().events]
            # the first steps may be of one alone, since prompts come one after the other
            assert max(b - a for a, b in itertools.pairwise(ids_at)) >= PACED.of_step(2)
