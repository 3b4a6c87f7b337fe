"""Frames for the control port, as a stranger, a broken peer or a hostile one might send them. Seeded."""

from __future__ import annotations

import random
from typing import Dict, List, Sequence

import msgspec

from sglang.srt.disaggregation.handoff import messages as m

VOCABULARY = 1000
NUMBERS = (0, 1, 2, 3, 7, 100, VOCABULARY - 1, VOCABULARY, m.MAX_COUNT, m.MAX_COUNT + 1, (1 << 63) - 1, 1 << 63, -1)
JUNK = (None, True, 1.5, "x", "", b"", bytes(16), [], [[]], {}, {"a": 1})
# Loopback only: what reaches a worker with a live nonce makes it connect. Nobody listens at port 1.
ENDPOINTS = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:99999", "ipc:///tmp/x", "inproc://x", "tcp://", "x" * 300)


class Frames:
    """Makes frames from a seed.

    Args:
        kinds: message types to draw from.
        fingerprint: what a sound Open carries.
    """

    def __init__(self, seed: int, kinds: Sequence[type], fingerprint: bytes) -> None:
        self.rng = random.Random(seed)
        self._kinds, self._fingerprint = kinds, fingerprint

    def sound(self, room: int, nonce: bytes, **changes) -> m.Message:
        """A message that fits the schema, with values near what a session is in."""
        draw, kind = self.rng, self.rng.choice(self._kinds)
        small = lambda: draw.choice((0, 1, 1, 1, 2, 2, 3, draw.randrange(40), draw.randrange(400), m.MAX_COUNT))
        values: Dict[str, object] = {
            "room": room, "nonce": nonce, "term": draw.choice((0, 1, 1, 1, 1, 2, small())),
            "endpoint": ENDPOINTS[0], "prompt_len": draw.choice((5, 5, 5, small())),
            "cached_tokens": draw.choice((0, 2, small())), "budget": draw.choice((20, 100, 1000, small())),
            "fingerprint": draw.choice((self._fingerprint,) * 9 + (bytes(8),)),
            "prefill_us": small(), "start": 1 + draw.choice((0, draw.randrange(30), small() % m.MAX_COUNT)),
            "ids": self.ids(), "stamp": draw.choice((0, draw.randrange(1 << 30), (1 << 63) - 1)), "received": small(),
            "at": small(), "length": 1 + small() % m.MAX_COUNT, "digest": draw.randbytes(8),
            "reason": draw.randrange(4), "boundary": 1 + small() % m.MAX_COUNT,
        }  # fmt: skip
        values |= changes
        fields = {name: values[name] for name in kind.__struct_fields__}
        if "reason" in fields:
            fields["reason"] = (m.EndReason if kind is m.Sealed else m.AbortReason)(fields["reason"])
        return kind(**fields)

    def ids(self) -> List[int]:
        """Token ids, now and then one outside the vocabulary."""
        draw = self.rng
        count = draw.choice((0, 1, 1, 1, 2, 5, 30, 400 if draw.random() < 0.02 else 3))
        ids = [draw.randrange(VOCABULARY) for _ in range(count)]
        if ids and draw.random() < 0.01:
            ids[-1] = draw.choice((VOCABULARY, m.MAX_COUNT))
        return ids

    def frame(self, room: int, nonce: bytes) -> List[bytes]:
        """The parts of one frame, damaged or not, that may name (room, nonce) or something close to it."""
        draw = self.rng
        how = draw.randrange(14)
        if how == 0:
            return [draw.randbytes(draw.randrange(120))]
        if how == 1:
            near = bytearray(nonce)
            near[draw.randrange(16)] ^= 1 << draw.randrange(8)
            return [m.encode(self.sound(room, bytes(near)))]
        if how == 2:
            return [m.encode(self.sound(room + draw.choice((1, -1, 1 << 40)), nonce))]
        if how == 3:
            return [m.encode(self.sound(draw.randrange(1 << 63), draw.randbytes(16)))]
        frame = bytearray(m.encode(self.sound(room, nonce)))
        if how == 4:
            frame[0] = draw.choice((0, 2, 3, 255))
        elif how <= 7:
            for _ in range(draw.randrange(1, 6)):
                frame[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
        elif how == 8:
            del frame[draw.randrange(len(frame)) :]
        elif how == 9:
            frame += draw.randbytes(draw.randrange(1, 40))
        elif how == 10:
            at = draw.randrange(len(frame))
            frame[at:at] = draw.randbytes(draw.randrange(1, 4))
        elif how == 11:
            body = msgspec.msgpack.decode(bytes(frame[1:]))
            body[draw.randrange(len(body))] = draw.choice(NUMBERS + JUNK + ENDPOINTS)
            try:
                frame[1:] = msgspec.msgpack.encode(body)
            except OverflowError:
                pass
        elif how == 12:
            parts = [bytes(frame) if draw.random() < 0.5 else b"" for _ in range(draw.randrange(2, 6))]
            return parts
        elif draw.random() < 0.01:
            return [bytes(frame[:2]) + draw.randbytes(m.MAX_FRAME_BYTES - 2)]
        return [bytes(frame)]
