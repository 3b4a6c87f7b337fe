"""D's table: every state against every event, then what each transition says and when."""

import copy

import pytest
from handoff_parts import D_EPOCH, FINGERPRINT, NONCE, P_ENDPOINT, ROOM, TIMING
from handoff_parts import decode_machine, everything, kinds

from sglang.srt.disaggregation.handoff.decode_machine import (
    LISTENING_STATES,
    REPLAY_STATES,
    TERMINAL_STATES,
    DecodeState,
)
from sglang.srt.disaggregation.handoff.log import HandoffLog
from sglang.srt.disaggregation.handoff.cost import StepCost
from sglang.srt.disaggregation.handoff.pace import LateSeals, SealAheadOfSteps, SealNow
from sglang.srt.disaggregation.handoff.messages import (
    Abort,
    AbortReason,
    Ack,
    Append,
    Commit,
    EndReason,
    Open,
    Resume,
    Sealed,
    SealRequest,
)

T0 = D_EPOCH
NOW = T0 + 0.5
STAMP = 42  # P's clock, only ever echoed
ALONE_AT = T0 + TIMING.lease + TIMING.margin
OFFERED, RELAYING, REPLAYING = DecodeState.OFFERED, DecodeState.RELAYING, DecodeState.REPLAYING
SEALING, DRAINING, OWNER = DecodeState.SEALING, DecodeState.DRAINING, DecodeState.OWNER
RELAY_ONLY, FINISHED, ABORTED = DecodeState.RELAY_ONLY, DecodeState.FINISHED, DecodeState.ABORTED


def opening(**changes):
    fields = {
        "room": ROOM, "nonce": NONCE, "term": 1, "endpoint": P_ENDPOINT, "prompt_len": 5, "cached_tokens": 2,
        "fingerprint": FINGERPRINT, "budget": 100, "prefill_us": 1234,
    }  # fmt: skip
    return Open(**(fields | changes))


def append(start, *ids, term=1, stamp=STAMP):
    return Append(ROOM, NONCE, term, start, list(ids), stamp)


def ids(first, last):
    """The truth of these tests: entry n is n + 10."""
    return [n + 10 for n in range(first, last + 1)]


def digest(length):
    log = HandoffLog()
    log.extend(1, ids(1, length))
    return log.digest()


def sealed_at(length, term=1, reason=EndReason.SEAL, digest_of=None):
    return Sealed(ROOM, NONCE, term, length, digest_of or digest(length), reason)


def abort_message(reason=AbortReason.TIMEOUT):
    return Abort(ROOM, NONCE, reason)


# -------------------------------------------------------------------- the states, each with t1 ... t6
def offered(**changes):
    return decode_machine(**changes)


def relaying(length=6, **changes):
    machine = decode_machine(**changes)
    machine.receive(T0, opening())
    machine.receive(T0, append(1, *ids(1, length)))
    machine.take_relay()
    return machine


def replaying(length=6, **changes):
    machine = relaying(length, **changes)
    machine.kv_arrived(T0)
    machine.room_ahead(T0, True)
    return machine


def in_round(length=6):
    machine = replaying(length)
    machine.round_started(machine.replay_range(99)[1])
    return machine


def sealing(length=6):
    machine = replaying(length)
    while machine.state is REPLAYING:
        machine.round_started(machine.replay_range(99)[1])
        machine.round_done(T0)
        machine.room_ahead(T0, True)
    return machine


def draining(length=6):
    """Sealed two entries further on, and those not here yet."""
    machine = sealing(length)
    machine.receive(T0, sealed_at(length + 2))
    return machine


def to_replay(length=6):
    """Sealed, every entry is here, the last one but one not replayed."""
    machine = draining(length)
    machine.receive(T0, append(length + 1, *ids(length + 1, length + 2)))
    machine.take_relay()
    return machine


def owner():
    machine = to_replay()
    machine.round_started(machine.replay_range(99)[1])
    machine.round_done(T0)
    return machine


def alone():
    machine = sealing()
    machine.receive(T0, append(7, *ids(7, 8)))
    machine.take_relay()
    machine.receive(T0, abort_message())
    return machine


def ended_early():
    """P has ended its log before the KV came."""
    machine = relaying()
    machine.receive(T0, sealed_at(6, reason=EndReason.BUDGET))
    return machine


def relay_only():
    machine = relaying()
    machine.kv_failed(T0)
    return machine


def resumed():
    machine = to_replay()
    machine.resume(T0)
    return machine


def finished():
    machine = relaying()
    machine.finished(T0)
    return machine


def aborted():
    machine = relaying()
    machine.abort(T0, AbortReason.CLIENT)
    return machine


STATES = {
    "offered": (offered, OFFERED), "relaying": (relaying, RELAYING), "ended early": (ended_early, RELAYING),
    "replaying": (replaying, REPLAYING), "in round": (in_round, REPLAYING), "sealing": (sealing, SEALING),
    "draining": (draining, DRAINING), "to replay": (to_replay, DRAINING), "alone": (alone, DRAINING),
    "owner": (owner, OWNER), "relay only": (relay_only, RELAY_ONLY), "resumed": (resumed, REPLAYING),
    "finished": (finished, FINISHED), "aborted": (aborted, ABORTED),
}  # fmt: skip


def term_of(m):
    return max(m.term, 1)


