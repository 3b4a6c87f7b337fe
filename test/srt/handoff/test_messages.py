"""FENCED begins at the door: only a whole, bounded message of this version gets in."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.handoff import messages as m

COUNT_END, STAMP_END, ROOM_END = 1 << 31, 1 << 63, 1 << 64
counts = st.integers(0, COUNT_END - 1)
lengths = st.integers(1, COUNT_END - 1)
stamps = st.integers(0, STAMP_END - 1)
rooms = st.integers(0, ROOM_END - 1)  # upstream's are torch.uint64
nonces = st.binary(min_size=16, max_size=16)
digests = st.binary(min_size=8, max_size=8)
hosts = st.one_of(
    st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda ip: f"[{ip}]"), st.just("node-7.rack_2.example")
)
endpoints = st.builds("tcp://{}:{}".format, hosts, st.integers(1, 65535))
head = (rooms, nonces)
MESSAGES = {
    m.Open: st.builds(m.Open, *head, counts, endpoints, counts, counts, digests, counts, counts),
    m.Append: st.builds(m.Append, *head, counts, lengths, st.lists(counts, max_size=20), stamps),
    m.Ack: st.builds(m.Ack, *head, counts, stamps),
    m.SealRequest: st.builds(m.SealRequest, *head, counts, counts),
    m.Sealed: st.builds(m.Sealed, *head, counts, lengths, digests, st.sampled_from(m.EndReason)),
    m.Commit: st.builds(m.Commit, *head, lengths),
    m.Resume: st.builds(m.Resume, *head, counts, lengths),
    m.Abort: st.builds(m.Abort, *head, st.sampled_from(m.AbortReason)),
}
any_message = st.one_of(*MESSAGES.values())
NONCE = bytes(16)
APPEND = m.Append(1, NONCE, 1, 1, [5], 0)


def refusal(frame):
    with pytest.raises(m.FrameError) as error:
        m.decode(frame)
    return error.value.reason


def test_every_message_is_tried_here():
    assert set(MESSAGES) == set(m.Message.__args__)


@given(any_message)
def test_a_message_survives_the_way(message):
    assert m.decode(m.encode(message)) == message


@given(st.builds(m.Offer, st.just(m.VERSION), nonces, endpoints))
def test_an_offer_survives_the_way(offer):
    assert m.decode_offer(m.encode_offer(offer)) == offer


def test_tags_and_version_of_the_wire_stay_as_released():
    """A worker of this version must read another one's frames: renumbering breaks a rolling upgrade."""
    tags = {kind.__name__: kind.__struct_config__.tag for kind in MESSAGES}
    assert tags == {
        "Open": 1, "Append": 2, "Ack": 3, "SealRequest": 4, "Sealed": 5, "Commit": 6, "Resume": 7, "Abort": 8,
    }  # fmt: skip
    assert m.VERSION == 1
    assert m.encode(m.Ack(1, NONCE, 2, 3)) == b"\x01\x95\x03\x01\xc4\x10" + NONCE + b"\x02\x03"


# ------------------------------------------------------------------------------- bounds
def wire(kind, **changes):
    """A frame of ``kind`` whose fields were not checked when it was made."""
    sound = {
        "room": 1, "nonce": NONCE, "term": 1, "endpoint": "tcp://10.0.0.1:80", "prompt_len": 1,
        "cached_tokens": 0, "fingerprint": bytes(8), "budget": 1, "prefill_us": 0, "start": 1, "ids": [1],
        "stamp": 0, "received": 0, "at": 0, "length": 1, "digest": bytes(8), "reason": 0, "boundary": 1,
    }  # fmt: skip
    fields = kind.__struct_fields__
    assert set(changes) <= set(fields)
    values = [(sound | changes)[name] for name in fields]
    body = msgspec.msgpack.encode([kind.__struct_config__.tag, *values])
    return bytes((m.VERSION,)) + body


@pytest.mark.parametrize("kind", MESSAGES)
def test_the_sound_frame_of_these_tests_is_accepted(kind):
    assert type(m.decode(wire(kind))) is kind


BAD_VALUES = {
    "room": (-1, "1", None),
    "nonce": (bytes(15), bytes(17), "x" * 16),
    "term": (-1, COUNT_END, 1.5),
    "endpoint": (
        "", "tcp://", "x" * 257, "tcp://h:1" + "1" * 300, 7,
        "ipc:///run/x.sock", "inproc://abc", "tcp://h", "tcp://h:", "tcp://h:port", "tcp://h:1;tcp://g:2",
        "tcp://h:123456", "tcp://h:1\n", "udp://10.0.0.1:80", " tcp://10.0.0.1:80",
    ),
    "prompt_len": (-1, COUNT_END),
    "cached_tokens": (-1, COUNT_END),
    "fingerprint": (bytes(7), bytes(9)),
    "budget": (-1, COUNT_END),
    "prefill_us": (-1, COUNT_END),
    "start": (-1, 0, COUNT_END),
    "ids": ([-1], [COUNT_END], [1.5], ["1"], [None], [0] * (m.MAX_IDS_PER_APPEND + 1), 3, {}),
    "stamp": (-1, STAMP_END),
    "received": (-1, COUNT_END),
    "at": (-1, COUNT_END),
    "length": (-1, 0, COUNT_END),
    "digest": (bytes(7), bytes(9)),
    "reason": (-1, 99, "DONE"),
    "boundary": (-1, 0, COUNT_END),
}  # fmt: skip
BAD_FIELDS = [
    pytest.param(kind, name, value, id=f"{kind.__name__}.{name}={str(value)[:20]!r}")
    for kind in MESSAGES
    for name in kind.__struct_fields__
    for value in BAD_VALUES[name]
]


