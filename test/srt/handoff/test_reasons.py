"""Every reason that can be counted has words for an operator, and no words are for nothing."""

import ast
import inspect
import re
from pathlib import Path

from sglang.srt.disaggregation.handoff import eligibility, reasons
from sglang.srt.disaggregation.handoff.messages import AbortReason
from sglang.srt.managers import scheduler_handoff_decode_mixin as decode
from sglang.srt.managers import scheduler_handoff_prefill_mixin as prefill


def misfits():
    """The labels in ``request_misfit``: the second of each pair."""
    tree = ast.parse(inspect.getsource(eligibility.request_misfit))
    pairs = [node for node in ast.walk(tree) if isinstance(node, ast.Tuple) and len(node.elts) == 2]
    return {pair.elts[1].value for pair in pairs if isinstance(pair.elts[1], ast.Constant)}


def test_every_reason_is_explained():
    aborts = {reason.name.lower() for reason in AbortReason if reason is not AbortReason.DONE}
    offers = {"no_offer", "offer_repeated", "offer_version", "offer_malformed", "peer_silent"}
    before = {"rebootstrap", "retracted"}
    assert {"not_greedy", "penalties", "multimodal"} < misfits()
    assert reasons.REASONS.keys() == misfits() | aborts | offers | before
    assert reasons.EXPECTED <= reasons.REASONS.keys()


def test_the_mixins_name_these_reasons():
    """Those that are written there by hand."""
    assert all(f'"{reason}"' in inspect.getsource(prefill) for reason in ("offer_repeated", "no_offer", "peer_silent"))
    assert '"rebootstrap"' in inspect.getsource(decode) and '"retracted"' in inspect.getsource(decode)


OPERATIONS = Path(__file__).parents[3] / "docs" / "seamless_handoff_operations.md"
SOURCES = Path(reasons.__file__).parents[2]


def documented():
    """The reasons in the first columns of the two tables under "Reasons": of requests, of dropped messages."""
    section = OPERATIONS.read_text().split("## Reasons\n")[1].split("\n## ")[0]
    tables = section.split("`reason` in `sglang:handoff_dropped_messages_total`")
    assert len(tables) == 2
    rows = [re.findall(r"^\| (`.*?) \|", table, re.M) for table in tables]
    return [re.findall(r"`(\w+)`", " ".join(first)) for first in rows]


def drops():
    """The labels that the sources give to what they drop."""
    found = set()
    for file in [*SOURCES.glob("disaggregation/handoff/*.py"), *SOURCES.glob("managers/scheduler_handoff*.py")]:
        for call in ast.walk(ast.parse(file.read_text())):
            name = getattr(getattr(call, "func", None), "attr", getattr(getattr(call, "func", None), "id", ""))
            if name in ("drop", "_reject", "FrameError") and isinstance(call.args[0], ast.Constant):
                found.add(call.args[0].value)
    return found | {"offer_version", "offer_malformed"}


def test_the_operators_tables_have_each_reason_once():
    requests, messages = documented()
    assert {"unknown_session", "vocabulary", "malformed"} < drops()
    assert sorted(requests) == sorted(reasons.REASONS)
    assert sorted(messages) == sorted(drops())


def test_an_unknown_reason_is_shown_as_it_is():
    assert reasons.explain("brand_new") == "brand_new"
    assert "temperature" in reasons.explain("not_greedy")
