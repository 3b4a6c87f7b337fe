"""Runs a plan on a real pair: rounds of requests with their faults, and a look at both workers every few rounds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from rig import client, idle, stack
from rig.stack import Options, Pair

from .faults import Faults
from .judge import FAILED, Verdict, judge
from .memory import Memory
from .plan import Prompt, Request, Round

LEASE_S = 1.0
LONG_FREEZE_S = 1.6  # longer than the lease, shorter than what gives a request up
TIMES = {"RESEND_INTERVAL": 0.1, "LEASE": LEASE_S, "SEAL_TIMEOUT": 1.0, "COMMIT_TIMEOUT": 8.0, "SILENCE_TIMEOUT": 8.0}
BUDGET = 64  # tokens: smaller than the longest answers
ENV = {f"SGLANG_DISAGGREGATION_HANDOFF_{name}": str(value) for name, value in TIMES.items()}
ENV |= {"SGLANG_DISAGGREGATION_HANDOFF_MAX_BRIDGE_TOKENS": str(BUDGET)}
# sglang-router sends a request again when a kept connection was just closed. With the rid that the client chose the
# prefill worker then refuses it as a duplicate, and the decode worker waits for a transfer that never begins.
ENV |= {"SGLANG_TIMEOUT_KEEP_ALIVE": "3600"}
LOST_AFTER_S = 90  # without an end
ROUNDS_PER_LOOK = 8
ORACLE_AT_ONCE = 8
LEAKED = "leaked"


@contextlib.contextmanager
def soak_pair() -> Iterator[Pair]:
    """A pair with the handoff and short deadlines, and the unified server to compare with."""
    with stack.pair(Options(env=ENV), prefill_handoff=True, decode_handoff=True, with_unified=True) as pair:
        yield pair


class Soak:
    """A soak under way.

    Attributes:
        violations: texts by kind.
        errors: answers that ended early for a fault that permits it, by its name.
        outcomes: of ``meta_info["handoff"]``.
        done, cancelled, tokens: figures of what was answered.
    """

    def __init__(self, pair: Pair) -> None:
        self.pair, self.faults = pair, Faults(pair)
        self.violations: Dict[str, List[str]] = {}
        self.errors: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.request_faults: Counter[str] = Counter()
        self.done = self.cancelled = self.tokens = 0
        self.memory = {"prefill": Memory(pair.prefill.pid), "decode": Memory(pair.decode.pid)}
        self._right: Dict[int, client.Answer] = {}
        self._lock = threading.Lock()

    def run(self, rounds: List[Round], progress: Callable[["Soak"], None] = lambda soak: None) -> None:
        """Every round, with a look at the workers after some. Ends early when a worker is not empty: what follows
        would be blamed for it. ``ask_oracle`` comes first."""
        for number, round in enumerate(rounds, 1):
            self.round(round)
            if number % ROUNDS_PER_LOOK == 0 or number == len(rounds):
                if not self.look():
                    return
                progress(self)

    def ask_oracle(self, rounds: List[Round]) -> None:
        """Get the unified server's answers, before anything else runs."""
        prompts = list({id(r.prompt): r.prompt for round in rounds for r in round.requests}.values())
        for first in range(0, len(prompts), ORACLE_AT_ONCE):
            some = prompts[first : first + ORACLE_AT_ONCE]
            streams = [client.start_generate(self.pair.unified.url, p.ids, **p.sampling) for p in some]
            for prompt, stream in zip(some, streams):
                self._right[id(prompt)] = stream.result()

    def round(self, round: Round) -> None:
        threads = [threading.Thread(target=self._one, args=(request, round)) for request in round.requests]
        for thread in threads:
            thread.start()
        self.faults.of_round(round)
        for thread in threads:
            thread.join()

    def look(self) -> bool:
        """Both workers are empty when nothing is under way; take a sample of their memory."""
        empty = True
        for side, memory in self.memory.items():
            server = getattr(self.pair, side)
            try:
                server.process.check_alive()
                idle.wait_idle(server.url, timeout=40)
            except Exception as error:
                self._violated(LEAKED, f"{side}: {error}")
                empty = False
            else:
                memory.sample(self.done)
        return empty

    def right(self, prompt: Prompt) -> client.Answer:
        return self._right[id(prompt)]

    # ----------------------------------------------------------------------------- one request
    def _one(self, request: Request, round: Round) -> None:
        time.sleep(request.delay)
        try:
            answer, error = self._send(request)
            verdict = judge(request, round.fault, answer, self.right(request.prompt), error)
        except Exception as problem:  # the soak's own: it must not pass for a request that went well
            answer, verdict = None, Verdict(FAILED, f"{request.rid}: {problem!r}")
        with self._lock:
            self._count(request, answer, verdict)

    def _send(self, request: Request) -> Tuple[client.Answer, Optional[Exception]]:
        hold, rid = self.pair.hold, request.rid
        if request.fault in ("hold", "fail"):
            hold.request(rid)
        try:
            stream = client.start_generate(
                self.pair.url, request.prompt.ids, rid=rid, stream=request.stream, **request.prompt.sampling
            )
            if request.fault is not None:
                self._wait(request, stream)
            if request.fault == "cancel":
                stream.disconnect()
            elif request.fault == "fail":
                hold.fail(rid)
            elif request.fault == "abort":
                self.faults.abort(rid=rid)
        finally:
            hold.release(rid)
        try:
            return stream.result(LOST_AFTER_S), None
        except (client.RequestFailed, TimeoutError) as error:
            return stream.answer, error

    def _wait(self, request: Request, stream: client.Stream) -> None:
        """Until the moment of the fault: not longer than a second, since a small budget may be spent before."""
        if request.stream and request.after_tokens:
            try:
                stream.wait_for_tokens(request.after_tokens, timeout=1 + request.after)
            except (client.RequestFailed, TimeoutError):
                pass
        else:
            time.sleep(request.after)

    def _count(self, request: Request, answer: Optional[client.Answer], verdict: Verdict) -> None:
        self.done += 1
        if request.fault is not None:
            self.request_faults[request.fault] += 1
        if verdict.violation is not None:
            self._violated(verdict.violation, verdict.detail)
            return
        self.tokens += len(answer.ids)
        if verdict.error is not None:
            self.errors[verdict.error] += 1
        elif request.fault == "cancel" and answer.finish_reason is None:
            self.cancelled += 1
        else:
            self.outcomes[_outcome(answer)] += 1

    def _violated(self, kind: str, detail: str) -> None:
        self.violations.setdefault(kind, []).append(detail)
        print(f"{kind.upper()}: {detail}", flush=True)


def _outcome(answer: client.Answer) -> str:
    record = answer.meta_info.get("handoff", {})
    name = "/".join(filter(None, (record.get("outcome", "unknown"), record.get("reason"))))
    return name + (" alone" if record.get("alone") else "")
