"""What the handoff's tests on real processes share: a stack, its oracle, and a way to see both workers empty."""

import itertools
import json
import random
import re
import urllib.request

from rig import client, idle, stack
from rig.pace import Pace

# Budgets of P in tokens: with the small one the boundary is known when the transfer is held.
BUDGET = 512
SMALL_BUDGET = 8
BUDGET_VARIABLE = "SGLANG_DISAGGREGATION_HANDOFF_MAX_BRIDGE_TOKENS"

# A request that a test needs bridged is bridged, whatever that costs.
BRIDGE_ALWAYS = {"SGLANG_DISAGGREGATION_HANDOFF_ADMISSION": "false"}

# A token takes at least this, so that an answer isn't over on a fast machine while a test still looks at it.
PACE = Pace(token=0.0, extend=0.0, step=0.01, more=0.0)

# Deadlines for the tests of failures, in seconds: long beside a scheduler's step, short to wait for.
LEASE_S, SEAL_S, COMMIT_S, SILENCE_S = 1.0, 1.0, 3.0, 3.0
SHORT_TIMES = {
    f"SGLANG_DISAGGREGATION_HANDOFF_{name}": str(seconds)
    for name, seconds in {
        "RESEND_INTERVAL": 0.1,
        "LEASE": LEASE_S,
        "SEAL_TIMEOUT": SEAL_S,
        "COMMIT_TIMEOUT": COMMIT_S,
        "SILENCE_TIMEOUT": SILENCE_S,
    }.items()
}
# Upstream's own heartbeat finds a dead prefill worker.
SHORT_TIMES |= {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2"}


def prompt(seed: int, length: int) -> list[int]:
    """Token ids that look like nothing else's, so that no prefix cache helps by chance."""
    draw = random.Random(seed)
    return [draw.randrange(10, 500) for _ in range(length)]


class Oracle:
    """Answers of a unified server, each asked for once.

    Attributes:
        server: the unified server.
    """

    def __init__(self, server: stack.Server):
        self.server, self._url, self._known = server, server.url, {}

    def __call__(self, ids, **sampling) -> client.Answer:
        key = (tuple(ids), repr(sorted(sampling.items())))
        if key not in self._known:
            self._known[key] = client.generate(self._url, ids, **sampling)
        return self._known[key]

    def all(self, prompts, at_once: int, **sampling) -> list[client.Answer]:
        """Many answers at a time."""
        new = [p for p in prompts if (tuple(p), repr(sorted(sampling.items()))) not in self._known]
        for ids, answer in zip(new, client.generate_all(self._url, new, at_once=at_once, **sampling)):
            self._known[tuple(ids), repr(sorted(sampling.items()))] = answer
        return [self(p, **sampling) for p in prompts]


def ending_at(oracle: Oracle, index: int, seed: int) -> tuple[list[int], dict]:
    """A prompt, and sampling parameters with a stop token, for which the answer's entry `index` is the end token."""
    for n in itertools.count(seed):
        ids = prompt(n, 120)
        token = oracle(ids, max_new_tokens=index, ignore_eos=True).ids[index - 1]
        sampling = dict(max_new_tokens=index + 30, stop_token_ids=[token])
        if len(oracle(ids, **sampling).ids) == index:
            return ids, sampling


def same(answer: client.Answer, expected: client.Answer) -> None:
    """Assert that ids, text and the reason of the end agree, and that every index came once, in order."""
    assert answer.ids == expected.ids, (answer.finish_reason, answer.meta_info)
    assert answer.text == expected.text
    assert answer.finish_reason == expected.finish_reason
    assert answer.meta_info["completion_tokens"] == expected.meta_info["completion_tokens"]
    assert answer.meta_info["prompt_tokens"] == expected.meta_info["prompt_tokens"]
    seen = 0
    for event in answer.events:
        seen += len(event.ids)
        assert event.data["meta_info"]["completion_tokens"] == seen
    assert seen == len(expected.ids)


def handoff(answer: client.Answer) -> dict:
    """What meta_info says of the handoff."""
    return answer.meta_info["handoff"]


def wait_for_bridged(pair, stream: client.Stream, rid: str, tokens: int) -> None:
    """Wait until `tokens` tokens of a request have come whose transfer is held.

    Raises:
        AssertionError: they don't come; the message tells what the request's record says of it.
    """
    try:
        stream.wait_for_tokens(tokens, timeout=60)
    except TimeoutError as e:
        pair.hold.release(rid)
        raise AssertionError(f"{tokens} tokens don't come while its transfer is held: {handoff(stream.result())}") from e


def generate_held(pair, ids, *, tokens_first: int, rid: str, **sampling) -> client.Answer:
    """Send a request, hold its transfer until `tokens_first` tokens have come, then let it go and wait for the end."""
    pair.hold.request(rid)
    try:
        stream = client.start_generate(pair.url, ids, rid=rid, **sampling)
        wait_for_bridged(pair, stream, rid, tokens_first)
        assert not any(e["what"] == "done" and e["rid"] == rid for e in pair.hold.events())
    finally:
        pair.hold.release(rid)
    return stream.result()


def bridging(pair, ids, *, rid: str, tokens: int = 5, **sampling) -> client.Stream:
    """A request whose transfer is held and of which `tokens` tokens have come."""
    pair.hold.request(rid)
    stream = client.start_generate(pair.url, ids, rid=rid, ignore_eos=True, **sampling)
    wait_for_bridged(pair, stream, rid, tokens)
    return stream


def assert_empty(pair) -> None:
    """Both workers hold nothing: no request, no KV slot, no metadata slot, and the cache can be flushed."""
    for server in (pair.prefill, pair.decode):
        idle.wait_idle(server.url)


def nothing_is_left(pair) -> None:
    """End every fault of the rig; then both workers must end empty, and the next 20 requests be right and leave nothing."""
    if pair.control is not None:
        pair.control.set()
        pair.fail_polls(0)
    pair.set_link(None)
    pair.hold.release()
    assert_empty(pair)
    next_requests_are_right(pair)
    assert_empty(pair)


def ended_in_error(answer: client.Answer) -> bool:
    """Whether the client was told: upstream ends a stream whose transfer has failed, or not even begun, with
    an abort of status 500."""
    reason = answer.finish_reason
    failed = isinstance(reason, dict) and (reason["type"], reason.get("status_code")) == ("abort", 500)
    return failed and any(what in reason["message"] for what in ("transfer failed", "handshake failed"))


def next_requests_are_right(pair) -> None:
    """The next 20 requests, of many lengths, get the oracle's answers. `pair.oracle` must be there."""
    prompts = [prompt(4000 + n, 5 + 13 * n) for n in range(20)]
    sampling = dict(max_new_tokens=8, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    for answer, right in zip(client.generate_all(pair.url, prompts, at_once=8, **sampling), expected):
        same(answer, right)


def metrics(server) -> dict[str, float]:
    """{name with labels: value} of a worker's /metrics, those of its processes added up."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        text = response.read().decode()
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = found.get(name, 0) + float(value)
    return found


def total(samples: dict[str, float], name: str, **labels) -> float:
    """The sum of those of `metrics` that have this name and these labels; 0 without any."""
    wanted = {(key, str(value)) for key, value in labels.items()}
    return sum(
        value
        for line, value in samples.items()
        if line.partition("{")[0] == name and wanted <= set(re.findall(r'(\w+)="([^"]*)"', line))
    )


def sample(server, name: str, **labels) -> float:
    """`total` of what a worker shows now."""
    return total(metrics(server), name, **labels)


def server_info(server) -> dict | None:
    """What a worker's /server_info says of the handoff; None if nothing."""
    with urllib.request.urlopen(f"{server.url}/server_info", timeout=10) as response:
        (state,) = json.load(response)["internal_states"]
    return state.get("seamless_handoff")


def counters(server, name: str = "sglang:handoff_requests_total") -> dict[tuple[str, str], float]:
    """{(outcome, reason): count} of a worker's Prometheus counter."""
    found = {}
    for sample, value in metrics(server).items():
        if sample.startswith(name + "{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample))
            key = (labels["outcome"], labels["reason"])
            found[key] = found.get(key, 0) + value
    return found
