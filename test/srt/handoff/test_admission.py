"""Who is bridged, and when a bridge makes way, with figures that can be done in the head."""

import pytest

from sglang.srt.disaggregation.handoff.admission import (
    ADMITTED,
    DECODE_IS_BUSY,
    MOST_CREDIT,
    PROMPTS_WAIT,
    TOO_MANY,
    BridgeAdmission,
    Limits,
    Transfers,
)

NOW = 1_000.0
STEP, PER_TOKEN, LINK = 0.01, 0.001, 0.002  # seconds: a bridge step, a prompt token, a token of KV


def sees(link, at, seconds, tokens=100):
    """A transfer alone on the link, looked at all the time."""
    link.begins(at, "seen", tokens)
    link.goes_on(at + seconds, "seen")
    link.ends(at + seconds, "seen", True)


def transfers(*lengths, per_token=LINK):
    """A link that has been seen, and so many transfers queued NOW, named 0, 1, ..."""
    link = Transfers()
    for number in range(20):
        sees(link, number, per_token * (100 + number), 100 + number)
    for name, tokens in enumerate(lengths):
        link.begins(NOW, name, tokens)
    return link


def admission(*lengths, tokens=512, requests=8, share=0.1):
    found = BridgeAdmission(Limits(tokens, requests, share))
    found.transfers = transfers(*lengths)
    for n in range(1, 20):
        found.prompts_took(100 * n, PER_TOKEN * 100 * n)
        found.step_took(STEP)
    return found


# --------------------------------------------------------------------------- transfers
def test_nothing_is_known_before_a_transfer_was_seen():
    link = Transfers()
    link.begins(NOW, 0, 100)
    assert link.remaining(NOW, 0) is None and link.remaining(NOW, "unheard of") is None


def test_a_transfer_waits_for_those_before_it():
    link = transfers(100, 200, 300)
    assert [link.remaining(NOW, name) for name in range(3)] == pytest.approx([0.2, 0.6, 1.2])
    assert link.remaining(NOW + 0.15, 1) == pytest.approx(0.45)


def test_the_next_one_begins_when_one_has_ended():
    link = transfers(100, 200)
    link.goes_on(NOW + 0.2, 0)
    link.ends(NOW + 0.2, 0, True)
    assert link.remaining(NOW + 0.2, 1) == pytest.approx(0.4)


def test_a_transfer_does_not_begin_before_it_was_queued():
    """Each is queued at the end of a forward of 3 s, just before P sees that the last one is over. The link was idle
    most of that time, and a look right after finds the new one under way."""
    link = transfers(100)
    for number in range(1, 20):
        now = NOW + 3 * number
        link.begins(now, number, 100)
        link.ends(now, number - 1, True)
        assert link.remaining(now, number) == pytest.approx(0.2)
        link.goes_on(now + 0.01, number)


def test_an_end_seen_late_teaches_nothing_and_the_next_one_has_begun_meanwhile():
    """P was in a forward of 3 s; the transfer of 0.2 s ended in it, and so did most of the next one's."""
    link = transfers(100, 200, 100)
    link.ends(NOW + 0.55, 0, True)
    assert link.remaining(NOW + 0.55, 1) == pytest.approx(0.05)
    link.ends(NOW + 3, 1, True)
    link.begins(NOW + 9, 3, 100)
    link.ends(NOW + 20, 2, True)
    link.ends(NOW + 20, 3, True)
    link.begins(NOW + 30, 4, 100)
    assert link.remaining(NOW + 30, 4) == pytest.approx(0.2)


def test_bounds_put_a_wrong_estimate_right():
    slower, faster = transfers(), transfers()
    for number in range(60):
        slower.begins(NOW + 10 * number, "x", 100)
        slower.goes_on(NOW + 10 * number + 0.5, "x")  # and ends somewhere in the next forward
        slower.ends(NOW + 10 * number + 2, "x", True)
        faster.begins(NOW + 10 * number, "x", 100)
        faster.ends(NOW + 10 * number + 0.05, "x", True)
    for link, expected in ((slower, 0.5), (faster, 0.05)):
        link.begins(NOW + 1000, "y", 100)
        assert link.remaining(NOW + 1000, "y") == pytest.approx(expected, rel=0.01)


def test_a_failed_transfer_teaches_nothing():
    link = transfers(100, 200)
    link.ends(NOW + 60, 0, False)
    assert link.remaining(NOW + 60, 1) == pytest.approx(0.4)
    assert link.remaining(NOW + 60, 0) is None