@pytest.mark.parametrize("kind, name, value", BAD_FIELDS)
def test_every_field_is_bounded(kind, name, value):
    assert refusal(wire(kind, **{name: value})) == "malformed"


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_with_a_field_missing_is_malformed(kind):
    body = msgspec.msgpack.decode(wire(kind)[1:])
    for end in range(len(body)):
        assert refusal(b"\x01" + msgspec.msgpack.encode(body[:end])) == "malformed"


def test_the_largest_append_fits_a_frame():
    largest = m.Append(STAMP_END - 1, NONCE, COUNT_END - 1, COUNT_END - 1, [COUNT_END - 1] * m.MAX_IDS_PER_APPEND, STAMP_END - 1)
    frame = m.encode(largest)
    assert len(frame) <= m.MAX_FRAME_BYTES
    assert m.decode(frame) == largest


# ------------------------------------------------------------------------------- frames
@pytest.mark.parametrize("frame", [b"", b"\x01", bytes(m.MAX_FRAME_BYTES + 1)])
def test_size(frame):
    assert refusal(frame) == "size"


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_named_as_such(version):
    assert refusal(bytes((version,)) + m.encode(APPEND)[1:]) == "version"


@pytest.mark.parametrize("version", [0, m.VERSION + 1])
def test_an_offer_of_another_version_is_named_as_such(version):
    with pytest.raises(m.FrameError) as error:
        m.decode_offer(m.encode_offer(m.Offer(version, NONCE, "tcp://10.0.0.1:80")))
    assert error.value.reason == "version"


@pytest.mark.parametrize("tag", [0, 9, -1, None, "Open"])
def test_an_unknown_kind_is_malformed(tag):
    assert refusal(b"\x01" + msgspec.msgpack.encode([tag, 1, NONCE])) == "malformed"


@pytest.mark.parametrize("body", [{}, [], "x", 1, None, {"type": 3}, [[3, 1, NONCE, 0, 0]]])
def test_what_is_no_message_is_malformed(body):
    assert refusal(b"\x01" + msgspec.msgpack.encode(body)) == "malformed"


@given(st.binary(max_size=200))
def test_noise_is_refused_or_a_message(noise):
    """Never another exception than FrameError, whatever comes in."""
    for read in (m.decode, m.decode_offer):
        try:
            read(noise)
        except m.FrameError as error:
            assert error.reason in ("size", "version", "malformed")


@given(any_message, st.data())
def test_a_truncated_frame_is_refused(message, data):
    frame = m.encode(message)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    assert refusal(cut) in ("size", "malformed")


@given(any_message, st.data())
def test_a_frame_with_more_behind_it_is_refused(message, data):
    assert refusal(m.encode(message) + data.draw(st.binary(min_size=1, max_size=9))) == "malformed"


@given(any_message, st.data())
def test_a_mutated_frame_is_refused_or_within_bounds(message, data):
    frame = bytearray(m.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = m.decode(bytes(frame))
    except m.FrameError as error:
        assert error.reason in ("size", "version", "malformed")
        return
    # Whatever was let in is as sound as one made here: it survives a strict second way.
    assert m.decode(m.encode(got)) == got


DEEP = b"\x91" * 60_000 + b"\x01"  # one list in another, 60,000 times


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_surplus_field_is_malformed_however_deep_it_nests(kind):
    """Not a RecursionError in the scheduler's thread: one frame of a stranger would end the worker."""
    frame = wire(kind)
    assert frame[1] >> 4 == 9  # a msgpack list of up to 15
    longer = frame[:1] + bytes((frame[1] + 1,)) + frame[2:]
    for surplus in (b"\x01", DEEP):
        assert refusal(longer + surplus) == "malformed"


@pytest.mark.parametrize("version, surplus, reason", [(2, b"\x01", "version"), (1, DEEP, "malformed")])
def test_a_surplus_field_of_an_offer(version, surplus, reason):
    """A later version may add one, and is then named by its number."""
    frame = m.encode_offer(m.Offer(version, NONCE, "tcp://10.0.0.1:80"))
    assert frame[0] == 0x84  # a msgpack map of 4
    with pytest.raises(m.FrameError) as error:
        m.decode_offer(b"\x85" + frame[1:] + b"\xa1x" + surplus)
    assert error.value.reason == reason


def test_an_offer_without_a_worth_is_worth_any_bridge():
    frame = m.encode_offer(m.Offer(1, NONCE, "tcp://10.0.0.1:80", worth=7))
    assert m.decode_offer(frame).worth == 7
    assert m.decode_offer(b"\x83" + frame[1 : frame.index(b"\xa5worth")]).worth == 0


@pytest.mark.parametrize("place", range(8))
def test_no_place_in_a_frame_takes_deep_nesting(place):
    """Whether the decoder goes into it or over it."""
    sound = msgspec.msgpack.decode(wire(m.Append)[1:])
    body = b"".join(msgspec.msgpack.encode(part) for part in sound[:place])
    assert refusal(b"\x01\x97" + body + DEEP) == "malformed"


def test_an_error_says_what_and_why():
    assert str(m.FrameError("size", "9 bytes")) == "size: 9 bytes"
    assert str(m.FrameError("role")) == "role"


def test_roles_share_the_messages_between_them():
    assert set(m.FROM_PREFILL) | set(m.FROM_DECODE) == set(m.Message.__args__)
    assert set(m.FROM_PREFILL) & set(m.FROM_DECODE) == {m.Abort}
