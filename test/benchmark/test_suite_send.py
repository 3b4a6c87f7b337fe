"""The benchmark suite's sender, against a server made up here."""

import http.server
import json
import threading
import time

import pytest

from benchmark.handoff.suite import send
from benchmark.handoff.suite.block import CANCELLED, ERROR, WHOLE
from benchmark.handoff.suite.traffic import Closed, Planned, Poisson

NAMES = {"case": "case", "plan": "1", "arm": "PD", "router": "sglang"}
FAIL, SHORT = 98, 99  # first token of a prompt that's refused, or answered with a token less


class Server(http.server.ThreadingHTTPServer):
    """Streams as many tokens as asked for, and counts how many requests run at once."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.running, self.most, self.seen = threading.Lock(), 0, 0, []
        self.kept = 0

    def count(self, change):
        with self.lock:
            self.running += change
            self.most = max(self.most, self.running)


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        kinds = {"num_running_reqs": self.server.kept, "num_waiting_reqs": 0, "num_used_tokens": 0, "token_usage": 0}
        self._answer(json.dumps({"loads": [kinds | {"disaggregation": {}, "queues": {}}]}).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/flush_cache":
            return self._answer(b"{}")
        asked = json.loads(body)
        self.server.seen.append(asked)
        if asked["input_ids"][0] == FAIL:
            return self._answer(b"refused", 503)
        tokens = asked["sampling_params"]["max_new_tokens"] - (asked["input_ids"][0] == SHORT)
        self.server.count(1)
        try:
            self.send_response(200)
            self.end_headers()
            for n in range(1, tokens + 1):
                time.sleep(0.01)
                reason = {"type": "length"} if n == tokens else None
                event = {"output_ids": list(range(n)), "text": "x" * n, "meta_info": {"finish_reason": reason}}
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        except OSError:
            return  # the client went away
        finally:
            self.server.count(-1)
        # last, so that a client that goes on at once isn't counted beside this request
        self.wfile.write(b"data: [DONE]\n\n")

    def _answer(self, data, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(server, plan, arrivals, **more):
    url = f"http://127.0.0.1:{server.server_port}"
    return send.ask(url, [url], plan, arrivals, NAMES, **more)


def planned(first=10, tokens=5, **more):
    return Planned((first, 11), tokens, "1-9", "1-9", **more)


def test_a_closed_loop_has_so_many_under_way_and_no_more(server):
    found = ask(server, [planned() for _ in range(12)], Closed(3))
    assert server.most == 3 and [s.ended for s in found.samples] == [WHOLE] * 12
    assert [s.number for s in found.samples] == list(range(12))
    assert all(len(s.request.at) == 5 and s.request.at[0] > s.request.sent_at for s in found.samples)
    assert found.client_cores > 0 and found.kept == ()


def test_requests_are_greedy_and_of_exact_length(server):
    ask(server, [planned(tokens=7)], Closed(1))
    assert server.seen[0]["sampling_params"] == {"temperature": 0, "max_new_tokens": 7, "ignore_eos": True}
    assert server.seen[0]["input_ids"] == [10, 11] and server.seen[0]["stream"]


def test_an_open_loop_waits_for_nobody(server):
    plan = [planned(tokens=60, due=n * 0.02) for n in range(10)]
    found = ask(server, plan, Poisson(50.0))
    assert server.most == 10, "the first runs for 0.6 s, the last comes after 0.18 s"
    for sample, one in zip(found.samples, plan):
        assert sample.late >= 0 and sample.due_at - found.samples[0].due_at == pytest.approx(one.due)


def test_clients_go_away_when_the_plan_says(server):
    by_tokens, by_time = planned(tokens=200, cancel_after_tokens=3), planned(tokens=200, cancel_after_s=0.05)
    too_late = planned(tokens=2, cancel_after_s=0.5)
    found = ask(server, [by_tokens, by_time, too_late], Closed(3)).samples
    assert [s.ended for s in found] == [CANCELLED, CANCELLED, WHOLE]
    assert 3 <= len(found[0].request.ids) < 200 and len(found[1].request.ids) < 200


def test_a_refusal_and_a_short_answer_are_errors(server):
    found = ask(server, [planned(first=FAIL), planned(first=SHORT), planned()], Closed(1)).samples
    assert [s.ended for s in found] == [ERROR, ERROR, WHOLE]
    assert "503" in found[0].error and "4 of 5 tokens" in found[1].error


def test_a_refusal_is_an_error_though_the_client_would_have_gone_away(server):
    found = ask(server, [planned(first=FAIL, cancel_after_s=0.3)], Closed(1)).samples
    assert found[0].ended == ERROR and "503" in found[0].error


def test_nobody_there_is_an_error(server):
    url = "http://127.0.0.1:9"
    found = send.ask(url, [], [planned()], Closed(1), NAMES).samples
    assert found[0].ended == ERROR and "refused" in found[0].error.lower()


def test_what_a_worker_keeps_is_reported(server):
    server.kept = 1
    found = ask(server, [planned()], Closed(1), idle_timeout_s=0.2)
    assert len(found.kept) == 1 and "num_running_reqs" in found.kept[0]