def test_waiting_for_an_earlier_one_is_not_the_links_time():
    link = transfers(100, 100)
    link.goes_on(NOW + 0.2, 0)
    link.goes_on(NOW + 0.2, 1)  # queued
    link.ends(NOW + 0.2, 0, True)
    link.goes_on(NOW + 0.4, 1)
    link.ends(NOW + 0.4, 1, True)
    link.begins(NOW + 9, 2, 100)
    assert link.remaining(NOW + 9, 2) == pytest.approx(0.2)


@pytest.mark.parametrize("later, known", [(0.2, 0.0), (0.39, 0.0), (0.41, None)])
def test_of_a_transfer_that_has_stalled_nothing_is_known(later, known):
    link = transfers(100)
    link.goes_on(NOW + later, 0)
    assert link.remaining(NOW + later, 0) == known


def test_a_transfer_not_looked_at_has_not_stalled():
    """P comes out of a forward and has not looked yet."""
    link = transfers(100, 200)
    assert link.remaining(NOW + 60, 0) == 0 and link.remaining(NOW + 60, 1) == 0


# --------------------------------------------------------------------------- admission
@pytest.mark.parametrize(
    "waiting, expected",
    # the KV is under way for 0.2 s, a prompt token takes 1 ms, a step 10 ms
    [(0, ADMITTED), (100, ADMITTED), (189, ADMITTED), (191, PROMPTS_WAIT), (5000, PROMPTS_WAIT)],
)
def test_prompts_that_wait_leave_no_time(waiting, expected):
    assert admission(100).refusal(NOW, 0, waiting, 0, 0) == expected


def test_nothing_waits_then_a_short_transfer_is_no_reason():
    """The step would come for nothing, but nobody waits for P; and a transfer may stall."""
    assert admission(1).refusal(NOW, 0, 0, 0, 0) == ADMITTED


@pytest.mark.parametrize("worth, expected", [(0, ADMITTED), (19, ADMITTED), (21, DECODE_IS_BUSY)])
def test_a_busy_D_takes_only_what_pays(worth, expected):
    assert admission(100).refusal(NOW, 0, 0, 0, worth) == expected


@pytest.mark.parametrize("bridging, expected", [(7, ADMITTED), (8, TOO_MANY)])
def test_only_so_many_at_once(bridging, expected):
    assert admission(100).refusal(NOW, 0, 0, bridging, 0) == expected


def test_without_figures_a_request_is_bridged():
    fresh = BridgeAdmission(Limits(512, 8, 0.1))
    fresh.transfers.begins(NOW, 0, 100)
    assert fresh.refusal(NOW, 0, 5000, 0, 99) == ADMITTED
    assert not fresh.ends_within(NOW, 0, 5000)


def test_prompts_that_outlast_the_transfer_need_no_figure_of_a_step():
    found = BridgeAdmission(Limits(512, 8, 0.1))
    found.transfers = transfers(100)
    found.prompts_took(100, PER_TOKEN * 100)
    found.prompts_took(300, PER_TOKEN * 300)
    assert found.refusal(NOW, 0, 201, 0, 0) == PROMPTS_WAIT
    assert found.refusal(NOW, 0, 199, 0, 0) == ADMITTED


# ----------------------------------------------------------------- prompts that bootstrap
USUAL = 0.030  # seconds from a prompt's coming to D's word


def hears_of_bootstraps(*lengths):
    found = admission(*lengths)
    for _ in range(5):
        found.bootstrap_took(USUAL, at_most=False)
    return found


# The KV is under way for 0.2 s, a prompt token takes 1 ms, a step 10 ms.
@pytest.mark.parametrize(
    "tokens, waited, worth, expected",
    [
        (250, 0.021, 0, PROMPTS_WAIT),  # in 9 ms, before the first token, and the KV has gone when its forward ends
        (250, 0.019, 0, ADMITTED),
        (250, 0.019, 2, PROMPTS_WAIT),  # 2 tokens would pay, 1 is all
        (250, 0.040, 0, PROMPTS_WAIT),  # any moment now
        (250, 0.061, 0, ADMITTED),  # D may have no room for it for long
        (150, 0.021, 0, ADMITTED),  # the bridge goes on after it
    ],
)
def test_a_prompt_that_is_about_to_come_leaves_no_time_either(tokens, waited, worth, expected):
    assert hears_of_bootstraps(100).refusal(NOW, 0, 0, 0, worth, [(1, 0.0), (tokens, waited)]) == expected


