"""Every link of the documents leads to what is there, in this repository and in the branch for upstream."""

import re
from pathlib import Path

import pytest

from fork import ROOT, placement
from fork.git import git

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def dead_links(document: Path, there: set[str]) -> list[str]:
    """Links of a document that lead to none of the files `there` (paths from ROOT), or to no heading of one."""
    dead = []
    for link in LINK.findall(document.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if target.relative_to(ROOT).as_posix() not in there or anchor and anchor not in anchors(target):
            dead.append(link)
    return dead


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, hyphens for spaces."""
    headings = HEADING.findall(document.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tracked() -> set[str]:
    return {name for name in git(ROOT, "ls-files").split("\n") if (ROOT / name).exists()}


def going() -> set[str]:
    parts = placement.product, placement.benchmarks, placement.docs, placement.tests
    return {name for part in parts for name in part()}


@pytest.mark.parametrize("files", [tracked, going])
def test_no_link_is_dead(files):
    there = files()
    documents = [name for name in there if name.endswith(".md")]
    assert len(documents) >= 2
    assert not {name: dead for name in documents if (dead := dead_links(ROOT / name, there))}


def test_dead_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("test_document_links.ROOT", tmp_path)
    document, other = tmp_path / "a.md", tmp_path / "b.md"
    other.write_text("# One `thing`, and more\n")
    document.write_text("[x](b.md) [x](b.md#one-thing-and-more) [x](https://example.org/c) [x](b.md#two) [x](c.md) [x](#no)")
    assert dead_links(document, {"a.md", "b.md"}) == ["b.md#two", "c.md", "#no"]
