"""The rig's client against a scripted server."""

import http.server
import json
import threading

import pytest

from rig import client


def _event(ids, text, finish=None):
    return {"output_ids": ids, "text": text, "meta_info": {"finish_reason": finish}}


@pytest.fixture
def serve():
    """Returns a function that starts a server which answers with the given lines, then closes; it returns the URL."""
    running = []

    def start(lines, status=200, end=None):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.end_headers()
                for line in lines:
                    self.wfile.write(line.encode() + b"\n\n")
                    self.wfile.flush()
                if end is not None:
                    end.wait(10)

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def _stream(*events):
    return [f"data: {json.dumps(event)}" for event in events] + ["data: [DONE]"]


def test_events_carry_only_what_is_new(serve):
    url = serve(_stream(_event([7], "a"), _event([7, 8, 9], "abc", {"type": "length"})))
    answer = client.generate(url, [1], max_new_tokens=3)
    assert [(event.ids, event.text) for event in answer.events] == [([7], "a"), ([8, 9], "bc")]
    assert answer.ids == [7, 8, 9] and answer.text == "abc" and answer.finish_reason == {"type": "length"}
    assert answer.sent_at < answer.events[0].at <= answer.events[1].at <= answer.ended_at
    assert answer.ttft > 0 and len(answer.gaps) == 1


def test_whole_answer_is_one_event(serve):
    url = serve([json.dumps(_event([7, 8], "ab", {"type": "stop"}))])
    answer = client.generate(url, "hi", max_new_tokens=3, stream=False)
    assert [event.ids for event in answer.events] == [[7, 8]]


def test_chat_text_adds_up(serve):
    deltas = [{"role": "assistant", "content": ""}, {"content": "he"}, {"content": "y"}, {}]
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    answer = client.chat(serve(_stream(*chunks)), "hi", max_tokens=3)
    assert answer.text == "hey" and answer.finish_reason == "stop"


@pytest.mark.parametrize(
    "lines, status, message",
    [
        (["no workers"], 503, "503: no workers"),
        (_stream(_event([7], "a"))[:-1], 200, r"without \[DONE\]"),
        (_stream({"error": {"message": "aborted"}}), 200, "aborted"),
        (_stream(_event([7], "a"), _event([8], "b")), 200, "took back tokens"),
    ],
)
def test_failures_are_raised(serve, lines, status, message):
    with pytest.raises(client.RequestFailed, match=message):
        client.generate(serve(lines, status), [1], max_new_tokens=3)


def test_disconnect_mid_stream(serve):
    end = threading.Event()
    stream = client.start_generate(serve(_stream(_event([7], "a"))[:-1], end=end), [1], max_new_tokens=3)
    assert stream.wait_for_tokens(1).ids == [7]
    stream.disconnect()
    assert stream.result().ids == [7]
    end.set()


def test_waiting_for_tokens_that_never_come(serve):
    stream = client.start_generate(serve(_stream(_event([7], "a"))), [1], max_new_tokens=3)
    with pytest.raises(client.RequestFailed, match="after 1 tokens, 2"):
        stream.wait_for_tokens(2)