EVENTS = {
    "open": lambda m: m.receive(NOW, opening()),
    "open of another model": lambda m: m.receive(NOW, opening(fingerprint=b"other!!!")),
    "open of another prompt": lambda m: m.receive(NOW, opening(prompt_len=6)),
    "next entry": lambda m: m.receive(NOW, append(len(m.log) + 1, *ids(len(m.log) + 1, len(m.log) + 1), term=term_of(m))),
    "repeated entry": lambda m: m.receive(NOW, append(1, *ids(1, 1), term=term_of(m))),
    "entry after a gap": lambda m: m.receive(NOW, append(len(m.log) + 2, 99, term=term_of(m))),
    "entry that disagrees": lambda m: m.receive(NOW, append(1, 999, term=term_of(m))),
    "id outside the vocabulary": lambda m: m.receive(NOW, append(len(m.log) + 1, 1000, term=term_of(m))),
    "entry of an old term": lambda m: m.receive(NOW, append(len(m.log) + 1, 99, term=term_of(m) - 1)),
    "entry of a coming term": lambda m: m.receive(NOW, append(len(m.log) + 1, 99, term=term_of(m) + 1)),
    "sealed": lambda m: m.receive(NOW, sealed_at(max(1, len(m.log)), term=term_of(m))),
    "sealed below the log": lambda m: m.receive(NOW, sealed_at(1, term=term_of(m))),
    "sealed with another digest": lambda m: m.receive(NOW, sealed_at(max(1, len(m.log)), term=term_of(m), digest_of=b"otherlog")),
    "sealed of an old term": lambda m: m.receive(NOW, sealed_at(max(1, len(m.log)), term=term_of(m) - 1)),
    "peer aborts": lambda m: m.receive(NOW, abort_message()),
    "own kind of message": lambda m: m.receive(NOW, Ack(ROOM, NONCE, 1, 1)),
    "kv arrived": lambda m: m.kv_arrived(NOW),
    "kv failed": lambda m: m.kv_failed(NOW),
    "room": lambda m: m.room_ahead(NOW, True),
    "no room": lambda m: m.room_ahead(NOW, False),
    "round started": lambda m: m.round_started(m.replayed + 1),
    "round done": lambda m: m.round_done(NOW),
    "round failed": lambda m: m.round_failed(),
    "request finished": lambda m: m.finished(NOW),
    "abort": lambda m: m.abort(NOW, AbortReason.CLIENT),
    "resume": lambda m: m.resume(NOW),
    "tick": lambda m: m.tick(NOW),
    "tick past resend": lambda m: m.tick(T0 + TIMING.resend),
    "tick past seal": lambda m: m.tick(T0 + TIMING.seal),
    "tick past lease": lambda m: m.tick(T0 + TIMING.lease),
    "tick past lease and margin": lambda m: m.tick(ALONE_AT),
    "take relay": lambda m: m.take_relay(),
}  # fmt: skip
RAISES = "ValueError"
LIVE = ("relaying", "ended early", "replaying", "in round", "sealing", "draining", "to replay", "relay only", "resumed")
OPEN_LOG = ("relaying", "replaying", "in round", "sealing", "draining", "relay only", "resumed")
TOP = {name: state for name, (_, state) in STATES.items()}
# (state, event) -> next state, or RAISES. What is not here changes no field at all, bar `rejected`.
TABLE = {
    ("offered", "open"): RELAYING,
    **{("offered", e): ABORTED for e in ("open of another model", "open of another prompt", "kv arrived", "peer aborts")},
    # Appends. The log grows, or is acknowledged once more; what disagrees ends it.
    **{(s, "next entry"): TOP[s] for s in OPEN_LOG},
    **{(s, "repeated entry"): TOP[s] for s in LIVE},
    **{(s, "entry after a gap"): TOP[s] for s in LIVE},
    **{(s, "entry that disagrees"): ABORTED for s in LIVE},
    **{(s, "next entry"): ABORTED for s in ("ended early", "to replay")},  # past the end
    **{(s, "id outside the vocabulary"): TOP[s] for s in LIVE},  # heard, not obeyed
    # Seals.
    **{(s, e): TOP[s] for s in ("relaying", "relay only") for e in ("sealed", "sealed with another digest")},
    **{(s, "sealed"): DRAINING for s in ("replaying", "in round", "resumed")},
    **{(s, "sealed with another digest"): ABORTED for s in ("replaying", "in round", "resumed")},
    ("sealing", "sealed"): OWNER,
    ("sealing", "sealed with another digest"): ABORTED,
    **{(s, "sealed below the log"): ABORTED for s in OPEN_LOG if s != "draining"},
    **{(s, e): TOP[s] for s in ("ended early", "draining", "to replay") for e in ("sealed", "sealed below the log", "sealed with another digest")},
    # P's abort: D lives on what it has.
    **{(s, "peer aborts"): TOP[s] for s in ("relaying", "ended early", "relay only")},
    **{(s, "peer aborts"): DRAINING for s in ("replaying", "in round", "to replay", "resumed")},
    **{(s, "peer aborts"): OWNER for s in ("sealing", "draining")},
    # The KV, the room ahead, the rounds.
    ("relaying", "kv arrived"): REPLAYING,
    ("ended early", "kv arrived"): DRAINING,
    **{(s, "kv arrived"): RELAY_ONLY for s in ("relay only",)},
    **{(s, "kv failed"): RELAY_ONLY for s in ("relaying", "ended early")},
    **{(s, "room"): TOP[s] for s in ("offered", "relaying", "ended early", "relay only", "resumed")},
    **{(s, "no room"): TOP[s] for s in ("replaying", "in round", "sealing", "draining", "to replay", "alone")},
    **{(s, "round started"): TOP[s] for s in ("relaying", "ended early", "replaying", "to replay", "alone", "relay only", "resumed", "finished", "aborted")},
    ("in round", "round done"): REPLAYING,
    ("in round", "round failed"): REPLAYING,
    **{(s, "round started"): RAISES for s in ("offered", "in round", "sealing", "draining", "owner")},
    **{(s, e): RAISES for s in STATES if s != "in round" for e in ("round done", "round failed")},
    # The ends.
    **{(s, "request finished"): FINISHED for s in (*LIVE, "offered", "alone")},
    **{(s, "abort"): ABORTED for s in (*LIVE, "offered", "alone")},
    **{(s, "resume"): REPLAYING for s in ("sealing", "draining", "to replay")},
    # Time.
    **{("sealing", e): SEALING for e in ("tick past resend", "tick past seal", "tick past lease")},
    ("sealing", "tick past lease and margin"): OWNER,
    **{("resumed", e): REPLAYING for e in ("tick past resend", "tick past seal", "tick past lease")},
    **{(s, "tick past lease and margin"): DRAINING for s in ("replaying", "in round", "resumed")},
    **{("draining", e): OWNER for e in ("tick past seal", "tick past lease", "tick past lease and margin")},
}  # fmt: skip
LISTENS = (*LIVE, "offered")


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_the_table(state, event):
    make, top = STATES[state]
    machine = make()
    assert machine.state is top
    before = everything(machine)
    expected = TABLE.get((state, event))
    if expected is RAISES:
        with pytest.raises(ValueError):
            EVENTS[event](machine)
        assert everything(machine) == before
        return
    said = EVENTS[event](machine)
    if expected is None:
        assert everything(machine) == before
        if said and event != "kv failed":  # the last word again, to a P that has not heard it
            assert state in ("owner", "finished", "aborted") and "abort" not in event
            assert kinds(said) == ["Commit" if state == "owner" else "Abort"]
    else:
        assert machine.state is expected
        assert everything(machine) != before
        if isinstance(said, list) and event != "take relay":
            assert expected in (ABORTED, FINISHED) or "Abort" not in kinds(said)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_what_was_relayed_is_never_taken_back(state, event):
    machine = STATES[state][0]()
    relayed, entries = machine.relayed, machine.log.slice(1, len(machine.log) + 1)
    if TABLE.get((state, event)) is not RAISES:
        EVENTS[event](machine)
    assert machine.relayed >= relayed
    assert machine.log.slice(1, len(entries) + 1) == entries


