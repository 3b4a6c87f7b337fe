"""What an operator sees of a real pair: /metrics, /server_info, logs, traces' stages, and the dashboard's queries."""

import contextlib
import gzip
import http.server
import importlib.util
import itertools
import json
import math
import pathlib
import re
import shutil
import threading
import time
import urllib.parse
import urllib.request

import psutil
import pytest
import zmq
from sglang.srt.disaggregation.handoff.decode_machine import TERMINAL_STATES as DECODE_ENDED
from sglang.srt.disaggregation.handoff.decode_machine import DecodeState
from sglang.srt.disaggregation.handoff.prefill_machine import TERMINAL_STATES as PREFILL_ENDED
from sglang.srt.disaggregation.handoff.prefill_machine import PrefillState
from sglang.srt.disaggregation.handoff.timing import Timing
from sglang.test.ci.ci_register import register_cpu_ci

import handoff_stack as hs
from rig import client, ports, stack
from rig.process import Process
from rig.stack import Options

register_cpu_ci(est_time=120, suite="stage-b-test-cpu")
pytestmark = pytest.mark.real

ROOT = pathlib.Path(__file__).resolve().parents[2]
MONITORING = ROOT / "examples" / "monitoring"
DASHBOARD = MONITORING / "grafana" / "dashboards" / "json" / "seamless-handoff-dashboard.json"
LINK_MBIT = 40  # 900 tokens of prompt take 0.4 s, 40 tokens of P
SAMPLING = dict(max_new_tokens=100, ignore_eos=True)
TAKES_LONGER_THAN_A_LEASE = int(Timing().lease / hs.PACE.step) + 100  # tokens
rids = (f"seen-{n}" for n in itertools.count())
ids = (hs.prompt(7000 + n, 900) for n in itertools.count())


