"""Upstream's own test kits against P + D + sglang-router: with the flag they say what they say without it.

The kits are imported from the installed release; which ones run, and why others don't, is in `handoff_upstream_kits.py`.
"""

import concurrent.futures
import contextlib
import functools
import importlib
import inspect
import json
import os
import pathlib
import sys
import time
import types
import unittest
import urllib.parse

import pytest
import requests.api
import sglang.test.kits
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff_requests import wait_until
from handoff_upstream_kits import KITS, LEFT_OUT, Case
from rig import client, idle, servers, stack
from rig.stack import Options

register_cpu_ci(est_time=150, suite="stage-b-test-cpu")

WAITING_S, RUNNING_S = 3, 6
STACKS = {
    # at the default of 65,536 slots the KV pools of four workers would take 12 GB
    "text": Options(model=servers.SMOLLM2, max_total_tokens=8192, args=("--enable-metrics",)),
    "tiny": Options(
        max_running_requests=4,
        args=("--enable-metrics",),
        env={
            "SGLANG_REQ_WAITING_TIMEOUT": str(WAITING_S),
            "SGLANG_REQ_RUNNING_TIMEOUT": str(RUNNING_S),
            hs.BUDGET_VARIABLE: "8192",
        },
    ),
}
# SmolLM2 has 46 KB of KV per token: the shortest prompt, of 5 tokens, takes 0.1 s; the tiny model has 2 KB.
LINK_MBIT = {"text": 16, "tiny": 4}
# The router would try a 503 again, then close the worker off.
ROUTER_ARGS = ("--disable-retries", "--disable-circuit-breaker")

# The kits' own knobs, for one core and four running requests.
SIZES = dict(
    sanity_max_new_tokens_short=32,
    sanity_max_new_tokens_long=48,
    abort_all_num_requests=4,  # all of them run: one that waits on D would meet the waiting timeout
    waiting_timeout_num_requests=5,
    waiting_timeout_max_new_tokens=3000,  # longer than the waiting timeout
    running_timeout_num_wave1=2,
    running_timeout_num_wave2=2,
    running_timeout_sleep=1,
    running_timeout_max_new_tokens=3000,
    pause_num_requests=4,
    pause_max_new_tokens=80,
    pause_duration=1.5,
    pause_ignore_eos=True,
    parity_prompts=[hs.prompt(n, length) for n, length in enumerate((1, 40, 300))],
    parity_logprob_delta=1e-4,
    parity_cached_prefix_min_prompt_tokens=1,
)