def test_a_message_of_the_wrong_role_is_counted():
    """The channel refuses it by role before; a machine driven without one must not fall over it."""
    machine = relaying()
    assert machine.receive(NOW, SealRequest(ROOM, NONCE, 1, 0)) == []
    assert machine.rejected == {"unexpected": 1}


@pytest.mark.parametrize("state", STATES)
def test_the_groups_of_states(state):
    machine = STATES[state][0]()
    assert machine.done == (state in ("owner", "finished", "aborted")) == (machine.state in TERMINAL_STATES)
    assert (machine.state in LISTENING_STATES) == (state in (*LIVE, "alone"))
    assert (machine.state in REPLAY_STATES) == (state in ("replaying", "in round", "sealing", "draining", "to replay", "alone", "resumed"))


# ---------------------------------------------------------------------------- relay
def test_ONCE_every_entry_is_relayed_once_and_in_order():
    machine = relaying(1)
    seen = ids(1, 1)
    for message in (append(2, *ids(2, 3)), append(1, *ids(1, 4)), append(6, 16), append(4, *ids(4, 6)), append(2, *ids(2, 2))):
        machine.receive(NOW, message)
        seen += machine.take_relay()
    assert seen == ids(1, 6)
    assert machine.take_relay() == []


def test_ONCE_t1_is_relayed_before_a_commit_that_needs_no_replay():
    """KV, Sealed and t1 met in one intake: D was the owner before the client had seen t1."""
    machine = offered()
    machine.receive(T0, opening())
    machine.kv_arrived(T0)
    machine.room_ahead(T0, True)
    machine.receive(T0, sealed_at(1))
    assert kinds(machine.receive(T0, append(1, 11))) == ["Ack"]
    assert machine.state is DRAINING and machine.take_relay() == [11]
    for look in (lambda m: m.room_ahead(T0, True), lambda m: m.tick(T0)):
        again = copy.deepcopy(machine)
        assert look(again) == [Commit(ROOM, NONCE, 1)] and again.state is OWNER


def test_nothing_is_relayed_after_the_end():
    for make in (finished, aborted, owner):
        machine = make()
        assert machine.take_relay() == []


def test_an_append_of_before_the_open_is_refused_and_comes_again():
    machine = offered()
    assert machine.receive(NOW, append(1, 11)) == []
    assert machine.rejected == {"before_open": 1} and len(machine.log) == 0


def test_ack_is_cumulative_and_echoes_Ps_stamp():
    machine = relaying()
    assert machine.receive(NOW, append(7, 17, stamp=77)) == [Ack(ROOM, NONCE, 7, 77)]
    assert machine.receive(NOW, append(9, 19, stamp=78)) == [Ack(ROOM, NONCE, 7, 78)]
    assert machine.rejected == {"gap": 1}


def test_the_open_is_kept_for_the_record():
    machine = relaying()
    assert (machine.peer_endpoint, machine.cached_tokens, machine.prefill_us) == (P_ENDPOINT, 2, 1234)


def test_an_id_outside_the_vocabulary_is_not_acknowledged():
    machine = relaying()
    assert machine.receive(NOW, append(7, 17, 1000)) == []
    assert machine.rejected == {"vocabulary": 1} and len(machine.log) == 6


@pytest.mark.parametrize("state", LISTENS)
def test_FENCED_an_old_or_coming_term_is_counted_and_nothing_else(state):
    machine = STATES[state][0]()
    before = everything(machine)
    for term in (0, machine.term + 1, 99):
        assert machine.receive(NOW, append(1, 999, term=term)) == []
        assert machine.receive(NOW, sealed_at(9, term=term)) == []
    assert everything(machine) == before
    assert sum(machine.rejected.values()) == 6


# ---------------------------------------------------------------------------- replay
def test_replay_covers_all_but_the_last_entry():
    machine = to_replay()
    assert machine.replay_range(99) == (6, 7)


