"""Two machines hand each other bytes. Named after the rows of protocol.md's failure table."""

import random

import pytest
from handoff_parts import D_EPOCH, P_EPOCH, TIMING, decode_machine, prefill_machine

from sglang.srt.disaggregation.handoff.decode_machine import DecodeState
from sglang.srt.disaggregation.handoff.messages import (
    AbortReason,
    Ack,
    Append,
    Commit,
    EndReason,
    Message,
    Open,
    Resume,
    Sealed,
    SealRequest,
    decode,
    encode,
)
from sglang.srt.disaggregation.handoff.prefill_machine import HOLD_ENGINE, HOLD_KV, PrefillState


class Pair:
    """P, D, a wire each way and a client. Token n is n; ``end`` is the last one of the answer."""

    def __init__(self, end=12, p_knows_end=True, **prefill_changes):
        self.end, self.p_knows_end, self.seconds = end, p_knows_end, 0.0
        self.p, self.d = prefill_machine(**prefill_changes), decode_machine()
        self.to_p, self.to_d = [], []  # frames under way
        self.client, self.finished = [], False
        self.lost = lambda message: False
        self.said = []  # kinds, in the order they were sent
        self.room = True
        self.say(self.to_d, self.p.start(self.p_now, 1, self.p_end(1)))

    @property
    def p_now(self):
        return P_EPOCH + self.seconds

    @property
    def d_now(self):
        return D_EPOCH + self.seconds

    def p_end(self, token):
        return EndReason.TOKEN if self.p_knows_end and token == self.end else None

    def say(self, wire, messages):
        for message in messages:
            self.said.append(type(message).__name__)
            if not self.lost(message):
                wire.append(encode(message))

    def deliver(self, wire=None, index=0):
        """One frame of ``wire``, or all there are and those they cause."""
        if wire is None:
            while self.to_p or self.to_d:
                self.deliver(self.to_d if self.to_d else self.to_p)
            return
        message = decode(wire.pop(index))
        if wire is self.to_p:
            self.say(self.to_d, self.p.receive(self.p_now, message))
        else:
            self.say(self.to_p, self.d.receive(self.d_now, message))
            self.relay()

    def relay(self):
        for token in self.d.take_relay():
            self.client.append(token)
            if token == self.end:
                self.finished = True
                self.say(self.to_p, self.d.finished(self.d_now))
                return

    def sample(self, number=1):
        for _ in range(number):
            if not self.p.may_generate(self.p_now):
                return
            token = len(self.p.log) + 1
            self.say(self.to_d, self.p.sampled(self.p_now, token, self.p_end(token)))

    def kv(self):
        self.say(self.to_p, self.d.kv_arrived(self.d_now))
        self.say(self.to_p, self.d.room_ahead(self.d_now, self.room))

    def replay(self, limit=99):
        span = self.d.replay_range(limit)
        if span is not None:
            assert self.client[span[0] - 1 : span[1]] == list(range(span[0], span[1] + 1))
            self.d.round_started(span[1])
            self.say(self.to_p, self.d.round_done(self.d_now))
            self.say(self.to_p, self.d.room_ahead(self.d_now, self.room))
        return span

    def wait(self, seconds):
        """Time passes on both sides, in steps that both notice."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds = min(end, self.seconds + TIMING.resend / 2)
            self.say(self.to_d, self.p.tick(self.p_now))
            self.say(self.to_p, self.d.tick(self.d_now))
            self.relay()
            self.deliver()

    def own(self):
        """D goes on alone from its boundary."""
        assert self.d.state is DecodeState.OWNER and not self.p.may_generate(self.p_now)
        self.client += range(self.d.boundary + 1, self.end + 1)
        self.finished = True

    def ended_well(self):
        assert self.client == list(range(1, self.end + 1)) and self.finished
        assert self.p.done and self.d.done
        return True


def sealed(pair):
    """Four tokens, KV, one round; the seal comes after a fifth, which is left to replay."""
    pair.sample(3)
    pair.deliver()
    pair.kv()
    pair.replay()
    pair.sample()
    pair.deliver()
    assert pair.d.state is DecodeState.DRAINING and pair.d.lag == 1
    return pair


def lose(pair, kind, times=1):
    """The next ``times`` messages of ``kind`` are lost."""
    left = [times]

    def lost(message: Message) -> bool:
        if isinstance(message, kind) and left[0]:
            left[0] -= 1
            return True
        return False

    pair.lost = lost


def test_the_normal_course():
    pair = Pair()
    pair.sample(3)
    pair.deliver()
    assert pair.client == [1, 2, 3, 4], "before any KV has arrived"
    pair.kv()
    assert pair.replay() == (1, 3)
    pair.sample()
    pair.deliver()
    assert pair.d.state is DecodeState.DRAINING and pair.d.boundary == 5
    assert pair.replay() == (4, 4)
    pair.deliver()
    assert pair.p.state is PrefillState.COMMITTED
    pair.own()
    assert pair.ended_well()
    kinds = ["Open", "Append", "SealRequest", "Sealed", "Commit"]
    assert [kind for kind in dict.fromkeys(pair.said) if kind != "Ack"] == kinds


def test_a_short_log_is_sealed_and_committed_without_a_round():
    pair = Pair()
    pair.deliver()
    pair.kv()
    pair.deliver()
    assert pair.d.rounds == 0 and pair.d.boundary == 1
    pair.own()
    assert pair.ended_well()


@pytest.mark.parametrize("end", [1, 2, 4])
def test_EOS_before_the_KV_ends_the_request_on_the_relayed_token(end):
    pair = Pair(end)
    pair.sample(9)
    pair.deliver()
    assert pair.p.state is PrefillState.FINISHED
    assert pair.ended_well()


def test_an_end_that_only_D_sees_stops_P():
    """A stop string: P does not look at the text."""
    pair = Pair(3, p_knows_end=False)
    pair.sample(5)
    pair.deliver()
    assert pair.p.state is PrefillState.FINISHED
    assert pair.ended_well()


def test_EOS_as_the_last_entry_of_the_seal():
    pair = Pair(5, p_knows_end=False)
    pair.sample(3)
    pair.deliver()
    pair.kv()
    pair.replay()
    pair.sample()
    pair.deliver()
    assert pair.p.state is PrefillState.FINISHED and pair.p.end_reason is EndReason.SEAL
    assert pair.ended_well()


def test_budget_spent_before_the_KV_then_both_wait_and_D_goes_on_from_there():
    pair = Pair(budget=3)
    pair.sample(9)
    pair.deliver()
    assert pair.p.state is PrefillState.SEALED and pair.client == [1, 2, 3]
    pair.wait(2)
    pair.kv()
    pair.replay()
    pair.deliver()
    pair.own()
    assert pair.ended_well()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", [Open, Append, Ack, SealRequest, Sealed, Commit])
def test_a_lost_message_delays_tokens_and_nothing_else(kind, times):
    pair = Pair()
    lose(pair, kind, times)
    if kind in (Open, Append):
        # The first ones are under way already.
        pair.to_d = [f for f in pair.to_d if not pair.lost(decode(f))]
    pair.sample(3)
    pair.deliver()
    pair.wait(times * TIMING.resend)
    pair.kv()
    for _ in range(8):
        pair.replay()
        pair.deliver()
        pair.wait(TIMING.resend)
    assert pair.d.state is DecodeState.OWNER and not pair.d.alone
    pair.own()
    assert pair.ended_well()


@pytest.mark.parametrize("late", [0, 3], ids=["acks at once", "acks three tokens late"])
def test_a_lost_entry_is_sent_again_while_new_ones_are_made(late):
    """Every token is sent at once, and none that follows a lost one counts for anything."""
    pair, step = Pair(end=1000, p_knows_end=False, budget=1000), TIMING.resend / 20
    for token in range(2, 101):
        pair.lost = lambda message: isinstance(message, Append) and message.start == 10 and token == 10
        pair.seconds += step
        pair.sample()
        pair.say(pair.to_d, pair.p.tick(pair.p_now))
        while pair.to_d:
            pair.deliver(pair.to_d)
        while len(pair.to_p) > late:
            pair.deliver(pair.to_p)
        if token > 10 + 20 + 1 + late:
            assert len(pair.client) == len(pair.p.log), token
    assert pair.said.count("Append") - 100 <= 1, "sent again without need"


def test_a_P_that_must_not_generate_gives_up_what_D_will_have_no_KV_for():
    """New weights: P is stopped for good, D acknowledges its signs of life, and neither would ever end."""
    for first in (lambda p: p.hold(HOLD_ENGINE), lambda p: p.kv_failed(pair.p_now)):
        pair = Pair(end=1000, p_knows_end=False)
        pair.sample(3)
        pair.deliver()
        pair.d.kv_failed(pair.d_now)
        first(pair.p)
        pair.wait(1)
        assert not pair.p.done and not pair.d.hopeless(pair.d_now)
        pair.p.kv_failed(pair.p_now)
        pair.p.hold(HOLD_ENGINE)
        pair.wait(1)
        assert pair.p.abort_reason is AbortReason.TRANSFER and pair.d.hopeless(pair.d_now)
        assert pair.client == [1, 2, 3, 4]


@pytest.mark.parametrize("knows", ["P", "D", "both"])
def test_a_log_that_stands_still_without_the_KV_ends_though_both_sides_live(knows):
    """P has no KV slot for another token, and nobody frees one. Each hears of the other all the while."""
    pair = Pair(end=1000, p_knows_end=False)
    pair.sample(3)
    pair.deliver()
    pair.wait(TIMING.silence)
    if knows != "P":
        assert pair.d.kv_failed(pair.d_now)
    if knows != "D":
        pair.p.kv_failed(pair.p_now)
    pair.wait(TIMING.silence / 2)
    pair.sample()  # a token counts anew
    pair.deliver()
    pair.p.hold(HOLD_KV)
    pair.wait(TIMING.silence - 0.1)
    if knows != "D":
        pair.p.kv_failed(pair.p_now)  # told again, which begins nothing anew
    assert not pair.p.done and not pair.d.hopeless(pair.d_now)
    pair.wait(0.2)
    assert pair.client == [1, 2, 3, 4, 5]
    assert pair.d.hopeless(pair.d_now) or pair.p.abort_reason is AbortReason.TRANSFER
    pair.wait(TIMING.silence)
    assert pair.d.hopeless(pair.d_now) and (pair.p.done or knows == "D")


def test_lost_commit_costs_P_a_resend_and_never_a_second_owner():
    pair = sealed(Pair())
    lose(pair, Commit)
    pair.replay()
    assert pair.d.state is DecodeState.OWNER and pair.p.state is PrefillState.SEALED
    pair.own()
    pair.wait(TIMING.resend)
    assert pair.p.state is PrefillState.COMMITTED
    assert pair.ended_well()


def test_stale_and_duplicate_messages_are_ignored():
    pair = Pair()
    frames = []
    plain = pair.say

    def say(wire, messages):
        frames.extend((wire, encode(m)) for m in messages)
        plain(wire, messages)

    pair.say = say
    sealed(pair)
    pair.replay()
    pair.deliver()
    pair.own()
    assert pair.ended_well()
    states = pair.p.state, pair.d.state
    for wire, frame in frames * 2:
        wire.append(frame)
        pair.deliver()
    assert (pair.p.state, pair.d.state) == states and pair.ended_well()


@pytest.mark.parametrize("seed", range(300))
def test_ONCE_whatever_the_network_does(seed):
    """Frames lost, doubled and in any order; every step in any order."""
    rng = random.Random(seed)
    loss = rng.choice([0, 0.1, 0.5])
    pair = Pair(rng.randint(1, 14), rng.random() < 0.5, budget=rng.choice([1, 3, 8, 99]))
    pair.lost = lambda message: rng.random() < loss

    def deliver_some():
        wire = rng.choice([w for w in (pair.to_p, pair.to_d) if w] or [None])
        if wire:
            index = rng.randrange(len(wire))
            if rng.random() < 0.2:
                wire.append(wire[index])
            pair.deliver(wire, index)

    def pass_time():
        pair.seconds += rng.choice([0.1, 0.5, 1.0])
        pair.say(pair.to_d, pair.p.tick(pair.p_now))
        pair.say(pair.to_p, pair.d.tick(pair.d_now))
        pair.relay()

    def kv():
        if rng.random() < 0.2:
            pair.kv()

    def own():
        if pair.d.state is DecodeState.OWNER and not pair.finished:
            pair.own()

    steps = [deliver_some] * 6 + [pair.sample] * 3 + [kv, pair.replay, pass_time, own]
    for _ in range(400):
        rng.choice(steps)()
        assert pair.client == list(range(1, len(pair.client) + 1))
        assert not (pair.d.state is DecodeState.OWNER and pair.p.may_generate(pair.p_now))
    pair.lost = lambda message: False
    if not pair.finished:
        pair.kv()
    for _ in range(40):
        if pair.d.state is DecodeState.ABORTED:
            # The KV came before P's Open, or long before t1: the ordinary path.
            assert pair.d.abort_reason in (AbortReason.NOT_OPENED, AbortReason.TIMEOUT)
            assert pair.client == [] and pair.d.relayed == 0
            return
        pair.replay()
        own()
        pair.wait(1)
    assert pair.ended_well()


def test_control_channel_lost_and_KV_arrives_then_D_takes_over_alone():
    pair = Pair()
    pair.sample(3)
    pair.deliver()
    pair.lost = lambda message: True
    pair.sample(2)  # D never hears of these
    pair.kv()
    pair.replay()
    pair.wait(TIMING.lease + TIMING.margin)
    assert pair.d.alone and pair.d.boundary == 4 and pair.p.state is PrefillState.PAUSED
    pair.replay()
    pair.own()
    pair.wait(TIMING.silence)
    assert pair.p.state is PrefillState.ABORTED, "P times out, stops, frees"
    assert pair.ended_well()


def test_control_channel_back_after_D_took_over_then_P_hears_of_it():
    pair = Pair()
    pair.sample(3)
    pair.deliver()
    pair.lost = lambda message: True
    pair.sample(2)
    pair.kv()
    pair.replay()
    pair.wait(TIMING.lease + TIMING.margin)
    pair.own()
    pair.lost = lambda message: False
    pair.wait(TIMING.resend)
    assert pair.p.state is PrefillState.COMMITTED and pair.p.boundary == 4
    assert pair.ended_well()


def test_only_the_way_to_D_is_lost_then_P_seals_and_D_takes_over_alone():
    pair = Pair()
    pair.sample(3)
    pair.deliver()
    pair.lost = lambda message: isinstance(message, (Append, Sealed))
    pair.kv()
    pair.replay()
    pair.deliver()
    assert pair.p.state is PrefillState.SEALED
    pair.wait(TIMING.lease + TIMING.margin)
    assert pair.d.alone
    pair.own()
    pair.wait(TIMING.resend)
    assert pair.ended_well()


def test_P_dies_and_KV_has_not_arrived_then_an_error_within_the_timeout():
    pair = Pair()
    pair.deliver()
    pair.d.kv_failed(pair.d_now)
    pair.seconds += TIMING.silence - 0.1
    assert not pair.d.hopeless(pair.d_now)
    pair.seconds += 0.1
    assert pair.d.hopeless(pair.d_now)


def test_D_dies_then_P_stops_bridging_at_its_lease_and_frees_after_its_timeout():
    pair = Pair(99)
    pair.deliver()
    pair.lost = lambda message: True
    pair.to_p.clear()
    for _ in range(20):
        pair.sample()
        pair.wait(1)
        if pair.seconds >= TIMING.lease:
            assert not pair.p.may_generate(pair.p_now)
    assert pair.p.state is PrefillState.ABORTED
    assert pair.seconds >= TIMING.lease + TIMING.silence


def test_prompt_KV_transfer_fails_then_P_goes_on_and_D_relays_to_the_end():
    pair = Pair()
    pair.sample(2)
    pair.deliver()
    assert pair.d.kv_failed(pair.d_now)
    for _ in range(12):
        pair.sample()
        pair.wait(1)
    assert pair.ended_well()


def test_prompt_KV_transfer_fails_and_the_budget_ends_then_an_error():
    pair = Pair(budget=3)
    pair.sample(9)
    pair.deliver()
    pair.d.kv_failed(pair.d_now)
    assert pair.d.hopeless(pair.d_now)


def resumed(pair):
    sealed(pair)
    pair.say(pair.to_p, pair.d.resume(pair.d_now))
    return pair


def test_no_room_on_D_then_P_goes_on_to_the_end():
    pair = resumed(Pair())
    pair.deliver()
    assert pair.p.may_generate(pair.p_now) and pair.p.term == pair.d.term == 2
    pair.room = False
    for _ in range(12):
        pair.sample()
        pair.wait(1)
    assert pair.ended_well()


def test_no_room_on_D_then_P_goes_on_until_there_is():
    pair = resumed(Pair(end=30))
    for _ in range(6):
        pair.deliver()
        pair.sample()
        pair.wait(1)
    assert pair.p.may_generate(pair.p_now) and pair.d.state is DecodeState.REPLAYING
    pair.replay()
    pair.kv()
    pair.deliver()
    pair.replay()
    pair.own()
    pair.deliver()
    assert pair.ended_well() and pair.d.term == 2


def test_no_room_on_D_until_Ps_budget_is_spent():
    """... then D waits with all that it needs, and P's part is over."""
    pair = resumed(Pair(end=30, budget=12))
    for _ in range(12):
        pair.deliver()
        pair.sample()
        pair.wait(1)
    assert pair.d.state is DecodeState.DRAINING and not pair.d.hopeless(pair.d_now)
    pair.replay()
    pair.own()
    pair.deliver()
    assert pair.ended_well()


