"""The three arms: a unified server, PD, and PD with seamless handoff, all up at once; idle ones sleep."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from demo import facts
from demo.measure import UNIFIED, Run, Token, makers
from rig import client, idle, servers, stack

UNIFIED_ARM, PD_ARM, HANDOFF_ARM = "unified", "PD", "PD + handoff"
LINK_MBIT = 120  # 45 MB of KV take 3 s
# Room for one prompt and its answer, a few times: five workers' KV pools must fit into memory beside each other.
OPTIONS = servers.Options(
    model=servers.SMOLLM2,
    max_total_tokens=8192,
    max_running_requests=4,
    env={"RIG_IDLE_PAUSE_S": "0.004"},
)


@dataclasses.dataclass(frozen=True)
class Arm:
    """Servers that answer requests.

    Attributes:
        name: one of the three names above.
        url: where requests go.
        workers: base URLs of those that hold KV.
        pair: the workers behind the router; None for the unified server.
    """

    name: str
    url: str
    workers: tuple[str, ...]
    pair: stack.Pair | None = None

    def ask(self, prompt_name: str, prompt: str, max_new_tokens: int) -> Run:
        """Send a greedy streaming request, wait for its end, and return what happened.

        /generate, not /v1/chat/completions, because only the former streams token ids.

        Raises:
            client.RequestFailed: the server failed it.
            idle.NotIdle: a worker kept something of the request.
        """
        rid = f"{prompt_name.replace(' ', '-')}-{time.monotonic_ns()}"
        stream = client.start_generate(self.url, prompt, max_new_tokens=max_new_tokens, rid=rid)
        clock = facts.Clock(stream.answer.sent_at)
        answer = stream.result()
        # so the next prompt finds no prefix of this one, not even the chat template's
        for worker in self.workers:
            idle.wait_idle(worker)
        at = [clock.of_monotonic(event.at) for event in answer.events for _ in event.ids]
        handoff = answer.meta_info.get("handoff", {})
        return Run(
            arm=self.name,
            prompt=prompt_name,
            prompt_tokens=answer.meta_info["prompt_tokens"],
            tokens=tuple(map(Token, at, answer.ids, self._makers(len(answer.ids), handoff))),
            text=answer.text,
            ended_at=clock.of_monotonic(answer.ended_at),
            spans=self._spans(rid, clock, at, handoff),
            handoff=handoff,
        )

    def _makers(self, count: int, handoff: dict) -> list[str]:
        if self.pair is None:
            return [UNIFIED] * count
        # a request that ended on a relayed token has no boundary; without a handoff P makes the first token only
        boundary = handoff.get("boundary") if handoff.get("outcome") in ("committed", "finished") else 1
        return makers(count, boundary)

    def _spans(self, rid: str, clock: facts.Clock, at: list[float], handoff: dict) -> dict:
        if self.pair is None:
            return {facts.PROMPT: [(0.0, at[0])]}
        # the answer may end before P has noted the end of the transfer
        self.pair.hold.wait_for("done", rid=rid)
        return facts.of_transfer(self.pair.hold.events(), rid, clock) | facts.of_handoff(handoff, clock)


@contextlib.contextmanager
def running(namespaces: bool) -> Iterator[list[Arm]]:
    """Start the servers of all arms and yield them once they're healthy.

    Raises:
        rig.process.ProcessDied, rig.process.NotReady: a server didn't come up. The message shows the tail of its log.
    """
    link = {"namespaces": namespaces, "link_mbit": LINK_MBIT}
    with stack.side_by_side(OPTIONS, **link) as (plain, seamless):
        yield [
            Arm(UNIFIED_ARM, plain.unified.url, (plain.unified.url,)),
            Arm(PD_ARM, plain.url, (plain.prefill.url, plain.decode.url), plain),
            Arm(HANDOFF_ARM, seamless.url, (seamless.prefill.url, seamless.decode.url), seamless),
        ]