class Spans:
    """An OTLP collector: what the workers' tracing has exported."""

    def __init__(self):
        self.all = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler):
                self._take(handler.rfile.read(int(handler.headers["Content-Length"])), handler.headers)
                handler.send_response(200)
                handler.end_headers()

            def log_message(handler, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _take(self, body: bytes, headers) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        if headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.all.extend(scope.spans)

    def of(self, rid: str) -> dict[str, list]:
        """{name: spans} of one request, on both workers."""
        spans = list(self.all)
        traces = {s.trace_id for s in spans for a in s.attributes if (a.key, a.value.string_value) == ("rid", rid)}
        found = {}
        for span in spans:
            if span.trace_id in traces:
                found.setdefault(span.name, []).append(span)
        return found


TRACING = importlib.util.find_spec("opentelemetry.sdk") is not None


@pytest.fixture(scope="module")
def spans():
    collector = Spans()
    yield collector
    collector.server.shutdown()


@pytest.fixture(scope="module")
def pair(spans):
    args = ["--enable-metrics", "--enable-request-time-stats-logging"]
    env = {}
    if TRACING:
        port = spans.server.server_address[1]
        args += ["--enable-trace", "--otlp-traces-endpoint", f"http://127.0.0.1:{port}/v1/traces"]
        env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS": "100"}
    options = Options(args=tuple(args), env=env | hs.PACE.env())
    with stack.pair(
        options,
        prefill_handoff=True,
        decode_handoff=True,
        decode_args=("--disaggregation-handoff-verify",),
        link_mbit=LINK_MBIT,
    ) as running:
        yield running
        hs.assert_empty(running)


def wait_until(condition, show=lambda: "") -> None:
    """Wait for up to a minute for `condition()`; `show` says what there is instead."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, show()
        time.sleep(0.2)


def committed(pair) -> client.Answer:
    """A request that D has taken over, after at least four relayed tokens."""
    answer = hs.generate_held(pair, next(ids), tokens_first=4, rid=next(rids), **SAMPLING)
    assert hs.handoff(answer)["outcome"] == "committed" and not hs.handoff(answer)["alone"]
    return answer


MESSAGES = ("Open", "Append", "Ack", "SealRequest", "Sealed", "Commit", "Resume", "Abort")
# {short name: metric, labels}
COUNTED = {
    "attempts": ("attempts_total", {}),
    "committed": ("requests_total", {"outcome": "committed"}),
    "not_greedy": ("requests_total", {"outcome": "ordinary", "reason": "not_greedy"}),
    "bridged": ("tokens_total", {"kind": "bridged"}),
    "relayed": ("tokens_total", {"kind": "relayed"}),
    "replayed": ("tokens_total", {"kind": "replayed"}),
    "rounds": ("replay_round_seconds_count", {}),
    "gaps": ("boundary_gap_seconds_count", {}),
    "gap_seconds": ("boundary_gap_seconds_sum", {}),
    "verified": ("verified_tokens_total", {}),
    "differ": ("verified_tokens_total", {"agree": "false"}),
    "live": ("num_reqs", {}),
}
for way, kind in itertools.product(("sent", "received"), MESSAGES):
    COUNTED[f"{way} {kind}"] = "messages_total", {"direction": way, "type": kind}


def counted(server) -> dict[str, float]:
    samples = hs.metrics(server)
    return {short: hs.total(samples, f"sglang:handoff_{name}", **labels) for short, (name, labels) in COUNTED.items()}


def stages(server) -> dict[str, float]:
    """{stage: requests} of the handoff's stages."""
    found = {}
    for line, value in hs.metrics(server).items():
        if line.startswith("sglang:per_stage_req_latency_seconds_count") and 'stage="handoff' in line:
            found[re.search(r'stage="handoff_(\w+)"', line)[1]] = value
    return found


def test_every_state_is_shown_before_a_request_was_in_it(pair):
    for server, states, ended in (
        (pair.prefill, PrefillState, PREFILL_ENDED),
        (pair.decode, DecodeState, DECODE_ENDED),
    ):
        lines = [line for line in hs.metrics(server) if line.startswith("sglang:handoff_num_reqs{")]
        shown = {re.search(r'state="(\w+)"', line)[1] for line in lines}
        assert shown == {state.value for state in states if state not in ended}


def test_metrics_agree_with_meta_info(pair):
    workers = (pair.prefill, pair.decode)
    before, stages_before = [counted(w) for w in workers], [stages(w) for w in workers]
    # one after the other: then each replay round is of one request
    records = [hs.handoff(committed(pair)) for _ in range(4)]
    for n in range(2):
        answer = client.generate(pair.url, hs.prompt(7900 + n, 60), max_new_tokens=8, temperature=0.8)
        assert hs.handoff(answer) == {"outcome": "ordinary", "reason": "not_greedy"}
    hs.assert_empty(pair)

    def since() -> list[dict[str, float]]:
        return [{short: now - then[short] for short, now in counted(w).items()} for w, then in zip(workers, before)]

    def lost() -> list[str]:
        """Messages that were sent and not received: none on loopback, once the last has come."""
        p, d = since()
        return [
            kind
            for kind in MESSAGES
            if (p[f"sent {kind}"], d[f"sent {kind}"]) != (d[f"received {kind}"], p[f"received {kind}"])
        ]

    wait_until(lambda: not lost(), lost)
    prefill, decode = since()
    for worker in (prefill, decode):
        assert worker["attempts"] == worker["committed"] == len(records)
        assert worker["not_greedy"] == 2
        assert worker["live"] == 0
    assert prefill["bridged"] == sum(r["tokens_bridged"] for r in records) == sum(r["boundary"] - 1 for r in records)
    assert decode["relayed"] == sum(r["boundary"] for r in records)
    assert decode["replayed"] == sum(r["replayed"] for r in records)
    assert decode["rounds"] == sum(r["replay_rounds"] for r in records)
    assert decode["verified"] == sum(r["verify"]["compared"] for r in records) > 0
    assert decode["differ"] == sum(r["verify"]["mismatches"] for r in records)
    assert decode["gaps"] == len(records)
    assert decode["gap_seconds"] * 1e3 == pytest.approx(sum(r["gap_ms"] for r in records), abs=0.01)
    # each may be sent again when its answer is late
    assert prefill["sent Open"] >= len(records) and prefill["received Commit"] >= len(records)
    p_stages, d_stages = (
        {stage: now - then.get(stage, 0) for stage, now in stages(w).items()} for w, then in zip(workers, stages_before)
    )
    assert p_stages == {"bridge": 4, "sealed": 4}
    assert d_stages == {"relay": 4, "seal": 4, "drain": 4, "boundary": 4, "replay": decode["rounds"]}


def test_milestones_come_in_their_order(pair):
    at = hs.handoff(committed(pair))["at_ms"]
    order = ["arrived", "opened", "first_relay", "kv_arrived", "sealing", "draining", "committed"]
    order += ["first_own_token", "completed"]
    assert [at[name] for name in order] == sorted(at[name] for name in order)
    assert at["first_relay"] <= at["last_relay"] <= at["first_own_token"]
    assert at.keys() == {*order, "last_relay"}


def test_both_workers_log_the_milestones(pair):
    answer = committed(pair)
    hs.assert_empty(pair)
    expected = {
        "prefill": ["arrived", "prefill_started", "prefill_ended", "opened", "sealed", "committed", "completed"],
        "decode": ["arrived", "opened", "first_relay", "sealing", "committed", "first_own_token", "completed"],
    }
    for role, milestones in expected.items():
        log = getattr(pair, role).log.read_text(errors="replace").splitlines()
        (line,) = [line for line in log if f"rid={answer.meta_info['id']}," in line and "handoff=committed" in line]
        found = [name for name in re.findall(r"(\w+)=-?[\d.]+ms", line) if name in milestones]
        assert found == milestones, line


@pytest.mark.skipif(not TRACING, reason="opentelemetry-sdk is not installed")
def test_stages_are_spans_of_the_request(pair, spans):
    answer = committed(pair)
    record, rid = hs.handoff(answer), answer.meta_info["id"]
    expected = {"bridge", "sealed", "relay", "seal", "drain", "boundary", "replay"}

    def stages() -> dict[str, list]:
        return {name.removeprefix("handoff_"): s for name, s in spans.of(rid).items() if name.startswith("handoff_")}

    wait_until(lambda: stages().keys() >= expected, lambda: sorted(spans.of(rid)))
    found = stages()
    assert found.keys() == expected
    assert len(found.pop("replay")) == record["replay_rounds"]
    assert {len(s) for s in found.values()} == {1}
    relay, boundary = found["relay"][0], found["boundary"][0]
    for span, start, end in ((relay, "first_relay", "committed"), (boundary, "last_relay", "first_own_token")):
        ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        assert ms == pytest.approx(record["at_ms"][end] - record["at_ms"][start], abs=0.01)
    attributes = {a.key: a.value for a in relay.attributes}
    assert attributes["outcome"].string_value == "committed"
    assert attributes["tokens"].int_value == record["boundary"]


def test_each_reason_is_warned_of_once(pair):
    for n in range(2):
        client.generate(pair.url, hs.prompt(7950 + n, 60), max_new_tokens=4, frequency_penalty=0.5)
    hs.assert_empty(pair)
    for worker in (pair.prefill, pair.decode):
        log = worker.log.read_text(errors="replace")
        assert log.count("Said once for this reason (penalties)") == 1


def test_server_info_names_the_peer(pair):
    offers = hs.sample(pair.decode, "sglang:handoff_attempts_total")
    committed(pair)
    hs.assert_empty(pair)
    prefill, decode = hs.server_info(pair.prefill), hs.server_info(pair.decode)
    for info, other in ((prefill, decode), (decode, prefill)):
        assert info["enabled"] and info["live"] == {}
        (peer,) = info["peers"]
        assert peer["agreed"] is True and peer["endpoint"] == other["endpoint"]
        assert peer["offers"] == peer["opened"] == offers + 1
    assert decode["outcomes"]["committed"] == prefill["outcomes"]["committed"]


@contextlib.contextmanager
def suspended(server: stack.Server):
    """All processes of a worker stopped."""
    main = psutil.Process(server.pid)
    processes = [main, *main.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_a_silent_decode_worker_is_seen_on_prefill(pair):
    """The lease is over: a deadline has fired, and the request is shown as paused until D is back."""

    def seen(name, **labels):
        return hs.sample(pair.prefill, f"sglang:handoff_{name}", **labels)

    fired = seen("deadlines_total", deadline="lease")
    stream = hs.bridging(pair, next(ids), rid=(rid := next(rids)), max_new_tokens=TAKES_LONGER_THAN_A_LEASE)
    assert seen("num_reqs") == 1
    with suspended(pair.decode):
        wait_until(lambda: seen("num_reqs", state="paused") == 1)
        # a machine under load may have seen others
        assert seen("deadlines_total", deadline="lease") > fired
        assert seen("num_reqs") == 1
    pair.hold.release(rid)
    assert len(stream.result().ids) == TAKES_LONGER_THAN_A_LEASE
    hs.assert_empty(pair)
    assert seen("num_reqs") == 0


# ------------------------------------------------------------------------------------------ the dashboard's queries
@pytest.fixture(scope="module")
def prometheus(pair, tmp_path_factory):
    """A real Prometheus that scrapes both workers every second, with the alerts loaded; its URL."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    targets = [worker.url.removeprefix("http://") for worker in (pair.prefill, pair.decode)]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "sglang",
                "static_configs": [{"targets": targets}],
                # Prometheus 2 asks for OpenMetrics, in which the Python client writes sglang_ for sglang:
                "metric_relabel_configs": [
                    {
                        "source_labels": ["__name__"],
                        "regex": "sglang_(.+)",
                        "target_label": "__name__",
                        "replacement": "sglang:$1",
                    }
                ],
            }
        ],
        "rule_files": [str(MONITORING / "seamless-handoff-alerts.yaml")],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    url = f"http://127.0.0.1:{ports.free_port()}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--log.level=warn",
    ]
    process = Process("prometheus", command, folder / "prometheus.log")
    try:
        process.wait_ready(url + "/-/ready", 60)
        yield url
    finally:
        process.stop()


def get(url: str, path: str, **arguments) -> dict:
    """The data of an answer of Prometheus' HTTP interface."""
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(arguments)}", timeout=30) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    return answer["data"]


def as_grafana_sends(query: str) -> str:
    """All instances and models; intervals that hold the whole test."""
    for variable, value in {"$model_name": ".*", "$instance": ".*", "$__rate_interval": "5m", "$__range": "5m"}.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


def test_every_query_of_the_dashboard_has_an_answer(pair, prometheus):
    wait_until(lambda: len(get(prometheus, "/api/v1/query", query="up == 1")["result"]) == 2)
    # A rate needs a sample of before: what has only been counted since is in no rate.
    time.sleep(3)
    for _ in range(2):
        committed(pair)
    client.generate(pair.url, hs.prompt(7990, 60), max_new_tokens=8, temperature=0.8)
    for worker in (pair.prefill, pair.decode):
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.linger = 1000  # ms
            stranger.connect(hs.server_info(worker)["endpoint"])
            stranger.send(b"no message")
    queries = {
        target["expr"]: panel["title"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    }

    def unanswered() -> dict[str, str]:
        return {
            title: query
            for query, title in queries.items()
            if not get(prometheus, "/api/v1/query", query=as_grafana_sends(query))["result"]
        }

    wait_until(lambda: not unanswered(), unanswered)
    for query, title in queries.items():
        values = [float(s["value"][1]) for s in get(prometheus, "/api/v1/query", query=as_grafana_sends(query))["result"]]
        # In float32 nothing differs, so there is no margin to show.
        if "mismatch_margin" not in query:
            assert any(math.isfinite(value) for value in values), (title, query, values)


def test_every_alert_can_be_evaluated(prometheus):
    def rules():
        return [rule for group in get(prometheus, "/api/v1/rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), rules)
    assert len(rules()) >= 8
    assert not [rule["name"] for rule in rules() if rule["state"] == "firing" and rule["labels"]["severity"] == "critical"]


def test_the_label_queries_find_the_workers(pair, prometheus):
    """What the dashboard offers to choose from."""
    metric = "sglang:handoff_attempts_total"
    wait_until(lambda: len(get(prometheus, "/api/v1/series", **{"match[]": metric})) == 2)
    series = get(prometheus, "/api/v1/series", **{"match[]": metric})
    assert {s["instance"] for s in series} == {w.url.removeprefix("http://") for w in (pair.prefill, pair.decode)}
    assert {s["engine_type"] for s in series} == {"prefill", "decode"}
