"""P's table: every state against every event, then what each transition says and when."""

import pytest
from handoff_parts import FINGERPRINT, NONCE, P_ENDPOINT, P_EPOCH, ROOM, TIMING
from handoff_parts import everything, kinds, only, prefill_machine

from sglang.srt.disaggregation.handoff.messages import (
    MAX_IDS_PER_APPEND,
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
from sglang.srt.disaggregation.handoff.prefill_machine import (
    HOLD_ENGINE,
    HOLD_KV,
    HOLD_LEASE,
    OPEN_STATES,
    TERMINAL_STATES,
    PrefillState,
)

T0 = P_EPOCH
NOW = T0 + 0.5


def us(seconds):
    return int(seconds * 1e6)


def ack(received, at=T0):
    return Ack(ROOM, NONCE, received, us(at))


def seal(at=0, term=1):
    return SealRequest(ROOM, NONCE, term, at)


def commit(boundary):
    return Commit(ROOM, NONCE, boundary)


def resume(term, start):
    return Resume(ROOM, NONCE, term, start)


def abort(reason):
    return Abort(ROOM, NONCE, reason)


# --------------------------------------------------------------------- the states, each with t1 t2 t3
def bridging():
    machine = prefill_machine()
    machine.start(T0, 11)
    machine.sampled(T0, 12)
    machine.sampled(T0, 13)
    return machine


def paused(why=HOLD_KV):
    machine = bridging()
    machine.hold(why)
    return machine


def sealed():
    machine = bridging()
    machine.receive(T0, seal())
    return machine


def ended(reason=EndReason.TOKEN):
    machine = prefill_machine()
    machine.start(T0, 11)
    machine.sampled(T0, 12)
    machine.sampled(T0, 13, reason)
    return machine


def committed():
    machine = sealed()
    machine.receive(T0, commit(3))
    return machine


def finished():
    machine = bridging()
    machine.receive(T0, abort(AbortReason.DONE))
    return machine


def aborted():
    machine = bridging()
    machine.abort(T0, AbortReason.CLIENT)
    return machine


def test_a_session_is_unanswered_until_the_first_ack_and_not_before_a_lease():
    machine = bridging()
    assert not machine.unanswered(T0 + TIMING.lease - 0.01)
    assert machine.unanswered(T0 + TIMING.lease)
    machine.receive(NOW, ack(1))
    assert not machine.unanswered(T0 + 100)


STATES = {
    "bridging": bridging, "paused": paused, "paused by lease": lambda: paused(HOLD_LEASE), "sealed": sealed,
    "ended": ended, "committed": committed, "finished": finished, "aborted": aborted,
}  # fmt: skip
EVENTS = {
    "sampled": lambda m: m.sampled(NOW, 14),
    "sampled the end": lambda m: m.sampled(NOW, 14, EndReason.TOKEN),
    "stop now": lambda m: m.stop_after(NOW, 0),
    "stop after a step": lambda m: m.stop_after(NOW, 1),
    "hold": lambda m: m.hold(HOLD_ENGINE),
    "unhold kv": lambda m: m.unhold(HOLD_KV),
    "abort": lambda m: m.abort(NOW, AbortReason.CLIENT),
    "tick": lambda m: m.tick(NOW),
    "tick past resend": lambda m: m.tick(T0 + TIMING.resend),
    "tick past lease": lambda m: m.tick(T0 + TIMING.lease),
    "tick past commit": lambda m: m.tick(T0 + TIMING.commit),
    "tick past silence": lambda m: m.tick(T0 + TIMING.lease + TIMING.silence),
    "ack": lambda m: m.receive(NOW, ack(2, NOW)),
    "ack of what was not sent": lambda m: m.receive(NOW, ack(4)),
    "ack from the future": lambda m: m.receive(NOW, ack(2, NOW + 1)),
    "seal now": lambda m: m.receive(NOW, seal()),
    "seal ahead": lambda m: m.receive(NOW, seal(at=5)),
    "seal of an old term": lambda m: m.receive(NOW, seal(term=0)),
    "seal of a coming term": lambda m: m.receive(NOW, seal(term=2)),
    "commit": lambda m: m.receive(NOW, commit(3)),
    "commit below the end": lambda m: m.receive(NOW, commit(2)),
    "commit past the end": lambda m: m.receive(NOW, commit(4)),
    "resume": lambda m: m.receive(NOW, resume(2, 4)),
    "resume with a hole to fill": lambda m: m.receive(NOW, resume(2, 3)),
    "resume of this term": lambda m: m.receive(NOW, resume(1, 4)),
    "resume past the end": lambda m: m.receive(NOW, resume(2, 5)),
    "peer aborts": lambda m: m.receive(NOW, abort(AbortReason.CLIENT)),
    "peer is done": lambda m: m.receive(NOW, abort(AbortReason.DONE)),
    "own kind of message": lambda m: m.receive(NOW, Append(ROOM, NONCE, 1, 1, [11], 0)),
}
B, P, S = PrefillState.BRIDGING, PrefillState.PAUSED, PrefillState.SEALED
C, F, A = PrefillState.COMMITTED, PrefillState.FINISHED, PrefillState.ABORTED
# (state, event) -> next state. What is not here changes no field at all.
TABLE = {
    **{("bridging", e): B for e in ("sampled", "tick past resend", "ack", "seal ahead")},
    **{("bridging", e): B for e in ("resume", "resume with a hole to fill")},
    **{("bridging", e): P for e in ("hold", "tick past lease", "tick past commit")},
    **{("bridging", e): S for e in ("sampled the end", "seal now", "stop now")},
    ("bridging", "stop after a step"): B,
    **{("paused", e): P for e in ("sampled", "hold", "tick past resend", "tick past lease", "tick past commit")},
    **{("paused", e): P for e in ("ack", "seal ahead", "resume", "resume with a hole to fill")},
    ("paused", "unhold kv"): B,
    **{("paused", e): S for e in ("sampled the end", "seal now")},
    **{("paused by lease", e): P for e in ("sampled", "hold", "tick past resend", "tick past commit", "seal ahead")},
    **{("paused by lease", e): P for e in ("tick past lease", "resume", "resume with a hole to fill")},
    ("paused by lease", "ack"): B,
    **{("paused by lease", e): S for e in ("sampled the end", "seal now")},
    **{("sealed", e): S for e in ("ack", "hold", "tick past resend", "tick past lease", "seal now", "seal ahead")},
    **{("sealed", e): B for e in ("resume", "resume with a hole to fill")},
    **{("sealed", e): A for e in ("tick past commit",)},
    **{("ended", e): S for e in ("ack", "hold", "tick past resend", "tick past lease", "seal now", "seal ahead")},
    **{("ended", e): S for e in ("resume", "resume with a hole to fill")},
    **{("ended", e): A for e in ("tick past commit",)},
    **{(s, "tick past silence"): A for s in ("bridging", "paused", "paused by lease", "sealed", "ended")},
    **{(s, e): C for s in ("bridging", "paused", "paused by lease", "sealed", "ended") for e in ("commit", "commit below the end")},
    **{(s, e): A for s in ("bridging", "paused", "paused by lease", "sealed", "ended") for e in ("abort", "peer aborts")},
    **{(s, "peer is done"): F for s in ("bridging", "paused", "paused by lease", "sealed", "ended")},
    ("finished", "abort"): A,
    # A hold is only noted where nothing is generated any more.
    **{(s, "hold"): state for s, state in (("committed", C), ("finished", F), ("aborted", A))},
}  # fmt: skip


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_the_table(state, event):
    machine = STATES[state]()
    before = everything(machine)
    said = EVENTS[event](machine)
    expected = TABLE.get((state, event))
    if expected is None:
        assert everything(machine) == before
        if said:  # an aborted P tells a D that still asks
            assert state == "aborted" and event not in ("abort", "peer aborts", "peer is done")
            assert said == [Abort(ROOM, NONCE, AbortReason.CLIENT)]
    else:
        assert machine.state is expected
        assert everything(machine) != before
        assert expected is A or "Abort" not in kinds(said or [])


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_entries_are_only_ever_added(state, event):
    machine = STATES[state]()
    EVENTS[event](machine)
    assert machine.log.slice(1, 4) == [11, 12, 13]
    assert machine.log.slice(4, 9) == ([14] if event.startswith("sampled") and state in ("bridging", "paused", "paused by lease") else [])


@pytest.mark.parametrize("state", STATES)
def test_ONE_GENERATOR_only_bridging_generates(state):
    machine = STATES[state]()
    assert machine.may_generate(NOW) == (state == "bridging")
    assert machine.done == (state in ("committed", "finished", "aborted"))
    assert (machine.state in OPEN_STATES) == (state in ("bridging", "paused", "paused by lease"))
    assert (machine.state in TERMINAL_STATES) == machine.done


# ---------------------------------------------------------------------------- what is said
def test_t1_opens_the_handoff():
    machine = prefill_machine()
    opening, append = machine.start(T0, 11)
    assert opening == Open(ROOM, NONCE, 1, P_ENDPOINT, 5, 2, FINGERPRINT, 100, 1234)
    assert append == Append(ROOM, NONCE, 1, 1, [11], us(T0))


def test_every_entry_is_said_at_once_with_its_index():
    machine = bridging()
    assert machine.sampled(NOW, 14) == [Append(ROOM, NONCE, 1, 4, [14], us(NOW))]


@pytest.mark.parametrize("reason", [EndReason.TOKEN, EndReason.LENGTH])
def test_an_end_on_P_closes_the_log_and_says_why(reason):
    machine = bridging()
    append, sealed_message = machine.sampled(NOW, 14, reason)
    assert append.ids == [14]
    assert sealed_message == Sealed(ROOM, NONCE, 1, 4, machine.log.digest(), reason)
    assert machine.end_reason is reason and machine.log.complete


@pytest.mark.parametrize("end, reason", [(None, EndReason.BUDGET), (EndReason.TOKEN, EndReason.TOKEN)])
def test_EOS_as_t1_or_a_budget_of_one_ends_at_once(end, reason):
    machine = prefill_machine(budget=1)
    out = machine.start(T0, 11, end)
    assert kinds(out) == ["Open", "Append", "Sealed"]
    assert (out[2].length, out[2].reason) == (1, reason)


def test_the_budget_is_never_exceeded():
    machine = prefill_machine(budget=3)
    machine.start(T0, 11)
    machine.sampled(T0, 12)
    assert only(machine.sampled(T0, 13), Sealed).reason is EndReason.BUDGET
    assert machine.sampled(T0, 14) == [] and len(machine.log) == 3


def test_a_budget_below_one_token_is_an_error():
    with pytest.raises(ValueError, match="at least 1 token, got 0"):
        prefill_machine(budget=0)


def test_seal_now_stops_at_what_there_is():
    machine = bridging()
    assert machine.receive(NOW, seal()) == [Sealed(ROOM, NONCE, 1, 3, machine.log.digest(), EndReason.SEAL)]


def test_seal_ahead_stops_exactly_there():
    machine = bridging()
    assert machine.receive(NOW, seal(at=5)) == []
    assert kinds(machine.sampled(NOW, 14)) == ["Append"]
    assert kinds(machine.sampled(NOW, 15)) == ["Append", "Sealed"]
    assert machine.sampled(NOW, 16) == [] and len(machine.log) == 5


def test_a_seal_asked_for_behind_the_log_stops_at_what_there_is():
    machine = bridging()
    assert only(machine.receive(NOW, seal(at=1)), Sealed).length == 3


def test_P_stops_of_itself_as_if_asked():
    machine = bridging()
    assert machine.stop_after(NOW, 0) == [Sealed(ROOM, NONCE, 1, 3, machine.log.digest(), EndReason.SEAL)]
    assert machine.receive(NOW, resume(2, 4)) and machine.may_generate(NOW)


def test_P_stops_of_itself_once_the_step_in_flight_has_ended():
    machine = bridging()
    assert machine.stop_after(NOW, 1) == [] and machine.may_generate(NOW)
    assert kinds(machine.sampled(NOW, 14)) == ["Append", "Sealed"]


def test_a_stop_of_itself_comes_before_the_length_that_was_asked_for():
    machine = bridging()
    machine.receive(NOW, seal(at=9))
    assert only(machine.stop_after(NOW, 0), Sealed).length == 3


def test_a_P_that_was_resumed_stops_only_when_asked():
    """D has no room: it would have to resume P before each prompt."""
    machine = sealed()
    machine.receive(NOW, resume(2, 4))
    assert machine.stop_after(NOW, 0) == [] and machine.may_generate(NOW)
    assert machine.receive(NOW, seal(term=2))


def test_a_lost_seal_is_said_again_when_asked_again():
    machine = bridging()
    first = machine.receive(NOW, seal())
    assert machine.receive(NOW + 1, seal()) == first


def test_a_step_launched_before_the_seal_is_dropped_after_it():
    machine = sealed()
    assert machine.sampled(NOW, 14) == [] and len(machine.log) == 3


def test_unacknowledged_entries_are_sent_again_and_then_again():
    """An interval after D last confirmed more, whatever is sent meanwhile."""
    machine = bridging()
    machine.receive(NOW, ack(1, NOW))
    machine.sampled(NOW + 0.9, 14)
    machine.receive(NOW + 0.9, ack(1, NOW + 0.9))
    assert machine.tick(NOW + 0.99) == []
    assert machine.tick(NOW + 1.0) == [Append(ROOM, NONCE, 1, 2, [12, 13, 14], us(NOW + 1))]
    assert machine.tick(NOW + 1.5) == []
    assert kinds(machine.tick(NOW + 2.0)) == ["Append"]


def test_the_opening_is_sent_again_until_the_first_ack():
    machine = bridging()
    assert kinds(machine.tick(T0 + 1)) == ["Open", "Append"]
    machine.receive(T0 + 1, ack(0, T0))
    assert kinds(machine.tick(T0 + 2)) == ["Append"]


def test_with_all_acknowledged_an_empty_append_is_the_sign_of_life():
    machine = bridging()
    machine.receive(NOW, ack(3, NOW))
    assert machine.tick(NOW + 0.99) == []
    assert machine.tick(NOW + 1) == [Append(ROOM, NONCE, 1, 4, [], us(NOW + 1))]


def test_a_resend_is_cut_to_what_a_message_holds():
    machine = prefill_machine(budget=10_000)
    machine.start(T0, 0)
    for token in range(1, MAX_IDS_PER_APPEND + 5):
        machine.sampled(T0, token)
    first = only(machine.tick(T0 + 1), Append)
    assert (first.start, len(first.ids)) == (1, MAX_IDS_PER_APPEND)
    machine.receive(T0 + 1, ack(MAX_IDS_PER_APPEND, T0 + 1))
    rest = only(machine.tick(T0 + 2), Append)
    assert rest.start == MAX_IDS_PER_APPEND + 1 and rest.ids == list(range(MAX_IDS_PER_APPEND, MAX_IDS_PER_APPEND + 5))


def test_a_sealed_P_repeats_entries_and_seal():
    machine = sealed()
    assert kinds(machine.tick(T0 + 1)) == ["Open", "Append", "Sealed"]


def test_ack_is_cumulative_and_an_old_one_takes_nothing_back():
    machine = bridging()
    machine.receive(NOW, ack(3, NOW))
    machine.receive(NOW, ack(1, T0))
    assert only(machine.tick(T0 + 2), Append).start == 4
    assert machine.lease_end == NOW + TIMING.lease


# ---------------------------------------------------------------------------- the lease
def test_ONE_GENERATOR_the_lease_runs_from_Ps_own_stamp_not_from_the_acks_arrival():
    machine = bridging()
    machine.receive(T0 + 3, ack(3, T0 + 1))  # two seconds under way
    assert machine.may_generate(T0 + 4.99)
    assert not machine.may_generate(T0 + 5)


def test_ONE_GENERATOR_the_lease_is_looked_at_without_a_tick():
    """The step after a long prefill chunk comes before the next tick."""
    machine = bridging()
    assert machine.state is B and not machine.may_generate(T0 + TIMING.lease)


def test_a_silent_D_pauses_P_and_its_word_wakes_it():
    machine = bridging()
    machine.tick(T0 + 4)
    assert machine.state is P and machine.holds == {HOLD_LEASE}
    machine.receive(T0 + 5, ack(3, T0 + 4))
    assert machine.state is B and machine.may_generate(T0 + 5)


def test_a_stale_ack_does_not_wake_P():
    machine = bridging()
    machine.tick(T0 + 4)
    machine.receive(T0 + 5, ack(3, T0 + 1))
    assert machine.state is P


def test_a_token_in_flight_when_the_lease_ended_is_logged_and_sent():
    machine = bridging()
    machine.tick(T0 + 4)
    assert only(machine.sampled(T0 + 4, 14), Append).ids == [14]
    assert machine.state is P


@pytest.mark.parametrize("first, second", [(HOLD_KV, HOLD_ENGINE), (HOLD_ENGINE, HOLD_LEASE)])
def test_P_bridges_again_when_no_hold_is_left(first, second):
    machine = bridging()
    machine.hold(first)
    machine.hold(second)
    machine.unhold(first)
    assert machine.state is P
    machine.unhold(second)
    assert machine.state is B


def test_a_paused_P_is_not_silent():
    assert kinds(paused().tick(T0 + 1)) == ["Open", "Append"]


# ---------------------------------------------------------------------------- failures
def test_D_dies_then_P_stops_and_frees_after_its_timeout():
    machine = bridging()
    machine.tick(T0 + 4)
    machine.tick(T0 + 11.9)
    assert machine.state is P
    assert machine.tick(T0 + 12) == [Abort(ROOM, NONCE, AbortReason.TIMEOUT)]
    assert machine.done


def test_sealed_then_silence_P_frees_after_its_timeout_and_never_generates():
    machine = sealed()
    for late in range(1, 10):
        machine.tick(T0 + late)
        assert machine.state is S and not machine.may_generate(T0 + late)
    assert machine.tick(T0 + 10) == [Abort(ROOM, NONCE, AbortReason.TIMEOUT)]
    assert machine.state is A


def test_a_sealed_P_waits_for_a_D_that_is_slow_but_speaks():
    """What ends the wait is silence: as long as D confirms, it may still give the request back."""
    machine = sealed()
    for late in range(1, 30):
        machine.receive(T0 + late, ack(3, T0 + late))
        machine.tick(T0 + late)
    assert machine.state is S
    machine.tick(T0 + 29 + TIMING.commit - 0.1)
    assert machine.state is S
    assert machine.tick(T0 + 29 + TIMING.commit) == [Abort(ROOM, NONCE, AbortReason.TIMEOUT)]


def test_D_takes_over_alone_at_less_than_P_has():
    machine = bridging()
    machine.receive(NOW, commit(2))
    assert machine.state is C and machine.boundary == 2


def test_a_commit_past_the_log_is_no_commit():
    machine = sealed()
    machine.receive(NOW, commit(4))
    assert machine.state is S and machine.boundary is None


def test_a_lost_abort_of_P_is_said_again_when_D_asks():
    machine = aborted()
    for message in (seal(), ack(3), commit(3), resume(2, 4)):
        assert machine.receive(NOW, message) == [Abort(ROOM, NONCE, AbortReason.CLIENT)]


@pytest.mark.parametrize("reason", [AbortReason.CLIENT, AbortReason.CONFLICT])
def test_Ds_abort_ends_P_with_Ds_reason(reason):
    machine = bridging()
    assert machine.receive(NOW, abort(reason)) == []
    assert machine.abort_reason is reason


@pytest.mark.parametrize("end", [committed, finished, aborted])
def test_an_abort_is_never_answered_by_one(end):
    """Or two ended sides would talk forever."""
    assert end().receive(NOW, abort(AbortReason.CLIENT)) == []


@pytest.mark.parametrize("end", [committed, finished])
def test_a_side_that_ended_well_needs_no_more_words(end):
    for message in (seal(), ack(3), commit(3), resume(2, 4)):
        assert end().receive(NOW, message) == []
    assert end().tick(T0 + 99) == []


@pytest.mark.parametrize("end, says", [(finished, AbortReason.TRANSFER), (aborted, AbortReason.TRANSFER), (committed, None)])
def test_a_D_that_asks_after_the_end_waits_for_KV_and_is_told_that_it_will_not_come(end, says):
    """Upstream's transfer may not have told it. One that has committed has all."""
    machine = end()
    machine.kv_failed(T0)
    assert machine.receive(NOW, ack(3)) == ([Abort(ROOM, NONCE, says)] if says else [])
    assert machine.receive(NOW, abort(AbortReason.DONE)) == []


def test_P_gives_up_a_closed_log_whose_transfer_has_failed_however_alive_D_is():
    """D confirms all that is said, and waits for the KV."""
    machine = sealed()
    machine.kv_failed(T0)
    for late in (TIMING.silence / 3, TIMING.silence * 2 / 3, TIMING.silence - 0.01):
        machine.receive(T0 + late, ack(3, T0 + late))
        machine.tick(T0 + late)
        assert machine.state is S
    assert machine.tick(T0 + TIMING.silence) == [Abort(ROOM, NONCE, AbortReason.TRANSFER)]


def test_a_log_that_was_reopened_without_its_KV_has_a_silence_to_grow():
    machine = sealed()
    machine.kv_failed(T0)
    late = T0 + TIMING.silence - 0.1
    machine.receive(late, ack(3, late))
    machine.receive(late, resume(2, 4))
    assert machine.state is B and machine.tick(late + 1) != [Abort(ROOM, NONCE, AbortReason.TRANSFER)]
    machine.sampled(late + 1, 14)
    machine.receive(late + 1, ack(4, late + 1))
    machine.tick(late + TIMING.silence)
    assert not machine.done, "it has grown since"


def test_an_abort_here_after_the_end_is_told_too():
    """The transfer may still be under way, and ends with it."""
    machine = finished()
    assert machine.abort(NOW, AbortReason.CLIENT) == [Abort(ROOM, NONCE, AbortReason.CLIENT)]
    assert machine.receive(NOW, ack(3)) == [Abort(ROOM, NONCE, AbortReason.CLIENT)], "until D knows"


# ---------------------------------------------------------------------------- resume
def test_resume_reopens_the_log_in_a_new_term():
    machine = sealed()
    assert machine.receive(NOW, resume(2, 4)) == [Append(ROOM, NONCE, 2, 4, [], us(NOW))]
    assert machine.term == 2 and machine.end_reason is None and machine.may_generate(NOW)
    assert machine.sampled(NOW, 14) == [Append(ROOM, NONCE, 2, 4, [14], us(NOW))]


def test_resume_of_a_D_that_lacks_entries_of_the_seal():
    """The last Append was lost and Sealed was not: P repeats it, in the new term."""
    machine = sealed()
    assert machine.receive(NOW, resume(2, 3)) == [Append(ROOM, NONCE, 2, 3, [13], us(NOW))]
    assert machine.state is B


def test_ONE_GENERATOR_a_resume_is_no_new_lease():
    """D can't know when P reads it; its Ack of what P says then gives the lease."""
    machine = sealed()
    late = T0 + TIMING.lease + 1
    append = only(machine.receive(late, resume(2, 4)), Append)
    assert not machine.may_generate(late)
    machine.receive(late, Ack(ROOM, NONCE, 3, append.stamp))
    assert machine.may_generate(late)


def test_a_held_P_resumes_into_pause():
    machine = sealed()
    machine.hold(HOLD_KV)
    machine.receive(NOW, resume(2, 4))
    assert machine.state is P


def test_FENCED_a_late_seal_request_of_before_the_resume_seals_nothing():
    machine = sealed()
    machine.receive(NOW, resume(2, 4))
    before = everything(machine)
    assert machine.receive(NOW, seal(term=1)) == []
    assert everything(machine) == before


def test_FENCED_a_seal_ahead_of_before_the_resume_is_forgotten():
    machine = bridging()
    machine.receive(NOW, seal(at=5))
    machine.receive(NOW, resume(2, 4))
    machine.sampled(NOW, 14)
    assert kinds(machine.sampled(NOW, 15)) == ["Append"]


@pytest.mark.parametrize("reason", [EndReason.TOKEN, EndReason.LENGTH, EndReason.BUDGET])
def test_resume_does_not_reopen_what_P_itself_ended(reason):
    """But D hears of that end in the new term, or the last entries would be fenced off for good."""
    machine = ended(reason)
    append, sealed_message = machine.receive(NOW, resume(2, 3))
    assert (append.term, append.start, append.ids) == (2, 3, [13])
    assert (sealed_message.term, sealed_message.length, sealed_message.reason) == (2, 3, reason)
    assert machine.state is S and machine.sampled(NOW, 14) == []


def test_a_repeated_resume_changes_nothing():
    machine = sealed()
    machine.receive(NOW, resume(2, 4))
    machine.sampled(NOW, 14)
    before = everything(machine)
    assert machine.receive(NOW, resume(2, 4)) == []
    assert everything(machine) == before
