"""docs/pull_request.md says of the patches what they are."""

import re

from fork import ROOT, pr

TEXT = (ROOT / "docs/pull_request.md").read_text()
ROW = re.compile(r"^\| `([^`]+\.py)` \| `([^`]+)` \| (\d+) \| (\S.*) \|$", re.MULTILINE)


def test_the_table_names_every_hook_with_its_lines():
    said = {(file, hook): int(lines) for file, hook, lines, _ in ROW.findall(TEXT)}
    is_ = pr.hook_table()
    wrong = [f"| `{f}` | `{h}` | {n} |" for (f, h), n in is_.items() if said.get((f, h)) != n]
    assert not wrong, "rows to add or correct:\n" + "\n".join(wrong)
    assert not (gone := said.keys() - is_.keys()), f"rows to drop: {gone}"


def test_the_sum_is_that_of_the_table():
    table = pr.hook_table()
    files = {file for file, _ in table}
    assert f"{sum(table.values())} lines inserted in {len(files)} files" in TEXT


def test_the_figures_are_those_of_the_docs():
    """The tiny model's, less one column; so that the two don't come to differ."""
    docs = (ROOT / "docs/measurements.md").read_text()
    arms = r"(\d+) \| (unified|PD|PD \+ handoff) \| (.*) \|$"
    said = [(n, arm, row.split(" | ")[:1]) for n, arm, row in re.findall(r"^\| " + arms, TEXT, re.MULTILINE)]
    is_ = [(n, arm, row.split(" | ")[:1]) for n, arm, row in re.findall(r"^\| tiny \| " + arms, docs, re.MULTILINE)]
    assert said and said == is_, "take docs/measurements.md's"