def test_replay_waits_for_the_relay():
    """KV is rebuilt from the request's output, so an entry has to be there first."""
    machine = replaying()
    machine.receive(NOW, append(7, *ids(7, 9)))
    assert machine.replay_range(99) == (1, 5)
    machine.take_relay()
    assert machine.replay_range(99) == (1, 8)


def test_no_round_over_nothing():
    """Much is logged, but the client has seen t1 alone, and that is no round yet."""
    machine = relaying(1)
    machine.receive(NOW, append(2, *ids(2, 6)))
    machine.kv_arrived(NOW)
    assert machine.lag == 5 and machine.replay_range(99) is None


def test_replay_goes_in_pieces_of_the_room_there_is():
    machine = replaying()
    assert machine.replay_range(2) == (1, 2)
    machine.round_started(2)
    machine.round_done(NOW)
    assert machine.replay_range(2) == (3, 4)
    assert machine.replay_range(1) == (3, 3)
    assert machine.replay_range(0) is None


def test_a_round_is_launched_behind_another_one_on_top_of_its_entries():
    machine = replaying(max_rounds_in_flight=2)
    machine.round_started(1)
    assert machine.replay_range(2) == (2, 3)
    machine.round_started(3)
    assert (machine.launched, machine.replayed) == (3, 0)
    assert machine.replay_range(99) is None, "two are enough"
    with pytest.raises(ValueError):
        machine.round_started(4)
    machine.round_done(NOW)
    assert (machine.launched, machine.replayed, machine.rounds) == (3, 1, 1) and machine.replay_in_flight
    machine.round_done(NOW)
    assert machine.replayed == 3 and not machine.replay_in_flight


def test_no_round_is_launched_behind_another_one_for_what_the_seal_may_leave():
    machine = replaying()
    machine.round_started(3)
    assert machine.replay_range(99) is None, "t4 and t5 are the seal lag"


def test_a_failed_round_takes_those_behind_it_along():
    machine = replaying(max_rounds_in_flight=2)
    machine.round_started(1)
    machine.round_started(3)
    machine.round_failed()
    assert (machine.launched, machine.replay_range(99)) == (0, (1, 5))


def test_the_commit_waits_for_the_last_round_of_several():
    machine = draining()
    machine.receive(NOW, append(7, *ids(7, 8)))
    machine.take_relay()
    machine.round_started(6)
    machine.round_started(7)
    assert machine.round_done(NOW) == [] and machine.state is DRAINING
    assert kinds(machine.round_done(NOW)) == ["Commit"]


def test_close_to_the_end_no_round_delays_the_seal():
    machine = sealing()
    machine.receive(NOW, append(7, *ids(7, 8)))
    machine.take_relay()
    assert machine.lag == 2 and machine.replay_range(99) is None


def test_replay_starts_with_the_prompt_KV_and_not_before():
    machine = relaying()
    assert machine.replay_range(99) is None
    machine.kv_arrived(NOW)
    assert machine.replay_range(99) == (1, 5)


def test_a_failed_round_can_be_tried_again():
    machine = in_round()
    machine.round_failed()
    assert (machine.replayed, machine.rounds, machine.replay_range(99)) == (0, 0, (1, 5))


@pytest.mark.parametrize("last", [0, 5, 6, 7])
def test_a_round_is_within_what_is_left(last):
    machine = replaying()
    if last == 5:
        machine.round_started(5)
        with pytest.raises(ValueError):
            machine.round_started(5)
    else:
        with pytest.raises(ValueError):
            machine.round_started(last)


# ---------------------------------------------------------------------------- seal, drain, commit
def test_the_seal_is_asked_for_when_one_more_round_would_catch_up():
    """What P has logged during the round lies unread when it ends, so D looks once more first."""
    machine = in_round()
    assert machine.round_done(NOW) == [] == machine.receive(NOW, append(7, 7))[1:]
    assert machine.room_ahead(NOW, True) == [SealRequest(ROOM, NONCE, 1, 0)]


@pytest.mark.parametrize("left, state", [(2, SEALING), (3, REPLAYING)])
def test_the_seal_is_not_asked_for_while_much_is_left(left, state):
    machine = in_round(9)
    machine.receive(NOW, append(10, *ids(10, 9 + left)))
    machine.round_done(NOW)
    machine.room_ahead(NOW, True)
    assert machine.lag == left and machine.state is state


def test_after_enough_rounds_the_seal_is_asked_for_in_any_case():
    """A live producer appends during every round: equal lengths are never reached by racing."""
    machine = replaying(9)
    for number in range(1, 4):
        machine.take_relay()
        machine.round_started(machine.replay_range(99)[1])
        length = len(machine.log)
        machine.receive(NOW, append(length + 1, *ids(length + 1, length + 5)))
        assert machine.round_done(NOW) == []
        assert kinds(machine.room_ahead(NOW, True)) == (["SealRequest"] if number == 3 else [])


def test_the_seal_is_not_asked_for_without_room():
    """Nobody would generate while the request waits for it."""
    machine = relaying()
    assert machine.kv_arrived(NOW) == []
    assert machine.room_ahead(NOW, False) == []
    machine.round_started(machine.replay_range(99)[1])
    assert machine.round_done(NOW) == [] and machine.state is REPLAYING
    assert machine.room_ahead(NOW, True) == [SealRequest(ROOM, NONCE, 1, 0)]


def test_the_seal_is_not_asked_for_before_the_room_was_looked_at():
    """With one entry nothing is left to replay, and the KV's arrival comes first."""
    machine = relaying(1)
    assert machine.kv_arrived(NOW) == [] and machine.state is REPLAYING


def test_the_seal_is_not_asked_for_during_a_round():
    machine = in_round()
    assert machine.room_ahead(NOW, True) == []