def test_nobody_knows_when_a_prompt_comes_before_one_has():
    assert admission(100).refusal(NOW, 0, 0, 0, 0, [(5000, 0.0)]) == ADMITTED


@pytest.mark.parametrize("late, usual", [(5.0, USUAL), (0.020, 0.020)], ids=["after a long forward", "sooner than usual"])
def test_Ds_word_read_after_a_forward_came_no_later_than_that(late, usual):
    found = hears_of_bootstraps(100)
    for _ in range(60):
        found.bootstrap_took(late, at_most=True)
    about_a_step = usual - STEP
    assert found.refusal(NOW, 0, 0, 0, 0, [(250, about_a_step - 0.001)]) == ADMITTED
    assert found.refusal(NOW, 0, 0, 0, 0, [(250, about_a_step + 0.001)]) == PROMPTS_WAIT


def test_a_first_word_read_after_a_forward_tells_nothing():
    found = admission(100)
    found.bootstrap_took(USUAL, at_most=True)
    assert found.refusal(NOW, 0, 0, 0, 0, [(250, USUAL)]) == ADMITTED


# --------------------------------------------------------------------------- making way
@pytest.mark.parametrize("tokens, ends", [(150, False), (250, True)])
def test_a_bridge_makes_way_for_a_forward_longer_than_its_transfer(tokens, ends):
    assert admission(100).ends_within(NOW, 0, tokens) is ends


def test_a_stalled_transfer_ends_within_no_forward():
    found = admission(100)
    found.transfers.goes_on(NOW + 1, 0)
    assert not found.ends_within(NOW + 1, 0, 5000)


def steps_taken(found, seconds, busy):
    """How many steps P takes while prompts wait for so long; ``busy`` is what their forwards take of it."""
    at, steps = NOW, 0
    found.may_step(at, prompts_wait=True)
    found._credit = 0.0
    while at < NOW + seconds:
        at += 0.003
        found.prompts_took(3, 0.003 * busy)
        steps += found.may_step(at, prompts_wait=True)
    return steps


@pytest.mark.parametrize("share, busy", [(0.1, 1.0), (0.0, 0.7), (0.05, 0.9)])
def test_steps_take_the_time_that_prompts_leave_and_their_share(share, busy):
    assert steps_taken(admission(share=share), 30, busy) * STEP == pytest.approx(30 * (share + 1 - busy), rel=0.05)


def test_a_P_that_is_never_idle_takes_no_step_without_a_share():
    assert steps_taken(admission(share=0.0), 30, busy=1.0) == 0


def test_a_step_is_work_too():
    found = admission(share=0.0)
    found.may_step(NOW, prompts_wait=False)
    for n in range(1, 5):
        found.step_took(STEP)
        assert found.may_step(NOW + n * STEP, prompts_wait=False), "nothing waits"
    assert not found.may_step(NOW + 4 * STEP, prompts_wait=True), "P was not idle"


def test_an_idle_hour_is_no_hour_of_steps():
    found = admission(share=0.0)
    found.may_step(NOW, prompts_wait=False)
    steps = sum(found.may_step(NOW + 3600, prompts_wait=True) for _ in range(1000))
    assert steps * STEP == pytest.approx(MOST_CREDIT, rel=0.02)


@pytest.mark.parametrize("changes, says", [({"tokens": 0}, "BRIDGE_TOKENS must be at least 1"), ({"requests": -1}, "BRIDGES must be at least 0"), ({"share": 1.5}, "SHARE must be between 0 and 1")])
def test_limits_out_of_range_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        Limits(**{"tokens": 1, "requests": 1, "share": 0.1} | changes)


def test_without_weighing_every_request_is_bridged_and_none_makes_way():
    found = admission(100, share=0.0, requests=0)
    assert found.refusal(NOW, 0, 5000, 0, 99) == TOO_MANY and found.makes_way(NOW, 0, False, 5000)
    assert found.makes_way(NOW, 0, True, 1), "its KV has gone"
    found.limits = Limits(512, 0, 0.0, weighs=False)
    assert found.refusal(NOW, 0, 5000, 0, 99) == ADMITTED and found.may_step(NOW, prompts_wait=True)
    assert not found.makes_way(NOW, 0, False, 5000) and not found.makes_way(NOW, 0, True, 1)