def test_a_lost_resume_comes_again():
    pair = Pair()
    sealed(pair)
    lose(pair, Resume, 2)
    pair.say(pair.to_p, pair.d.resume(pair.d_now))
    pair.wait(3)
    for _ in range(12):
        pair.sample()
        pair.wait(1)
    assert pair.ended_well()


def test_resume_while_the_last_entries_are_lost():
    """D has the seal, not all it covers, and can't take over."""
    pair = Pair()
    pair.sample(4)
    pair.deliver()
    pair.kv()
    pair.replay()
    lose(pair, Append)
    pair.sample()
    pair.lost = lambda message: False
    pair.deliver()
    assert pair.d.state is DecodeState.DRAINING and not pair.d.log.complete
    pair.say(pair.to_p, pair.d.resume(pair.d_now))
    for _ in range(12):
        pair.deliver()
        pair.sample()
        pair.wait(1)
    assert pair.ended_well()


def test_resume_that_crosses_an_end_on_P():
    """D gives the request back before Sealed comes; P, meanwhile, has sampled the end."""
    pair = Pair(5)
    pair.sample(3)
    pair.deliver()
    pair.kv()
    pair.replay()
    pair.to_p.clear()  # the seal request
    pair.say(pair.to_p, pair.d.resume(pair.d_now))
    pair.sample()
    while pair.to_d:
        pair.deliver(pair.to_d)
    pair.wait(2)
    assert pair.ended_well()


