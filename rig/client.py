"""A client of SGLang's HTTP interface that writes down when each token came.

    answer = client.generate(url, [5, 6, 7], max_new_tokens=8)          # waits for the whole answer
    stream = client.start_generate(url, "hello", max_new_tokens=100)    # runs beside the caller
    stream.wait_for_tokens(3); stream.disconnect()
"""

import concurrent.futures
import dataclasses
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence

TIMEOUT_S = 180


class RequestFailed(RuntimeError):
    """The server refused the request, broke off, or reported an error. The message shows what it said."""


@dataclasses.dataclass
class Event:
    """One event of a stream.

    Attributes:
        at: `time.monotonic()` seconds at which it was read.
        ids: token ids that weren't in the event before. Empty on /v1/chat/completions, which sends none.
        text: text that's new in this event.
        data: the event as the server sent it.
    """

    at: float
    ids: list[int]
    text: str
    data: dict


@dataclasses.dataclass
class Answer:
    """What one request gave.

    Attributes:
        sent_at: `time.monotonic()` seconds at which the request was sent.
        ended_at: the same for the end of the answer; None while it runs.
        ids: all output token ids; empty on /v1/chat/completions.
        text: all output text.
        finish_reason: as the server put it: a dict on /generate, a string on /v1/chat/completions; None if it never came.
        meta_info: the last `meta_info` of /generate, or the last whole event of /v1/chat/completions.
        events: the stream's events in order; one event when the answer wasn't streamed.
    """

    sent_at: float
    ended_at: float | None = None
    ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish_reason: dict | str | None = None
    meta_info: dict = dataclasses.field(default_factory=dict)
    events: list[Event] = dataclasses.field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds from sending the request to the first event with a token or text.

        Raises:
            ValueError: there was none.
        """
        arrivals = self._arrivals()
        if not arrivals:
            raise ValueError(f"no token came; the answer ended with {self.finish_reason}")
        return arrivals[0] - self.sent_at

    @property
    def gaps(self) -> list[float]:
        """Seconds between one event with a token or text and the next."""
        arrivals = self._arrivals()
        return [b - a for a, b in zip(arrivals, arrivals[1:])]

    def _arrivals(self) -> list[float]:
        return [event.at for event in self.events if event.ids or event.text]


class Stream:
    """A request under way, read by a thread of its own. `answer` grows while it runs."""

    def __init__(self, url: str, path: str, body: dict):
        self.answer = Answer(sent_at=time.monotonic())
        self._path, self._body = path, body
        self._error: Exception | None = None
        self._cut = False
        self._changed = threading.Condition()
        address = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=TIMEOUT_S)
        self._connection.connect()
        self._socket = self._connection.sock  # the connection forgets it when the server closes after the answer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self, timeout: float = TIMEOUT_S) -> Answer:
        """Wait for the end and return the answer.

        Raises:
            RequestFailed: the server failed the request or broke off. Not raised after `disconnect`.
            TimeoutError: it still runs after `timeout` seconds.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"no end of the answer after {timeout} s; {len(self.answer.events)} events so far")
        if self._error is not None and not self._cut:
            raise self._error
        return self.answer

    def wait_for_tokens(self, count: int, timeout: float = TIMEOUT_S) -> Answer:
        """Wait until `count` tokens have come (on /v1/chat/completions: events with text), and return what's there.

        Raises:
            RequestFailed: the answer ended or failed first.
            TimeoutError: they didn't come within `timeout` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._tokens() >= count or not self._runs(), timeout)
            if self._tokens() >= count:
                return self.answer
            if not self._runs():
                raise self._error or RequestFailed(f"the answer ended after {self._tokens()} tokens, {count} were awaited")
        raise TimeoutError(f"{self._tokens()} tokens after {timeout} s, {count} were awaited")

    def disconnect(self) -> None:
        """Cut the connection, as a client that goes away does."""
        self._cut = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was over already
        self._thread.join(TIMEOUT_S)

    def _tokens(self) -> int:
        answer = self.answer
        return len(answer.ids) if answer.ids else sum(bool(event.text) for event in answer.events)

    def _runs(self) -> bool:
        return self.answer.ended_at is None

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:  # whatever it is, it belongs to the one who waits for the answer
            self._error = error if isinstance(error, RequestFailed) else RequestFailed(f"{self._path}: {error!r}")
        finally:
            self._connection.close()
            with self._changed:
                self.answer.ended_at = time.monotonic()
                self._changed.notify_all()

    def _read(self) -> None:
        body = json.dumps(self._body).encode()
        self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise RequestFailed(f"{self._path} answered {response.status}: {response.read().decode(errors='replace')}")
        if not self._body.get("stream"):
            self._take(json.loads(response.read()))
            return
        while line := response.readline():
            if not line.startswith(b"data:"):
                continue
            payload = line[len(b"data:") :].strip()
            if payload == b"[DONE]":
                return
            self._take(json.loads(payload))
        raise RequestFailed(f"{self._path}: the stream ended without [DONE]")

    def _take(self, data: dict) -> None:
        if "error" in data:
            raise RequestFailed(f"{self._path}: {data['error']}")
        at = time.monotonic()
        with self._changed:
            take = self._take_generate if "meta_info" in data else self._take_chat
            self.answer.events.append(take(at, data))
            self._changed.notify_all()

    def _take_generate(self, at: float, data: dict) -> Event:
        # /generate repeats all ids and text in every event
        answer, ids, text = self.answer, data["output_ids"], data["text"]
        if ids[: len(answer.ids)] != answer.ids:
            raise RequestFailed(f"the stream took back tokens: first {answer.ids}, then {ids}")
        event = Event(at, ids[len(answer.ids) :], text[len(answer.text) :], data)
        answer.ids, answer.text = ids, text
        answer.meta_info = data["meta_info"]
        answer.finish_reason = data["meta_info"]["finish_reason"]
        return event

    def _take_chat(self, at: float, data: dict) -> Event:
        answer = self.answer
        answer.meta_info = data
        if not data["choices"]:
            return Event(at, [], "", data)
        choice = data["choices"][0]
        text = choice["delta" if "delta" in choice else "message"].get("content") or ""
        answer.text += text
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        return Event(at, [], text, data)


def start_generate(
    url: str,
    prompt: str | Sequence[int],
    *,
    max_new_tokens: int,
    stream: bool = True,
    rid: str | None = None,
    **sampling,
) -> Stream:
    """Send a greedy request to /generate and return at once.

    Args:
        url: base URL of a server or router.
        prompt: text or token ids.
        max_new_tokens: most output tokens.
        stream: ask for one event per token instead of one answer.
        rid: request id, chosen by the server if None.
        sampling: more sampling parameters, e.g. `ignore_eos=True`, `stop=["x"]`.
    """
    field = "text" if isinstance(prompt, str) else "input_ids"
    body = {field: prompt if isinstance(prompt, str) else list(prompt), "stream": stream}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": max_new_tokens} | sampling
    if rid is not None:
        body["rid"] = rid
    return Stream(url, "/generate", body)


def generate(url: str, prompt: str | Sequence[int], **options) -> Answer:
    """Send a greedy request to /generate and wait for the answer. Arguments as in `start_generate`."""
    return start_generate(url, prompt, **options).result()


def start_chat(
    url: str, prompt: str | list[dict], *, max_tokens: int, stream: bool = True, rid: str | None = None, **fields
) -> Stream:
    """Send a greedy request to /v1/chat/completions and return at once.

    Args:
        url: base URL of a server or router.
        prompt: the user's message, or a list of messages.
        max_tokens: most output tokens.
        stream: ask for events instead of one answer.
        rid: request id, chosen by the server if None. sglang-router drops it on this path.
        fields: more fields of the request, e.g. `stop=["x"]`.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    body = {"model": "default", "messages": messages, "temperature": 0, "max_tokens": max_tokens, "stream": stream} | fields
    if rid is not None:
        body["rid"] = rid
    return Stream(url, "/v1/chat/completions", body)


def chat(url: str, prompt: str | list[dict], **options) -> Answer:
    """Send a greedy request to /v1/chat/completions and wait for the answer. Arguments as in `start_chat`."""
    return start_chat(url, prompt, **options).result()


def generate_all(url: str, prompts: Iterable[str | Sequence[int]], *, at_once: int, **options) -> list[Answer]:
    """Send every prompt to /generate, at most `at_once` under way at a time, and return the answers in their order."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: generate(url, prompt, **options), prompts))


def command(url: str, path: str, **body) -> int:
    """POST a command such as "abort_request" or "pause_generation" to a worker and return the status."""
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
