"""The figures of the pages are those of docs/figures.toml."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from helpers.package import ROOT
from helpers.page_blocks import PAGES, name_page

FIGURES = ROOT / "docs" / "figures.toml"
TABLES = {"tcp": {"one": 4.22, "two": 1604.9}}


@pytest.fixture(scope="module")
def hook() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tests" / "docs" / "figures.py"))


def test_the_file_has_what_the_benchmarks_measured(hook: dict[str, Any]) -> None:
    text = FIGURES.read_text()
    benchmarks = "".join(page.read_text() for page in hook["TABLES"])
    assert hook["fill_figures"](text, benchmarks) == text, "run make figures"


def test_the_summary_has_the_figures_of_all_results(hook: dict[str, Any]) -> None:
    results, page = (each.read_text() for each in hook["TABLES"])
    summary = page.partition("<!-- benchmark summary: begin -->")[2].partition("<!--")[0]
    heading = "A client that sums every column"
    for part, whole in zip(summary.split(heading), results.split(heading), strict=True):
        rows = {row["batch"]: row for row in hook["_read_rows"](part) if "batch" in row}
        known = {row["batch"]: row for row in hook["_read_rows"](whole) if "raw" in row}
        assert rows
        assert [row for size, row in rows.items() if not row.items() <= known[size].items()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_the_figures_of_a_page_are_those_of_the_file(page: Path, hook: dict[str, Any]) -> None:
    tables = hook["read_figures"](FIGURES.read_text())
    assert hook["fill_page"](page.read_text(), tables) == page.read_text(), "run make figures"


def test_no_mark_begins_a_line() -> None:
    assert [name_page(page) for page in PAGES if "\n<!-- figures " in page.read_text()] == []


def test_a_stale_figure_is_replaced_with_the_decimals_of_the_page(hook: dict[str, Any]) -> None:
    page = "With 8 MiB: <!-- figures tcp: one two -->3.9 GB/s and 300 µs, on 2 cores."
    filled = "With 8 MiB: <!-- figures tcp: one two -->4.2 GB/s and 1,605 µs, on 2 cores."
    assert hook["fill_page"](page, TABLES) == filled
    assert hook["fill_page"](filled, TABLES) == filled


def test_a_mark_of_an_unknown_figure_or_without_a_number_is_an_error(hook: dict[str, Any]) -> None:
    with pytest.raises(KeyError, match="three"):
        hook["fill_page"]("<!-- figures tcp: three -->1", TABLES)
    with pytest.raises(ValueError, match="2 names, but 1 numbers"):
        hook["fill_page"]("<!-- figures tcp: one two -->1", TABLES)
