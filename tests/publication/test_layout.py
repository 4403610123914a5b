"""The names of files of a published dataset."""

from __future__ import annotations

import pytest

from splitarrow.errors import UsageError
from splitarrow.publication.layout import (
    check_name,
    format_manifest_name,
    format_shard_name,
    parse_manifest_name,
)


@pytest.mark.parametrize("version", [1, 99_999_999, 100_000_000, 10**18 - 1])
def test_the_name_of_a_manifest_has_its_version(version: int) -> None:
    assert parse_manifest_name(format_manifest_name(version)) == version


@pytest.mark.parametrize(
    "name",
    [
        "_splitarrow/versions/00000000.json",
        "_splitarrow/versions/000000001.json",
        "_splitarrow/versions/1.json",
        "_splitarrow/versions/00000001.json.tmp",
        "_splitarrow/pruned/00000001.json",
        "x/_splitarrow/versions/00000001.json",
    ],
)
def test_other_names_are_no_manifest(name: str) -> None:
    assert parse_manifest_name(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.b.arrow", "a.b-0123456789abcdef.arrow"), ("a", "a-0123456789abcdef")],
)
def test_the_name_of_a_shard_has_its_hash(name: str, expected: str) -> None:
    assert format_shard_name(name, "0123456789abcdef" * 4) == expected


def test_a_name_has_up_to_128_harmless_characters() -> None:
    for name in ("a", "_x", "0", "A.b-c_d", "a" * 128):
        assert check_name(name, "job") == name
    for name in ("", ".a", "-a", "a/b", "a b", "é", "a" * 129):
        with pytest.raises(UsageError, match="is not a valid job name"):
            check_name(name, "job")
