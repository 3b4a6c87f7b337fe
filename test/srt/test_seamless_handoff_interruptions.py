"""Real workers interrupted: engine paused, everything aborted, caches flushed, clients gone, rooms used twice, restarts.

Each happens to requests in every phase of the handoff at once, and ends with both workers empty and at work.
"""

import concurrent.futures
import random
import threading
import time

import pytest
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from handoff_requests import Asked, wait_until
from rig import client, idle, servers, stack
from rig.stack import Options

register_cpu_ci(est_time=180, suite="stage-b-test-cpu")
pytestmark = [pytest.mark.real, pytest.mark.alone]

BUDGET, D_RUNNING = 128, 4
SLACK_S = 15  # for a loaded machine, on top of a documented deadline
# sglang-router gives D's answer only after P's, so a D that dies before P has heard of it leaves the client to this
UPSTREAMS_TIMES = {"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "30"}


@pytest.fixture(scope="module")
def pair(oracle):
    with stack.pair(
        Options(env=hs.SHORT_TIMES | hs.BRIDGE_ALWAYS | UPSTREAMS_TIMES | {hs.BUDGET_VARIABLE: str(BUDGET)} | hs.PACE.env()),
        prefill_handoff=True,
        decode_handoff=True,
        decode_args=("--max-running-requests", str(D_RUNNING)),
        # a test wants to see the workers' own errors
        router_args=("--disable-circuit-breaker", "--disable-retries"),
    ) as running:
        running.oracle = oracle
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(pair):
    """Both workers end empty, and the next 20 requests are right."""
    yield
    hs.nothing_is_left(pair)


class Phases:
    """Requests in every phase of the handoff at the same moment."""

    def __init__(self, pair, seed: int):
        # P's budget is spent, nobody generates
        self.sealed = Asked(pair, seed, 70, BUDGET + 20, held=True, wait_for=BUDGET)
        # D generates, in all of its running slots
        self.committed = [Asked(pair, seed + 1 + n, 20 + n, 300) for n in range(D_RUNNING)]
        wait_until(lambda: idle.loads(pair.decode.url)["num_running_reqs"] == D_RUNNING)
        # D has the KV and replays, but has no running slot
        self.replaying = Asked(pair, seed + 10, 60, BUDGET + 20)
        self.replaying.kv_arrives()
        self.bridging = Asked(pair, seed + 11, 80, BUDGET + 20, held=True, wait_for=3)
        assert all(request.runs for request in self.all())

    def all(self) -> list[Asked]:
        return [self.bridging, self.replaying, self.sealed, *self.committed]


@pytest.mark.parametrize("mode", ["in_place", "retract"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_pause_and_continue(pair, side, mode):
    """A paused engine delays; nothing is lost. In place longer than every timeout."""
    server, phases = getattr(pair, side), Phases(pair, 7000)
    assert client.command(server.url, "pause_generation", mode=mode) == 200
    try:
        time.sleep(1)  # what was sent before has reached the clients
        before = {request: request.tokens for request in phases.all()}
        assert client.command(server.url, "flush_cache") == 400
        late = Asked(pair, 7020, 30, 10)
        pair.hold.release()
        time.sleep(hs.SILENCE_S + 0.5 if mode == "in_place" else 0.3)
        went_on = {request for request, tokens in before.items() if request.tokens != tokens}
        assert late.tokens == 0 and not (went_on and side == "decode")
    finally:
        assert client.command(server.url, "continue_generation") == 200
    records = {request: request.is_right() for request in [*phases.all(), late]}
    # D goes on where a paused P has stopped: P's log is closed at once, or after its silence D takes over by itself
    assert side == "decode" or phases.bridging not in went_on or records[phases.bridging]["boundary"] == before[phases.bridging]


def test_retracted_request_is_not_aborted_for_its_first_answer(pair):
    """Upstream aborts a rid two seconds after the end of a streamed answer. P's ends with the first token, and D may ask
    again under that rid before."""
    request = Asked(pair, 7090, 40, 300, wait_for=20)
    wait_until(lambda: idle.loads(pair.decode.url)["num_running_reqs"] == 1)
    pair.hold.request(request.rid)
    assert client.command(pair.decode.url, "pause_generation", mode="retract") == 200
    time.sleep(0.3)
    assert client.command(pair.decode.url, "continue_generation") == 200
    wait_until(lambda: any(e["what"] == "held" and e["rid"] == request.rid for e in pair.hold.events()))
    if time.monotonic() > request.stream.answer.sent_at + 2:
        pytest.skip("this machine is too slow: the late abort has been")
    time.sleep(2.5)
    request.kv_arrives()
    request.is_right()
    assert request.stream.answer.meta_info["num_retractions"] == 1


def test_retract_while_replays_are_in_flight(pair):
    """A replay round's requests are not running ones: a retracting pause leaves them where they are."""
    prompts = [hs.prompt(7100 + n, 10 + 7 * n) for n in range(40)]
    sampling = dict(max_new_tokens=24, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    pair.set_link(20)
    draw, answers = random.Random(5), []
    asking = threading.Thread(
        target=lambda: answers.extend(client.generate_all(pair.url, prompts, at_once=8, **sampling)), daemon=True
    )
    asking.start()
    for _ in range(25):
        asking.join(draw.uniform(0.02, 0.2))
        assert client.command(pair.decode.url, "pause_generation", mode="retract") == 200
        # D asks again for a retracted request's KV in its old room: P must have left that first
        time.sleep(0.3)
        assert client.command(pair.decode.url, "continue_generation") == 200
    asking.join(120)
    for answer, right in zip(answers, expected, strict=True):
        hs.same(answer, right)


@pytest.mark.parametrize("how", ["abort_request", "pause"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_abort_of_everything(pair, side, how):
    """On D every client gets its end. On P those whose KV is on its way, of which upstream tells D nothing; D goes on with
    the others."""
    server, phases = getattr(pair, side), Phases(pair, 7200)
    if how == "abort_request":
        assert client.command(server.url, "abort_request", abort_all=True) == 200
    else:
        assert client.command(server.url, "pause_generation", mode="abort") == 200
        assert client.command(server.url, "continue_generation") == 200
    aborted_at = time.monotonic()
    if side == "prefill":  # which takes it up when it can
        wait_until(lambda: not idle.loads(pair.prefill.url)["disaggregation"]["prefill_inflight_queue_reqs"])
    pair.hold.release()  # a transfer that is held can't be told that it is over
    in_flight, others = [phases.bridging, phases.sealed], [phases.replaying, *phases.committed]
    assert [request.ended_early() for request in in_flight] == [True, True]
    assert time.monotonic() - aborted_at < hs.SILENCE_S + SLACK_S
    assert [request.ended_early() for request in others] == [side == "decode"] * len(others)


def test_flush_is_refused_while_a_request_lives(pair):
    """In every phase on both workers; P, which needs no request of a D that generates, may flush then."""
    phases = Phases(pair, 7300)
    assert [client.command(server.url, "flush_cache") for server in (pair.prefill, pair.decode)] == [400, 400]
    pair.hold.release()
    for request in phases.all():
        request.is_right()
    committed = Asked(pair, 7320, 30, BUDGET + 300, wait_for=BUDGET + 10)
    # D stands still, so that it still has the request when P is idle, however long that takes
    assert client.command(pair.decode.url, "pause_generation", mode="in_place") == 200
    try:
        idle.wait_idle(pair.prefill.url)
        assert client.command(pair.decode.url, "flush_cache") == 400 and committed.runs
    finally:
        assert client.command(pair.decode.url, "continue_generation") == 200
    committed.is_right()


def test_new_weights_wait_for_what_is_handed_over(pair):
    """P's tokenizer takes a request for ended once its own answer is; upstream's lock would let the update through."""
    bridging = Asked(pair, 7340, 80, BUDGET + 20, held=True, wait_for=3)
    updated = []
    update = threading.Thread(
        target=lambda: updated.append(client.command(pair.prefill.url, "update_weights_from_disk", model_path=str(servers.TINY)))
    )
    update.start()
    bridging.stream.wait_for_tokens(BUDGET, timeout=60)
    assert update.is_alive() and not updated
    bridging.kv_arrives()
    update.join(60)
    assert updated == [200]
    bridging.is_right()


def test_prefill_that_is_told_to_end_waits_for_what_is_handed_over(pair):
    """SIGTERM, as a rolling update sends it: transfers under way end, as without the flag."""
    bridging = Asked(pair, 7350, 80, BUDGET + 20, held=True, wait_for=3)
    pair.prefill.process.ask_to_stop()
    wait_until(lambda: "Remaining number of requests 0" in pair.prefill.log.read_text())
    time.sleep(2)  # the scheduler has been told
    assert pair.prefill.process.alive()
    bridging.kv_arrives()
    bridging.is_right()
    wait_until(lambda: not pair.prefill.process.alive())
    pair.start_again("prefill")
    load = Load(pair, 7360)
    wait_until(lambda: load.right >= 8, timeout=120)
    load.stop()
    assert not load.wrong


def test_200_clients_go_away(pair):
    """At random moments, beside ordinary traffic that stays right."""
    draw = random.Random(8)
    visits = [(hs.prompt(7400 + n, draw.choice((5, 60, 250))), draw.uniform(0, 0.3)) for n in range(200)]
    prompts, sampling = [hs.prompt(7700 + n, 5 + 11 * n) for n in range(30)], dict(max_new_tokens=20, ignore_eos=True)
    expected = pair.oracle.all(prompts, at_once=8, **sampling)
    pair.set_link(40)

    def visit(ids, seconds):
        stream = client.start_generate(pair.url, ids, max_new_tokens=300, ignore_eos=True)
        time.sleep(seconds)
        stream.disconnect()

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        gone = [pool.submit(visit, *one) for one in visits]
        answers = client.generate_all(pair.url, prompts, at_once=2, **sampling)
        for one in gone:
            one.result()
    for answer, right in zip(answers, expected, strict=True):
        hs.same(answer, right)


def ask_in_room(pair, ids, room: int, **sampling) -> client.Stream:
    """Do a router's work with a room of our choice: ask both workers, read D's answer."""
    command = pair.prefill.process.command
    port = int(command[command.index("--disaggregation-bootstrap-port") + 1])
    body = {"input_ids": ids, "stream": True, "sampling_params": {"temperature": 0, "ignore_eos": True} | sampling}
    body |= {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
    client.Stream(pair.prefill.url, "/generate", body)
    return client.Stream(pair.decode.url, "/generate", body)


def test_room_used_again(pair):
    """After the first request has ended."""
    for n in range(3):
        ids = hs.prompt(7800 + n, 40)
        hs.same(ask_in_room(pair, ids, 77, max_new_tokens=30).result(), pair.oracle(ids, max_new_tokens=30, ignore_eos=True))


def test_the_largest_room(pair):
    """Routers draw 63 bits, but SGLang takes 64."""
    ids, sampling = hs.prompt(7820, 600), dict(max_new_tokens=30)
    pair.set_link(40)
    answer = ask_in_room(pair, ids, (1 << 64) - 1, **sampling).result()
    hs.same(answer, pair.oracle(ids, ignore_eos=True, **sampling))
    assert hs.handoff(answer)["outcome"] in ("committed", "finished")


def test_room_used_twice_at_once(pair):
    """Upstream's own bookkeeping is by room, so with the flag off too only one answer comes, to whichever of the prompts P
    took first, and the other request waits. Its end by an abort leaves nothing."""
    prompts, sampling = [hs.prompt(7850 + n, 40) for n in range(2)], dict(max_new_tokens=30)
    pair.hold.all()
    streams = [ask_in_room(pair, ids, 78, **sampling) for ids in prompts]
    time.sleep(1)
    pair.hold.release()
    wait_until(lambda: any(stream.answer.ended_at for stream in streams))
    time.sleep(1)
    assert client.command(pair.decode.url, "abort_request", abort_all=True) == 200
    expected = [pair.oracle(ids, ignore_eos=True, **sampling).ids for ids in prompts]
    answers = []
    for stream in streams:
        try:
            answers.append(stream.result(timeout=60))
        except client.RequestFailed:
            continue
    whole = [answer.ids for answer in answers if answer.finish_reason["type"] != "abort"]
    assert whole and all(ids in expected for ids in whole)


class Load:
    """Clients that ask until they are told to stop, and note what they got."""

    def __init__(self, pair, seed: int, clients: int = 4):
        self._pair = pair
        self._prompts = [hs.prompt(seed + n, 5 + 9 * n) for n in range(24)]
        self._sampling = dict(max_new_tokens=40, ignore_eos=True)
        self._expected = pair.oracle.all(self._prompts, at_once=8, **self._sampling)
        self._stop = threading.Event()
        self.right, self.failed, self.wrong = 0, 0, []
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, n: int) -> None:
        while not self._stop.is_set():
            n = (n + 5) % len(self._prompts)
            try:
                answer = client.generate(self._pair.url, self._prompts[n], **self._sampling)
            except (client.RequestFailed, OSError):
                self.failed += 1
                time.sleep(0.2)
                continue
            if answer.finish_reason["type"] == "abort":
                self.failed += 1
            elif answer.ids == self._expected[n].ids:
                self.right += 1
            else:
                self.wrong.append((n, answer.ids))

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=120)
            assert not thread.is_alive(), "a client waits forever"


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_restart_under_load(pair, side):
    """Errors or right answers while the worker is away, right ones afterwards, and the other one has kept nothing."""
    load = Load(pair, 7900)
    pair.set_link(40)
    wait_until(lambda: load.right >= 8)
    bridging = Asked(pair, 7950, 100, BUDGET + 50, held=True, wait_for=20)
    getattr(pair, side).process.kill()
    pair.hold.release()
    pair.start_again(side)
    assert bridging.ended_early()
    right = load.right
    wait_until(lambda: load.right >= right + 20, timeout=120)
    load.stop()
    assert not load.wrong
    assert load.failed