def test_the_seal_is_asked_for_during_a_round_where_there_is_always_one():
    """Two steps are in flight, t3 to t5 are not launched: D asks once they are."""
    pace = SealAheadOfSteps(0, StepCost(), LateSeals())
    machine = replaying(pace=pace, seal_lag=0, max_rounds_before_seal=99)
    for last in (1, 2, 3, 4):
        machine.round_started(last)
        if last > 1:
            assert machine.round_done(NOW) == [] == machine.room_ahead(NOW, True)
    machine.round_started(5)
    assert machine.round_done(NOW) == []
    assert kinds(machine.room_ahead(NOW, True)) == ["SealRequest"] and machine.replay_in_flight


def test_the_seal_is_asked_for_again_until_it_comes():
    machine = sealing()
    assert machine.tick(T0 + 0.9) == []
    assert machine.tick(T0 + 1) == [SealRequest(ROOM, NONCE, 1, 0)]
    assert machine.tick(T0 + 1.5) == []


def test_a_seal_that_overtakes_the_last_entries_waits_for_them():
    machine = draining()
    assert machine.boundary == 8 and machine.replay_range(99) is None
    assert kinds(machine.receive(NOW, append(7, *ids(7, 8)))) == ["Ack"]
    assert machine.take_relay() == ids(7, 8)


def test_commit_when_all_but_the_last_entry_is_replayed():
    machine = to_replay()
    machine.round_started(6)
    assert machine.round_done(NOW) == []
    machine.round_started(7)
    assert machine.round_done(NOW) == [Commit(ROOM, NONCE, 8)]
    assert machine.state is OWNER and machine.boundary == 8 and machine.end_reason is EndReason.SEAL


@pytest.mark.parametrize("reason", [EndReason.TOKEN, EndReason.LENGTH, EndReason.BUDGET])
def test_an_end_on_P_before_the_KV_is_handed_over_too(reason):
    """Only D's own stop rules end the request; by them the token was none."""
    machine = relaying(1)
    machine.receive(NOW, sealed_at(1, reason=reason))
    assert machine.kv_arrived(NOW) == [Commit(ROOM, NONCE, 1)]
    assert machine.end_reason is reason


def test_a_lost_commit_is_said_again_to_whoever_still_talks():
    machine = owner()
    for message in (append(9, 19), sealed_at(8), opening()):
        assert machine.receive(NOW, message) == [Commit(ROOM, NONCE, 8)]


@pytest.mark.parametrize("make, reason", [(finished, AbortReason.DONE), (aborted, AbortReason.CLIENT)])
def test_a_lost_end_is_said_again_to_whoever_still_talks(make, reason):
    assert make().receive(NOW, append(7, 17)) == [Abort(ROOM, NONCE, reason)]


@pytest.mark.parametrize("make", [owner, finished, aborted])
def test_an_abort_is_never_answered_by_one(make):
    assert make().receive(NOW, abort_message()) == []


def test_a_request_that_ends_on_a_relayed_token_needs_P_no_more():
    assert relaying().finished(NOW) == [Abort(ROOM, NONCE, AbortReason.DONE)]


def test_a_client_that_leaves_stops_P_at_once():
    assert relaying().abort(NOW, AbortReason.CLIENT) == [Abort(ROOM, NONCE, AbortReason.CLIENT)]


# ---------------------------------------------------------------------------- ordinary path
def test_CLOSED_BY_DEFAULT_the_KV_before_Ps_open_means_the_ordinary_path():
    machine = offered()
    machine.kv_arrived(NOW)
    assert machine.state is ABORTED and machine.abort_reason is AbortReason.NOT_OPENED
    assert machine.relayed == 0 and not machine.hopeless(NOW)
    # The late Open is told so, and P stops.
    assert machine.receive(NOW, opening()) == [Abort(ROOM, NONCE, AbortReason.NOT_OPENED)]


@pytest.mark.parametrize("changes", [{"fingerprint": b"other!!!"}, {"prompt_len": 4}])
def test_CLOSED_BY_DEFAULT_another_model_or_prompt_on_P_means_the_ordinary_path(changes):
    machine = offered()
    assert machine.receive(NOW, opening(**changes)) == [Abort(ROOM, NONCE, AbortReason.CONFIG)]
    assert not machine.hopeless(NOW)


# ---------------------------------------------------------------------------- failures
def test_P_dies_and_KV_has_arrived_then_D_takes_over_alone():
    machine = replaying()
    assert machine.tick(ALONE_AT - 0.01) == [] and machine.state is REPLAYING
    machine.tick(ALONE_AT)
    assert machine.alone and machine.boundary == 6
    machine.round_started(machine.replay_range(99)[1])
    assert machine.round_done(ALONE_AT) == [Commit(ROOM, NONCE, 6)]


def test_P_dies_and_KV_has_not_arrived_then_it_is_up_to_the_transfer():
    machine = relaying()
    machine.tick(ALONE_AT + 99)
    assert machine.state is RELAYING and not machine.hopeless(ALONE_AT + 99)
    machine.kv_failed(NOW)
    assert not machine.hopeless(T0 + TIMING.silence - 0.01)
    assert machine.hopeless(T0 + TIMING.silence)


def aborted_on_p(reason=AbortReason.CLIENT):
    """Before the prompt KV is here."""
    machine = relaying()
    assert machine.receive(T0 + 1, Abort(ROOM, NONCE, reason)) == []
    return machine


@pytest.mark.parametrize("reason", [AbortReason.CLIENT, AbortReason.TRANSFER])
def test_the_request_or_its_transfer_has_ended_on_P_then_it_is_awaited_no_longer_than_the_silence_timeout(reason):
    machine = aborted_on_p(reason)
    assert not machine.kv_lost(T0 + 1 + TIMING.silence - 0.01) and not machine.hopeless(T0 + 1 + TIMING.silence - 0.01)
    machine.receive(T0 + 2, Abort(ROOM, NONCE, AbortReason.CLIENT))  # repeated: no new deadline
    assert machine.kv_lost(T0 + 1 + TIMING.silence) and machine.hopeless(T0 + 1 + TIMING.silence)


