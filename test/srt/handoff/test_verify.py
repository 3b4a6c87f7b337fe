"""The comparison of a replay's predictions with the log."""

from sglang.srt.disaggregation.handoff.log import HandoffLog
from sglang.srt.disaggregation.handoff.verify import MAX_NOTED, Mismatch, Prediction, ReplayVerification


def log_of(*ids):
    log = HandoffLog()
    log.extend(1, ids)
    return log


def says(*tokens, margin=1.0):
    return [Prediction(token, margin) for token in tokens]


def test_a_round_predicts_the_entries_after_its_own():
    """Entries 1 and 2 are replayed: they predict 2 and 3."""
    verification = ReplayVerification()
    verification.predicted(2, says(12, 13))
    assert verification.compare(log_of(11, 12, 13)) == (2, [])
    assert verification.summary() == {"compared": 2, "mismatches": 0, "noted": []}


def test_the_last_prediction_waits_for_its_entry():
    verification, log = ReplayVerification(), log_of(11, 12)
    verification.predicted(2, says(12, 99, margin=0.25))
    assert verification.compare(log) == (1, [])
    assert verification.compare(log) == (0, []), "nothing is compared twice"
    log.extend(3, [13])
    assert verification.compare(log) == (1, [Mismatch(3, 13, 99, 0.25)])
    assert (verification.compared, verification.mismatches) == (2, 1)


def test_a_prediction_beyond_the_boundary_is_never_compared():
    verification, log = ReplayVerification(), log_of(11, 12)
    log.close(2)
    verification.predicted(2, says(12, 99))
    verification.compare(log)
    assert verification.summary() == {"compared": 1, "mismatches": 0, "noted": []}


def test_every_mismatch_is_counted_and_the_first_ones_are_named():
    verification = ReplayVerification()
    log = log_of(*range(1, 100))
    verification.predicted(2, says(*[0] * 40, margin=0.5))
    number, found = verification.compare(log)
    assert (number, len(found), verification.mismatches) == (40, 40, 40)
    assert verification.summary()["noted"] == [
        {"entry": n, "logged": n, "predicted": 0, "margin": 0.5} for n in range(2, 2 + MAX_NOTED)
    ]
    verification.predicted(42, says(0))
    verification.compare(log)
    assert verification.mismatches == 41 and len(verification.noted) == MAX_NOTED