@functools.cache
def load(kit: str) -> types.ModuleType:
    """Import a kit without what upstream starts its servers with: that takes long, and needs packages that are not here."""
    launchers = {
        "sglang.test.server_fixtures.disaggregation_fixture": ["assert_process_healthy"],
        "sglang.test.test_utils": ["DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH", "popen_launch_server"],
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, members in launchers.items():
            module = types.ModuleType(name)
            vars(module).update(dict.fromkeys(members, lambda *_: None))
            patch.setitem(sys.modules, name, module)
        module = importlib.import_module(f"sglang.test.kits.{kit}")
    if hasattr(module, "time"):
        # where a kit sleeps until its requests have come as far as it needs, a slow machine takes longer
        module.time = types.SimpleNamespace(**vars(time) | {"sleep": lambda s: s() if callable(s) else time.sleep(s)})
    return module


class Arm:
    """A running pair and what its answers were.

    Attributes:
        answers: of the test that runs, each as (path, body of the request, what it said), as text.
    """

    def __init__(self, pair: stack.Pair, kind: str):
        self.pair, self.kind, self.answers = pair, kind, []
        self.unified: stack.Server | None = None

    def attributes(self) -> dict:
        """What a kit expects of the class it's mixed into."""
        process = {s.process.name: s.process._popen for s in (self.pair.prefill, self.pair.decode, self.pair.router)}
        return SIZES | dict(
            base_url=self.pair.url,
            lb_url=self.pair.url,
            prefill_url=self.pair.prefill.url,
            decode_url=self.pair.decode.url,
            model=str(STACKS[self.kind].model),
            process=process["decode"],
            process_prefill=process["prefill"],
            process_decode=process["decode"],
            process_lb=process["router"],
            pause_target_urls=[self.pair.prefill.url, self.pair.decode.url],
            # the rig has started them
            launch_all=lambda case: None,
            abort_all_sleep=self.wait_for_running,
            _collect_references=lambda case: [
                case._generate(base_url=self.unified.url, input_ids=ids) for ids in case.parity_prompts
            ],
        )

    def wait_for_running(self) -> None:
        """What a kit hopes for when it sleeps before it aborts all: one that has no token yet ends in an error."""
        wait_until(lambda: idle.loads(self.pair.decode.url)["num_running_reqs"] == SIZES["abort_all_num_requests"])

    def taken_over(self) -> float:
        """Requests so far of which the decode worker relayed tokens."""
        return sum(n for (outcome, _), n in hs.counters(self.pair.decode).items() if outcome in ("committed", "finished"))

    def case(self, kit: str, mixin: str, test: str = "runTest") -> unittest.TestCase:
        """A kit's test, aimed at this pair."""
        bases = (getattr(load(kit), mixin), unittest.TestCase)
        return type(mixin, bases, self.attributes() | {"runTest": lambda case: None})(test)

    def run(self, kit: str, mixin: str, test: str) -> str:
        """Run one test of a kit and return what it said: "" if it passed."""
        try:
            self.case(kit, mixin, test).debug()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def serves(self, url: str) -> bool:
        """Whether one of this pair's servers has this address."""
        return any(url.startswith(s.url + "/") for s in (self.pair.prefill, self.pair.decode, self.pair.router))


@contextlib.contextmanager
def recorded(*arms: Arm):
    """Note every answer of `requests`. /abort_request, which sglang-router doesn't serve, goes to both workers."""
    send = requests.api.request
    for arm in arms:
        arm.answers = []

    def request(method, url, **fields):
        arm, path = next((arm for arm in arms if arm.serves(url)), None), urllib.parse.urlsplit(url).path
        if path == "/abort_request":
            send(method, arm.pair.prefill.url + path, **fields)
            return send(method, arm.pair.decode.url + path, **fields)
        response = send(method, url, **fields)
        if arm is not None and not fields.get("stream"):
            arm.answers.append((path, json.dumps(fields.get("json")), said(response)))
        return response

    requests.api.request = request
    try:
        yield
    finally:
        requests.api.request = send


def said(response) -> str:
    """Status and content of an answer without what differs from request to request."""
    try:
        body = response.json()
    except ValueError:
        return f"{response.status_code} {response.text}"
    if isinstance(body, dict):
        meta = body.get("meta_info", {})
        body = {k: v for k, v in body.items() if k not in ("id", "created", "metadata", "meta_info")}
        body["meta_info"] = {k: meta[k] for k in ("finish_reason", "completion_tokens", "prompt_tokens") if k in meta}
        body.pop("sglext", None)
    return f"{response.status_code} {json.dumps(body, sort_keys=True)}"


@pytest.fixture(scope="module")
def arms(request, oracle):
    """The same stack with the flag off and on."""
    kind = request.param
    with contextlib.ExitStack() as cleanup:
        found = types.SimpleNamespace()
        for name, on in (("off", False), ("on", True)):
            pair = stack.pair(
                STACKS[kind],
                prefill_handoff=on,
                decode_handoff=on,
                router_args=ROUTER_ARGS,
                link_mbit=LINK_MBIT[kind],
            )
            setattr(found, name, Arm(cleanup.enter_context(pair), kind))
            # the first request of a worker is slow, and some kits abort or pause after a second
            client.generate(getattr(found, name).pair.url, hs.prompt(5001, 5), max_new_tokens=16)
        found.off.unified = found.on.unified = oracle.server
        yield found


def marks(case: Case):
    if case.slow_s is None or os.environ.get("UPSTREAM_KITS") == "all":
        return ()
    return pytest.mark.skip(f"takes {case.slow_s} s; UPSTREAM_KITS=all runs it")


RUNNING = [
    pytest.param(case.stack, kit, mixin, test, case, id=f"{case.stack}-{mixin}-{test}", marks=marks(case))
    for kit, mixins in KITS.items()
    for mixin, tests in mixins.items()
    for test, case in tests.items()
    if isinstance(case, Case)
]


@pytest.mark.real
@pytest.mark.parametrize("arms, kit, mixin, test, case", RUNNING, indirect=["arms"], scope="module")
def test_kit(arms, kit, mixin, test, case):
    taken_over = arms.on.taken_over()
    load(kit)  # the threads below would do it at once
    with recorded(arms.off, arms.on), concurrent.futures.ThreadPoolExecutor() as pool:
        running = {name: pool.submit(arm.run, kit, mixin, test) for name, arm in vars(arms).items()}
        words = {name: future.result() for name, future in running.items()}
    for arm in (arms.off, arms.on):
        hs.assert_empty(arm.pair)
    for word in words.values():
        assert word == "" if case.says is None else case.says in word, (words, arms.off.answers, arms.on.answers)
    assert (arms.on.taken_over() > taken_over) == case.handoff
    assert len(arms.on.answers) == len(arms.off.answers)
    if case.compared:
        assert sorted(arms.on.answers) == sorted(arms.off.answers)


@pytest.mark.real
@pytest.mark.parametrize("arms", ["tiny"], indirect=True, scope="module")
def test_running_timeout_is_not_for_the_bridge(arms):
    """A transfer that takes longer than the running timeout: P goes on, as the transfer does with the flag off."""
    pair, rid = arms.on.pair, "longer-than-the-timeout"
    pair.hold.request(rid)
    stream = client.start_generate(pair.url, hs.prompt(5000, 50), max_new_tokens=8000, rid=rid, ignore_eos=True)
    stream.wait_for_tokens(1)
    time.sleep(RUNNING_S + 1)
    stream.wait_for_tokens(len(stream.answer.ids) + 50, timeout=60)
    pair.hold.release(rid)
    pair.hold.wait_for("done", rid=rid)
    assert next(e for e in pair.hold.events() if e["what"] == "done" and e["rid"] == rid)["ok"]
    stream.disconnect()
    hs.assert_empty(pair)


@pytest.mark.real
@pytest.mark.parametrize("arms", ["text"], indirect=True, scope="module")
def test_stop_regex_on_completions(arms):
    """The half of the kit's test that sglang-router can serve."""
    asked = dict(max_tokens=60, stop_regex="and|or", finish_reason="stop", matched_stop="and|or")
    taken_over = arms.on.taken_over()
    with recorded(arms.off, arms.on), concurrent.futures.ThreadPoolExecutor() as pool:
        cases = [arm.case("matched_stop_kit", "MatchedStopMixin") for arm in (arms.off, arms.on)]
        for future in [pool.submit(case._run_completions_generation, **asked) for case in cases]:
            future.result()
    assert arms.on.taken_over() == taken_over + 1
    assert arms.on.answers == arms.off.answers


# ------------------------------------------------------------------------------------ the table
def test_every_kit_of_the_release_is_in_the_table():
    folder = pathlib.Path(sglang.test.kits.__path__[0])
    names = {p.stem for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}
    assert names == set(KITS) | set(LEFT_OUT)
    assert not set(KITS) & set(LEFT_OUT)
    assert all(LEFT_OUT.values())


@pytest.mark.parametrize("kit", KITS)
def test_every_test_of_a_kit_is_in_the_table(kit):
    module, found = load(kit), {}
    for name, cls in inspect.getmembers(module, inspect.isclass):
        tests = {test for test in dir(cls) if test.startswith("test_")}
        if cls.__module__ == module.__name__ and tests:
            found[name] = tests
    assert found == {mixin: set(tests) for mixin, tests in KITS[kit].items()}
