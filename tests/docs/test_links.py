"""The links of the pages lead to files and headings that exist. No test opens the network."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from helpers.package import ROOT
from helpers.page_blocks import PAGES, name_page, read_anchors, read_links


def find_problem(page: Path, link: str) -> str | None:
    """Return what is wrong with a link to a file of the repository, if anything is."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None if parts.scheme in ("https", "mailto") else f"not https: {link}"
    target = page.parent / unquote(parts.path) if parts.path else page
    if not target.exists():
        return f"no such file: {link}"
    if parts.fragment and parts.fragment not in read_anchors(target):
        return f"no such heading: {link}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_the_links_of_a_page_exist(page: Path) -> None:
    assert [problem for link in read_links(page) if (problem := find_problem(page, link))] == []


def test_every_claim_about_attackers_names_a_test() -> None:
    page = (ROOT / "docs" / "threats.md").read_text()
    sections = [section.partition("\nIt can:\n") for section in page.split("\n## ")]
    attackers = [cannot for cannot, can, _ in sections if can]
    assert len(attackers) == 5
    for text in attackers:
        _, *claims = text.split("\n- ")
        assert len(claims) > 5
        for claim in claims:
            tests = re.findall(r"`(\w\S+/test_\w+\.py)::(test_\w+)`", claim)
            assert tests, f"no test: {claim}"
            for name, function in tests:
                assert f"def {function}(" in (ROOT / "tests" / name).read_text(), (name, function)


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    links = "[a](#a-heading) [b](#b) ![c](c.svg) [d](http://d) [e](e.md)"
    page.write_text(f"# A `heading`\n\n{links}\n")
    problems = [find_problem(page, link) for link in read_links(page)]
    assert problems == [
        None,
        "no such heading: #b",
        "no such file: c.svg",
        "not https: http://d",
        "no such file: e.md",
    ]
