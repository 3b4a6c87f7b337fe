"""Requests under way, each together with the answer that it must get."""

import itertools
import time

import handoff_stack as hs
from rig import client

# None begins with another: an abort is for all that begin with its rid
_rids = (f"asked-{n}." for n in itertools.count())


class Asked:
    """A request of a pair, sent through its router.

    Attributes:
        ids, sampling: the prompt, and what is asked for.
        rid: its id, by which its transfer can be held.
        stream: reads the answer.
    """

    def __init__(self, pair, seed: int, length: int, tokens: int, *, held: bool = False, wait_for: int = 0):
        """Send a prompt of `length` tokens for `tokens` tokens, its transfer held or not, and await the first `wait_for`."""
        self._pair, self.ids, self.rid = pair, hs.prompt(seed, length), next(_rids)
        self.sampling = dict(max_new_tokens=tokens, ignore_eos=True)
        if held:
            pair.hold.request(self.rid)
        self.stream = client.start_generate(pair.url, self.ids, rid=self.rid, **self.sampling)
        if held and wait_for:
            hs.wait_for_bridged(pair, self.stream, self.rid, wait_for)
        elif wait_for:
            self.stream.wait_for_tokens(wait_for, timeout=60)

    @property
    def tokens(self) -> int:
        """How many have come."""
        return len(self.stream.answer.ids)

    @property
    def runs(self) -> bool:
        """Whether the answer has not ended."""
        return self.stream.answer.ended_at is None

    def kv_arrives(self) -> None:
        """Let the transfer go, and wait until D has been told of its end."""
        self._pair.hold.release(self.rid)
        self._pair.hold.wait_for("done", rid=self.rid)

    def is_right(self) -> dict:
        """Wait for the end, assert that the answer is the oracle's, and return what meta_info says of the handoff."""
        answer = self.stream.result(timeout=120)
        hs.same(answer, self._pair.oracle(self.ids, **self.sampling))
        return hs.handoff(answer)

    def ended_early(self) -> bool:
        """Wait for the end. False: the answer is right. True: the client was told of an error, after the first tokens of
        the right answer. Asserts that it's one of these."""
        expected = self._pair.oracle(self.ids, **self.sampling)
        try:
            answer = self.stream.result(timeout=60)
        except client.RequestFailed:
            answer, failed = self.stream.answer, True
        else:
            failed = answer.finish_reason is None or answer.finish_reason["type"] == "abort"
        if failed:
            assert answer.ids == expected.ids[: len(answer.ids)]
        else:
            hs.same(answer, expected)
        return failed


def wait_until(true, timeout: float = 60) -> None:
    """Wait until `true()` is."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"not true within {timeout} s"
        time.sleep(0.02)
