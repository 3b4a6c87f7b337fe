"""Whom a worker has met, for /server_info."""

import json

from sglang.srt.disaggregation.handoff.peers import MAX_PEERS, PeerTable


def only(table):
    (peer,) = table.summary()
    return peer


def test_an_open_is_an_agreement():
    table = PeerTable()
    table.offered("10.0.0.1:8998")
    assert only(table) == {
        "peer": "10.0.0.1:8998", "agreed": None, "offers": 1, "opened": 0, "refused": {}, "endpoint": None,
    }  # fmt: skip
    table.opened("10.0.0.1:8998", "tcp://10.0.0.1:5001")
    assert only(table)["agreed"] is True and only(table)["endpoint"] == "tcp://10.0.0.1:5001"
    json.dumps(table.summary())


def test_what_was_heard_last_counts():
    table = PeerTable()
    table.opened("p", None)
    table.refused("p", "config")
    assert only(table)["agreed"] is False
    table.opened("p", None)
    assert only(table)["agreed"] is True and only(table)["refused"] == {"config": 1}


def test_a_silent_peer_has_not_answered():
    table = PeerTable()
    table.refused("p", "not_opened", silent=True)
    assert only(table)["agreed"] is None
    table.opened("p", None)
    table.refused("p", "not_opened", silent=True)
    assert only(table)["agreed"] is True and only(table)["refused"] == {"not_opened": 2}


def test_those_not_met_for_longest_are_forgotten():
    table = PeerTable()
    for number in range(MAX_PEERS):
        table.offered(str(number))
    table.offered("0")
    table.offered("new")
    names = [peer["peer"] for peer in table.summary()]
    assert len(table) == MAX_PEERS and names[:2] == ["new", "0"] and "1" not in names
