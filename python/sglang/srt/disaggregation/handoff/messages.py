"""What the two workers say to each other: bounded, versioned, tagged msgpack.

A frame is one version byte and one message. Every message names its request by
(room, nonce). The nonce is drawn by D for each offer, so a message of an earlier
use of the room, or of a restarted worker, meets no session and changes nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, List, Union

import msgspec

VERSION = 1
NONCE_BYTES = 16
MAX_FRAME_BYTES = 1 << 16
MAX_IDS_PER_APPEND = 4096
MAX_COUNT = (1 << 31) - 1

Room = Annotated[int, msgspec.Meta(ge=0)]  # below 2**64, as upstream's, by the format
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Digest = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
# An entry's index, or the length of a log that has entries; P's log always has t1.
Index = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
TokenIds = Annotated[
    List[Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]],
    msgspec.Meta(max_length=MAX_IDS_PER_APPEND),
]
Stamp = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
# No other transport: a peer must not make this worker touch its file system or itself.
Endpoint = Annotated[
    str, msgspec.Meta(max_length=256, pattern=r"^tcp://[0-9A-Za-z_.:%\[\]-]+:[0-9]{1,5}\Z")
]


class AbortReason(IntEnum):
    """Why a side gives up. DONE is no failure: the request has finished on D."""

    DONE = 0
    CLIENT = 1  # the client went away, or the request was aborted
    NOT_OPENED = 2  # the prompt KV was there before P's Open: the ordinary path is shorter
    CONFIG = 3  # P and D serve different models or settings
    CONFLICT = 4  # the two logs disagree
    TRANSFER = 5  # the prompt KV will not arrive
    TIMEOUT = 6  # the peer was silent for too long
    NO_SLOT = 7  # no KV slot on D for the replay, P has stopped for good, and D frees none


class EndReason(IntEnum):
    """Why a log was closed."""

    SEAL = 0  # D asked
    TOKEN = 1  # an end token, by P's rules; D's rules decide
    LENGTH = 2  # max_new_tokens
    BUDGET = 3  # P's bridge budget is spent


class Offer(msgspec.Struct, frozen=True):
    """D to P, as one more frame of the transfer metadata: D can do a handoff."""

    version: Count
    nonce: Nonce
    endpoint: Endpoint  # D's control socket, tcp://host:port
    worth: Count = 0  # tokens that a bridge must give to pay for its replay


class _Message(
    msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True
):
    room: Room
    nonce: Nonce


class Open(_Message, frozen=True, array_like=True, tag=1):
    """P accepts the offer."""

    term: Count
    endpoint: Endpoint  # P's control socket
    prompt_len: Count  # tokens
    cached_tokens: Count  # of the prompt, found in P's prefix cache
    fingerprint: Digest  # of what must agree for equal output
    budget: Count  # tokens that P may log at most
    prefill_us: Count  # from P's receipt of the request to t1, in microseconds


class Append(_Message, frozen=True, array_like=True, tag=2):
    """P: entries ``start``, ``start + 1``, ... Empty ``ids`` is a sign of life."""

    term: Count
    start: Index
    ids: TokenIds
    stamp: Stamp  # P's clock in microseconds, echoed by Ack


class Ack(_Message, frozen=True, array_like=True, tag=3):
    """D holds every entry up to ``received``; renews P's lease from ``stamp``."""

    received: Count
    stamp: Stamp


class SealRequest(_Message, frozen=True, array_like=True, tag=4):
    """D: close the log at length max(at, what you have), if it is still of this term: a late
    copy must not end what Resume has begun."""

    term: Count
    at: Count


class Sealed(_Message, frozen=True, array_like=True, tag=5):
    """P: the log is closed at ``length``; P generates nothing more in this term."""

    term: Count
    length: Index
    digest: Digest
    reason: EndReason


class Commit(_Message, frozen=True, array_like=True, tag=6):
    """D generates from entry ``boundary + 1``; P frees everything."""

    boundary: Index


class Resume(_Message, frozen=True, array_like=True, tag=7):
    """D can't take over yet: P generates again, in a new term, from ``start``."""

    term: Count
    start: Index


class Abort(_Message, frozen=True, array_like=True, tag=8):
    """The sender gives up on the handoff, or on the request."""

    reason: AbortReason


Message = Union[Open, Append, Ack, SealRequest, Sealed, Commit, Resume, Abort]
# What each role may receive; anything else is refused before it meets a machine.
FROM_PREFILL = (Open, Append, Sealed, Abort)
FROM_DECODE = (Ack, SealRequest, Commit, Resume, Abort)


class FrameError(ValueError):
    """A frame that is not a message; ``reason`` is the counter to raise."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)
_offer_decoder = msgspec.msgpack.Decoder(Offer)
# What msgspec raises for bad input; the second for what nests too deep, wherever it is met.
_DECODE_ERRORS = (msgspec.MsgspecError, RecursionError)


def encode(message: Message) -> bytes:
    """One frame."""
    return bytes((VERSION,)) + _encoder.encode(message)


def decode(frame: bytes) -> Message:
    """The message in ``frame``.

    Raises:
        FrameError: too large, another version, or not a message ("size", "version", "malformed").
    """
    if not 1 < len(frame) <= MAX_FRAME_BYTES:
        raise FrameError("size", f"{len(frame)} bytes")
    if frame[0] != VERSION:
        raise FrameError("version", f"{frame[0]}, this side speaks {VERSION}")
    try:
        return _decoder.decode(memoryview(frame)[1:])
    except _DECODE_ERRORS as e:
        raise FrameError("malformed", str(e)) from None


def encode_offer(offer: Offer) -> bytes:
    """The metadata frame that carries ``offer``."""
    return _encoder.encode(offer)


def decode_offer(frame: bytes) -> Offer:
    """The offer in a metadata frame.

    Raises:
        FrameError: not an offer, or one of another version ("malformed", "version").
    """
    try:
        offer = _offer_decoder.decode(frame)
    except _DECODE_ERRORS as e:
        raise FrameError("malformed", str(e)) from None
    if offer.version != VERSION:
        raise FrameError("version", f"{offer.version}, this side speaks {VERSION}")
    return offer
