"""The benchmark of Vortex: the limited link, and a short run of one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.benchmarks.studies.vortex import (
    BEGIN,
    END,
    FORMATS,
    LINKS,
    Figure,
    TokenBucket,
    linked,
    make_tables,
    markdown_tables,
    measure_table,
    save_markdown,
)


def test_a_bucket_keeps_its_speed() -> None:
    bucket = TokenBucket(1000.0, 10.0)
    now = 10.0
    for _ in range(50):
        now += bucket.take(100, now)
    assert now == pytest.approx(15.0, abs=0.01)


def test_a_bucket_does_not_save_up_what_was_not_sent() -> None:
    bucket = TokenBucket(1000.0, 10.0)
    bucket.take(100, 10.0)
    assert bucket.take(100, 100.0) == pytest.approx(0.1, abs=0.01)


def test_a_read_over_a_link_is_equal() -> None:
    table = pa.table({"n": range(100_000)})
    with (
        splitarrow.serve({"data": table}) as server,
        linked(server.uri("data"), 1e8) as uri,
        splitarrow.open(uri) as stream,
    ):
        assert uri != server.uri("data")
        assert stream.read_all() == table


@pytest.fixture
def figures() -> list[Figure]:
    figure = Figure("t", "arrow", "loopback", 1000, 500, 2e9, 0.5, 0.25)
    return [
        replace(figure, format=each, link=link, rate=4e9 if each == "vortex" else 2e9)
        for link in LINKS
        for each in FORMATS
    ]


def test_the_tables_name_every_format_and_link(figures: list[Figure]) -> None:
    text = markdown_tables(figures)
    assert text.count("| t | 2.00 | 2.00 | 2.00 | 4.00 | 2.0 |") == len(LINKS)
    assert "| t | 2.0 | 2.0 | 2.0 |" in text
    assert "0.50 + 0.25" in text


def test_a_page_gets_all_tables(figures: list[Figure], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    save_markdown(figures, page)
    assert page.read_text() == f"before\n{BEGIN}\n\n{markdown_tables(figures)}\n{END}\nafter\n"


@pytest.mark.long
@pytest.mark.xdist_group("benchmark")
def test_a_table_is_measured_in_every_format(tmp_path: Path) -> None:
    name, batches = next(make_tables(1 << 20))
    figures = measure_table(name, batches, tmp_path, 1)
    assert [(each.format, each.link) for each in figures] == [
        (format, link) for link in LINKS for format in FORMATS
    ]
    sizes = {each.format: each.wire_bytes for each in figures}
    assert sizes["vortex"] < sizes["lz4"] < sizes["arrow"]
    assert all(each.rate > 0 and each.arrow_bytes == 1 << 20 for each in figures)