def test_FENCED_a_late_seal_request_does_not_end_what_resume_has_begun():
    pair = Pair()
    sealed(pair)
    late = encode(SealRequest(pair.d.room, pair.d.nonce, 1, 0))
    pair.say(pair.to_p, pair.d.resume(pair.d_now))
    pair.deliver()
    pair.to_p.append(late)
    for _ in range(12):
        pair.deliver()
        pair.sample()
        pair.wait(1)
    assert pair.ended_well()


@pytest.mark.parametrize("phase", ["before t1", "relaying", "replaying", "sealed", "owner"])
def test_client_disconnects_at_any_moment(phase):
    pair = Pair()
    if phase != "before t1":
        pair.sample(3)
        pair.deliver()
    if phase in ("replaying", "sealed", "owner"):
        pair.kv()
        assert pair.d.state is DecodeState.REPLAYING
    if phase in ("sealed", "owner"):
        pair.replay()
        pair.sample()
        pair.deliver()
        assert pair.d.state is DecodeState.DRAINING
    if phase == "owner":
        pair.replay()
    pair.say(pair.to_p, pair.d.abort(pair.d_now, AbortReason.CLIENT))
    pair.deliver()
    pair.wait(TIMING.resend)  # D knows P's endpoint only from its Open
    assert pair.p.done and pair.d.done
    assert pair.d.take_relay() == []


def test_P_aborts_while_bridging_then_D_takes_over_alone():
    pair = Pair()
    pair.sample(3)
    pair.deliver()
    pair.say(pair.to_d, pair.p.abort(pair.p_now, AbortReason.CLIENT))
    pair.deliver()
    pair.kv()
    pair.replay()
    pair.own()
    assert pair.ended_well() and pair.d.alone


def test_sealed_then_silence_from_D_then_P_frees():
    pair = sealed(Pair())
    pair.lost = lambda message: True
    pair.wait(TIMING.commit)
    assert pair.p.state is PrefillState.ABORTED
    assert pair.p.abort_reason is AbortReason.TIMEOUT


def test_a_P_that_gave_up_too_early_costs_only_the_entries_that_D_lacks():
    """P's commit timeout meets a D that is slow, not dead."""
    pair = sealed(Pair())
    pair.seconds += TIMING.commit
    pair.say(pair.to_d, pair.p.tick(pair.p_now))
    pair.deliver()
    while pair.replay():
        pass
    pair.own()
    assert pair.ended_well()