def test_the_request_is_aborted_on_P_and_its_KV_was_on_its_way_then_D_takes_over_alone():
    machine = aborted_on_p()
    machine.kv_arrived(T0 + 2)
    assert machine.alone and not machine.kv_lost(T0 + 99) and not machine.hopeless(T0 + 99)


def test_P_gives_up_and_the_transfer_goes_on_then_it_is_waited_for():
    machine = relaying()
    machine.receive(T0 + 1, Abort(ROOM, NONCE, AbortReason.TIMEOUT))
    assert machine.alone and not machine.kv_lost(T0 + 99) and not machine.hopeless(T0 + 99)


@pytest.mark.parametrize("reason", [AbortReason.CLIENT, AbortReason.TRANSFER])
@pytest.mark.parametrize("before", [finished, aborted])
def test_the_request_has_ended_and_its_transfer_ends_on_P_then_it_is_awaited_no_longer(before, reason):
    machine = before()
    machine.receive(T0 + 1, Abort(ROOM, NONCE, reason))
    assert machine.kv_lost(T0 + 1 + TIMING.silence)
    assert machine.hopeless(T0 + 1 + TIMING.silence) is (before is aborted), "a finished request has all it needs"


@pytest.mark.parametrize("state", [relaying, finished])
def test_D_asks_after_a_silent_P_until_the_KV_is_here(state):
    """P's Abort may have been lost. No lease is renewed by the question."""
    machine, asked = state(), [Ack(ROOM, NONCE, 6, 0)]
    assert machine.tick(T0 + TIMING.silence - 0.01) == []
    assert machine.tick(T0 + TIMING.silence) == asked
    assert machine.tick(T0 + TIMING.silence + 0.01) == []
    assert machine.tick(T0 + 2 * TIMING.silence) == asked
    machine.receive(T0 + 2 * TIMING.silence, Abort(ROOM, NONCE, AbortReason.TIMEOUT))
    # given up by P alone, its transfer goes on, and may still fail
    assert machine.tick(T0 + 9 * TIMING.silence) == asked
    machine.kv_arrived(T0 + 9 * TIMING.silence)  # which of a finished request ends its stay here
    assert state is finished or machine.tick(T0 + 19 * TIMING.silence) == []


def test_P_dies_and_KV_arrives_later_then_D_takes_over_at_its_next_tick():
    machine = relaying()
    machine.kv_arrived(ALONE_AT)
    machine.tick(ALONE_AT)
    assert machine.alone


def test_ONE_GENERATOR_D_waits_out_the_lease_it_renewed_last():
    machine = sealing()
    machine.receive(T0 + 1, append(7, 17))
    machine.tick(ALONE_AT)
    assert machine.state is SEALING
    machine.tick(ALONE_AT + 1)
    assert machine.alone


def test_ONE_GENERATOR_past_the_seal_deadline_the_lease_is_renewed_no_more():
    """Else a P whose Sealed is always lost would generate on, and D wait, forever."""
    machine = sealing()
    assert kinds(machine.receive(T0 + 1.9, append(7, 17))) == ["Ack"]
    assert machine.receive(T0 + 2, append(8, 18)) == []
    assert len(machine.log) == 8
    machine.tick(T0 + 1.9 + 5)
    assert machine.alone and machine.boundary == 8


def test_what_P_logged_after_its_lease_is_no_part_of_the_answer():
    machine = alone()
    before = everything(machine)
    for message in (append(9, 19), sealed_at(9), abort_message(), opening()):
        assert machine.receive(NOW, message) == []
    assert everything(machine) == before


def test_P_aborts_before_the_KV_then_D_takes_over_alone_when_it_comes():
    machine = relaying(3)
    machine.receive(NOW, abort_message(AbortReason.TIMEOUT))
    assert machine.state is RELAYING and machine.alone and machine.boundary == 3
    machine.kv_arrived(NOW)
    assert machine.state is DRAINING and machine.replay_range(99) == (1, 2)


def test_P_aborts_before_any_entry_then_the_ordinary_path():
    machine = offered()
    machine.receive(NOW, opening())
    machine.receive(NOW, abort_message(AbortReason.CLIENT))
    assert machine.state is ABORTED and machine.abort_reason is AbortReason.CLIENT and machine.relayed == 0


def test_silent_P_with_no_entry_at_all_then_the_ordinary_path():
    machine = offered()
    machine.receive(T0, opening())
    machine.kv_arrived(T0)
    assert machine.tick(ALONE_AT - 0.01) == [] and machine.state is REPLAYING
    assert machine.tick(ALONE_AT) == [Abort(ROOM, NONCE, AbortReason.TIMEOUT)]
    assert machine.state is ABORTED and machine.relayed == 0


def test_entries_lost_for_good_after_the_seal_are_given_up():
    """P was sealed and has fallen silent: it generates no more, so D may go on from less."""
    machine = draining()
    machine.tick(T0 + TIMING.seal)
    assert machine.state is OWNER and machine.boundary == 6


def test_the_transfer_fails_then_P_goes_on_and_D_relays_to_the_end():
    machine = relay_only()
    assert kinds(machine.receive(NOW, append(7, 17))) == ["Ack"]
    assert machine.take_relay() == [17] and machine.replay_range(99) is None
    machine.receive(NOW, sealed_at(7, reason=EndReason.LENGTH))
    assert machine.hopeless(NOW), "not finished by D's rules, and nobody goes on"


def test_a_log_that_ends_with_entries_missing_is_not_hopeless_yet():
    machine = relay_only()
    machine.receive(NOW, sealed_at(7, reason=EndReason.LENGTH))
    assert not machine.hopeless(NOW)
    machine.receive(NOW, append(7, 17))
    assert not machine.hopeless(NOW), "the last entry may end the request by D's rules"
    machine.take_relay()
    assert machine.hopeless(NOW)


