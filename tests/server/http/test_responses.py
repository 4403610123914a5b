"""Ranges and entity tags, as RFC 9110 defines them."""

from __future__ import annotations

import pytest

from splitarrow.server.http.responses import matches_tag, parse_range, quote_tag


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-", (0, 100)),
        ("bytes=99-", (99, 100)),
        ("bytes=10-19", (10, 20)),
        ("bytes=10-1000", (10, 100)),
        ("bytes=10-9999999999999999999", (10, 100)),
        ("bytes=-1", (99, 100)),
        ("bytes=-1000", (0, 100)),
        (" bytes = 1 - 2 ", (1, 3)),
        ("bytes=20-10", None),
        ("bytes=-", None),
        ("bytes=0-1,5-9", None),
        ("bytes=0-99,0-99,0-99", None),
        ("bytes=x-9", None),
        ("bytes=+1-9", None),
        ("bytes=\u0661-9", None),
        ("bytes=0-99999999999999999999", None),
        ("items=0-1", None),
        ("", None),
    ],
)
def test_a_range_is_within_the_file_or_ignored(header: str, expected: object) -> None:
    assert parse_range(header, 100) == expected


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_a_range_without_bytes_cannot_be_satisfied(header: str) -> None:
    with pytest.raises(ValueError, match="100 bytes"):
        parse_range(header, 100)


def test_an_empty_file_has_no_ranges() -> None:
    for header in ("bytes=0-", "bytes=-5"):
        with pytest.raises(ValueError, match="0 bytes"):
            parse_range(header, 0)


def test_tags_are_compared_strongly_or_weakly() -> None:
    assert matches_tag("*", '"a"', weak=True)
    assert matches_tag('W/"a"', '"a"', weak=True)
    assert matches_tag('"x", "a"', 'W/"a"', weak=True)
    assert not matches_tag("", '"a"', weak=True)
    assert matches_tag('"x","a"', '"a"', weak=False)
    assert not matches_tag('W/"a"', 'W/"a"', weak=False)


def test_a_tag_has_no_characters_that_end_it() -> None:
    assert quote_tag("3-9f", 'a"\n\u00e9') == '"3-9f-a___xe9"'
