"""Patterns match what those of shells match."""

from __future__ import annotations

import pytest

from splitarrow.publication.patterns import (
    compile_pattern,
    has_wildcards,
    name_location,
    split_pattern,
)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a?.csv", ["ab.csv", "a?.csv", "ab.csv/c/d"], ["a.csv", "abc.csv", "a/.csv", "x/ab.csv"]),
        ("*.csv", [".csv", "a.csv", "a\nb.csv"], ["a/b.csv", "acsv", "a.csvx"]),
        ("*/*.csv", ["a/b.csv"], ["b.csv", "a/b/c.csv"]),
        ("**/b", ["b", "a/b", "x/y/b", "b/c"], ["ab", "a/bc"]),
        ("a/**", ["a/", "a/b", "a/b/c"], ["a", "ab"]),
        ("[a-c]", ["a", "b"], ["d", "-", "ab", "[a-c]"]),
        ("[!a-c]", ["d", "!"], ["a", ""]),
        ("[]x]", ["]", "x"], ["[]x]"]),
        ("[^a]", ["^", "a"], ["b"]),
        ("[\\]", ["\\"], ["]"]),
        ("a.b", ["a.b"], ["axb"]),
        ("[a", ["[a"], ["a"]),
    ],
)
def test_a_pattern_matches_names_and_what_is_in_folders(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    matches = compile_pattern(pattern).fullmatch
    assert [name for name in (*matching, *others) if matches(name)] == matching


@pytest.mark.parametrize(
    ("location", "folder", "pattern"),
    [
        ("s3://lake/a/*/b?.csv", "s3://lake/a", "*/b?.csv"),
        ("*.csv", ".", "*.csv"),
        ("/*.csv", "/", "*.csv"),
        ("a/b[0]/", "a", "b[0]"),
        ("a/b*c*", "a", "b*c*"),
        ("a/b/", "a/b/", ""),
    ],
)
def test_a_pattern_begins_below_its_folder(location: str, folder: str, pattern: str) -> None:
    assert split_pattern(location) == (folder, pattern)
    assert has_wildcards(location) == bool(pattern)


@pytest.mark.parametrize(
    ("location", "name"),
    [("a/b.arrow", "b"), ("a/b/", "b"), ("s3://lake/trips/y=*/*.csv", "trips"), ("a/b/..", "a")],
)
def test_a_location_is_named_by_its_last_part(location: str, name: str) -> None:
    assert name_location(location) == name