@pytest.mark.parametrize("make, answer", [(offered, False), (relaying, True), (relay_only, True), (replaying, False), (aborted, False)])
def test_kv_failed_says_whether_P_goes_on(make, answer):
    assert make().kv_failed(NOW) is answer


def test_logs_that_disagree_end_the_request_in_an_error():
    machine = relaying()
    assert machine.receive(NOW, append(6, 999)) == [Abort(ROOM, NONCE, AbortReason.CONFLICT)]
    assert machine.hopeless(NOW)


def test_a_seal_below_the_log_is_a_disagreement():
    machine = sealing()
    assert machine.receive(NOW, sealed_at(5)) == [Abort(ROOM, NONCE, AbortReason.CONFLICT)]


# ---------------------------------------------------------------------------- resume
def test_no_slot_after_the_seal_then_P_goes_on_in_a_new_term():
    machine = to_replay()
    assert machine.resume(NOW) == [Resume(ROOM, NONCE, 2, 9)]
    assert machine.end_reason is None
    assert machine.receive(NOW, append(9, 19, term=2)) == [Ack(ROOM, NONCE, 9, STAMP)]
    assert machine.take_relay() == [19]


def test_a_lost_resume_is_said_again_until_P_speaks_in_the_new_term():
    machine = resumed()
    machine.receive(NOW, append(9, 19, term=1))
    assert machine.tick(T0 + 1) == [Resume(ROOM, NONCE, 2, 9)]
    machine.receive(T0 + 1, append(9, 19, term=2))
    assert machine.tick(T0 + 9) == []


def test_no_resume_of_a_P_that_was_not_asked_to_stop():
    machine = in_round()
    machine.round_failed()
    before = everything(machine)
    assert machine.resume(NOW) == [] and everything(machine) == before


def unasked(count=6, room=True):
    """P has stopped of itself at ``count``; all is relayed."""
    machine = relaying(count)
    machine.take_relay()
    machine.receive(NOW, sealed_at(count))
    machine.kv_arrived(NOW)
    machine.room_ahead(NOW, room)
    return machine


def test_P_stops_of_itself_and_D_takes_over():
    machine = unasked()
    assert machine.state is DRAINING
    machine.round_started(machine.replay_range(99)[1])
    machine.round_done(NOW)
    assert machine.room_ahead(NOW, True) == [Commit(ROOM, NONCE, 6)] and not machine.alone


def test_P_stops_of_itself_and_D_has_no_room_for_the_request():
    machine = unasked(room=False)
    assert machine.state is REPLAYING and machine.term == 2 and machine.boundary is None


def test_P_stops_of_itself_and_D_takes_over_only_where_there_is_room_at_the_end_too():
    """It is looked at again: the last round may have taken long. Resumed, P goes on from there."""
    machine = unasked()
    machine.round_started(machine.replay_range(99)[1])
    assert machine.room_ahead(NOW, False) == [], "not while the round is in flight"
    assert machine.round_done(NOW) == [] and machine.state is DRAINING
    assert machine.room_ahead(NOW, False) == [Resume(ROOM, NONCE, 2, 7)]


def test_P_stops_of_itself_before_D_has_seen_the_KV():
    machine = relaying(1)
    machine.receive(NOW, sealed_at(1))
    assert machine.room_ahead(NOW, False) == [] and machine.state is RELAYING
    machine.take_relay()
    assert machine.kv_arrived(NOW) == [], "the room was not looked at"
    assert machine.room_ahead(NOW, True) == [Commit(ROOM, NONCE, 1)]


def test_P_is_back_and_the_KV_is_not_here_then_it_goes_on():
    """It expected the KV to be gone by then. The first Sealed is its farewell, the next one says that it is back."""
    machine = relaying(6)
    assert machine.receive(NOW, sealed_at(6)) == [] and machine.tick(NOW) == []
    assert machine.receive(NOW, sealed_at(6)) == [Resume(ROOM, NONCE, 2, 7)]
    assert machine.state is RELAYING and machine.boundary is None
    assert machine.tick(NOW + TIMING.resend) == [Resume(ROOM, NONCE, 2, 7)], "it was lost"
    machine.receive(NOW, append(7, 17, term=2))
    assert machine.tick(NOW + 2 * TIMING.resend) == []
    assert machine.take_relay() == [17]


def test_P_stops_of_itself_and_the_KV_fails_then_it_goes_on():
    machine = relaying(6)
    machine.take_relay()
    machine.receive(NOW, sealed_at(6))
    assert machine.kv_failed(NOW) and not machine.hopeless(NOW)
    assert machine.receive(NOW, sealed_at(6)) == [Resume(ROOM, NONCE, 2, 7)]
    assert machine.state is RELAY_ONLY


@pytest.mark.parametrize("reason", [EndReason.TOKEN, EndReason.LENGTH, EndReason.BUDGET])
def test_a_P_that_has_ended_is_not_resumed_before_the_KV_is_here(reason):
    machine = relaying(6)
    assert machine.receive(NOW, sealed_at(6, reason=reason)) == machine.receive(NOW, sealed_at(6, reason=reason)) == []


def test_room_is_no_condition_once_D_has_asked():
    machine = to_replay()
    machine.round_started(machine.replay_range(99)[1])
    machine.room_ahead(NOW, False)
    assert machine.round_done(NOW) == [Commit(ROOM, NONCE, 8)]


def test_replay_fails_after_the_seal_then_resume_once_the_round_is_out_of_the_way():
    machine = to_replay()
    machine.round_started(machine.replay_range(99)[1])
    assert machine.resume(NOW) == []
    machine.round_failed()
    assert machine.resume(NOW) == [Resume(ROOM, NONCE, 2, 9)]


def test_a_resume_tells_where_this_side_stands_not_where_the_seal_was():
    machine = draining()
    assert machine.resume(NOW) == [Resume(ROOM, NONCE, 2, 7)]
    assert machine.boundary is None


@pytest.mark.parametrize("reason", [EndReason.TOKEN, EndReason.LENGTH, EndReason.BUDGET])
@pytest.mark.parametrize("here", [8, 7])
def test_no_resume_of_a_P_that_has_ended_by_itself(reason, here):
    """Also while its last entries are lost: it sends them again in its own term."""
    machine = sealing()
    machine.receive(NOW, append(7, *ids(7, here)))
    machine.receive(NOW, sealed_at(8, reason=reason))
    assert machine.state is DRAINING
    before = everything(machine)
    assert machine.resume(NOW) == [] and everything(machine) == before


def test_after_a_resume_D_replays_on_and_asks_for_the_seal_when_there_is_room_and_P_has_answered():
    machine = resumed()
    assert machine.room_ahead(NOW, True) == [], "P may not have read the Resume, and would not obey"
    machine.room_ahead(NOW, False)
    assert machine.receive(NOW, append(9, *ids(9, 11), term=2)) == [Ack(ROOM, NONCE, 11, STAMP)]
    assert machine.take_relay() == ids(9, 11)
    assert machine.replay_range(99) == (6, 10)
    machine.round_started(10)
    assert machine.round_done(NOW) == []
    assert machine.room_ahead(NOW, True) == [SealRequest(ROOM, NONCE, 2, 0)]
    machine.receive(NOW, sealed_at(11, term=2))
    assert machine.state is OWNER and machine.boundary == 11


def test_resumed_and_P_spends_its_budget_then_D_takes_over_from_there():
    machine = resumed()
    machine.receive(NOW, append(9, 19, term=2))
    machine.receive(NOW, sealed_at(9, term=2, reason=EndReason.BUDGET))
    machine.take_relay()
    assert machine.state is DRAINING and not machine.hopeless(NOW)
    machine.round_started(machine.replay_range(99)[1])
    assert machine.round_done(NOW) == [Commit(ROOM, NONCE, 9)]


def test_ONE_GENERATOR_a_D_that_resumed_P_takes_over_alone_only_past_the_lease_it_last_gave():
    """A Resume is no lease, since nobody knows when P reads it."""
    machine = resumed()
    machine.tick(ALONE_AT - 0.01)
    assert machine.state is REPLAYING
    machine.tick(ALONE_AT)
    assert machine.state is DRAINING and machine.alone


def test_P_gone_meanwhile_a_resume_is_not_repeated():
    machine = resumed()
    machine.receive(NOW, abort_message())
    assert machine.alone and machine.tick(T0 + 5) == [] and not machine.hopeless(NOW)


# ---------------------------------------------------------------------------- seal ahead
class Ahead(SealNow):
    """Asks P to stop so many entries past those that are here."""

    def __init__(self, ahead):
        super().__init__(2)
        self.ahead, self.late = ahead, []

    def seal_ahead(self, lag):
        return self.ahead

    def sealed(self, late):
        self.late.append(late)


def sealing_ahead(ahead):
    """6 entries are here, none replayed; P is asked to stop at 6 + ahead."""
    machine = relaying(pace=Ahead(ahead))
    machine.kv_arrived(T0)
    assert machine.room_ahead(T0, True) == [SealRequest(ROOM, NONCE, 1, 6 + ahead)]
    return machine


def test_the_last_round_runs_while_P_makes_its_last_entry():
    machine = sealing_ahead(1)
    assert machine.replay_range(99) == (1, 6), "all that is here: P's next entry is its last"
    machine.round_started(6)
    machine.receive(NOW, append(7, 17))
    machine.receive(NOW, sealed_at(7))
    assert machine.take_relay() == [17]
    assert machine.state is DRAINING and machine.round_done(NOW) == [Commit(ROOM, NONCE, 7)]
    assert machine.pace.late == [0]


def test_the_last_round_waits_for_what_is_under_way():
    machine = sealing_ahead(2)
    assert machine.replay_range(99) is None
    machine.receive(NOW, append(7, 17))
    assert machine.replay_range(99) is None, "only relayed entries are replayed"
    machine.take_relay()
    assert machine.replay_range(99) == (1, 7)


def test_P_was_further_than_it_was_asked_to_stop():
    machine = sealing_ahead(1)
    machine.round_started(6)
    machine.receive(NOW, append(7, 17, 18, 19))
    machine.receive(NOW, sealed_at(9))
    machine.take_relay()
    machine.round_done(NOW)
    assert machine.replay_range(99) == (7, 8) and machine.pace.late == [2]


@pytest.mark.parametrize("reason", [EndReason.TOKEN, EndReason.BUDGET])
def test_P_ends_before_the_length_that_it_was_asked_for(reason):
    """Its last entry is replayed already: the caller gives that row back."""
    machine = sealing_ahead(1)
    machine.round_started(6)
    machine.receive(NOW, sealed_at(6, reason=reason))
    assert machine.round_done(NOW) == [Commit(ROOM, NONCE, 6)] and machine.replayed == 6
    assert machine.pace.late == [], "P did not stop because it was asked"


def test_a_P_that_does_not_get_there_is_asked_to_stop_at_once():
    machine = sealing_ahead(1)
    assert machine.tick(T0 + TIMING.resend) == [SealRequest(ROOM, NONCE, 1, 0)]


def test_a_resume_after_the_last_round_goes_on_from_there():
    machine = sealing_ahead(1)
    machine.round_started(6)
    machine.round_done(NOW)
    machine.resume(NOW)
    assert machine.replayed == 6 and machine.replay_range(99) is None
    machine.receive(NOW, append(7, *ids(7, 12), term=2))
    machine.take_relay()
    assert machine.replay_range(99) == (7, 11)
