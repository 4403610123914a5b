"""What several daemons tell of a dataset, taken together."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from splitarrow import errors
from splitarrow.client.described import DatasetInfo, Endpoint
from splitarrow.client.merging import Answer, listed, merge

SCHEMA = pa.schema([("n", pa.int64())])
AWAY = errors.ConnectError("cannot connect")
NONE = errors.NotFoundError("no dataset 'd'")


def info(
    ordinals: Iterable[int] = (),
    total: int | None = 4,
    snapshot: str = "s",
    version: str = "1",
    schema: pa.Schema = SCHEMA,
    sha256: str = "",
) -> DatasetInfo:
    endpoints = tuple(
        Endpoint(b"t", (), None, ordinal=n, rows=10 + n, nbytes=100, sha256=sha256 or f"sum of {n}")
        for n in ordinals
    )
    return DatasetInfo(
        "d", 99, 99, schema, "published", version, endpoints, snapshot, total if snapshot else None
    )


def plain(version: str, parts: int = 1) -> DatasetInfo:
    endpoints = tuple(Endpoint(b"t", ()) for _ in range(parts))
    return DatasetInfo("d", 7, 99, SCHEMA, "table", version, endpoints)


def test_shards_come_in_order_with_all_their_holders() -> None:
    merged = merge("d", [Answer("a", info([2, 0])), Answer("b", info([1, 2, 3], version="7"))])
    assert [endpoint.ordinal for endpoint in merged.info.endpoints] == [0, 1, 2, 3]
    assert [[copy.where for copy in part] for part in merged.parts] == [
        ["a"],
        ["b"],
        ["a", "b"],
        ["b"],
    ]
    assert [copy.shard for copy in merged.parts[2]] == [0, 1]
    assert [copy.version for copy in merged.parts[2]] == ["1", "7"]
    assert merged.info.endpoints[2].held_by == ("a", "b")
    assert (merged.info.rows, merged.info.bytes) == (46, 400)
    assert merged.info.version == "s"


def test_a_daemon_that_is_away_or_has_none_is_not_needed_where_all_is_there() -> None:
    whole = Answer("a", info(range(4)))
    assert merge("d", [whole, Answer("b", error=AWAY), Answer("c", error=NONE)]).info.rows == 46


def test_what_is_missing_is_named() -> None:
    answers = [Answer("a", info([0])), Answer("b", info([2])), Answer("c", error=NONE)]
    with pytest.raises(errors.DatasetError, match=r"shard 1, 3 of 4 is missing") as raised:
        merge("d", answers)
    assert "a has 0" in str(raised.value)
    assert "b has 2" in str(raised.value)
    assert "c (it has none)" in str(raised.value)
    answers[2] = Answer("c", error=AWAY)
    with pytest.raises(errors.ConnectError, match=r"1, 3 of 4 .* c \(cannot connect\)"):
        merge("d", answers)


def test_the_snapshot_that_is_whole_wins() -> None:
    old, new = info(range(4), snapshot="old"), info([0, 1], snapshot="new")
    merged = merge("d", [Answer("a", new), Answer("b", old)])
    assert merged.info.snapshot == "old"
    assert all(copy.where == "b" for part in merged.parts for copy in part)


def test_snapshots_that_differ_are_not_mixed() -> None:
    two = [Answer("a", info([0, 1], snapshot="x")), Answer("b", info([2, 3], snapshot="y"))]
    with pytest.raises(errors.DatasetError, match=r"'x' shard 2-3 .*'y' shard 0-1"):
        merge("d", two)
    both = [Answer("a", info(range(4), snapshot="x")), Answer("b", info(range(4), snapshot="y"))]
    with pytest.raises(errors.DatasetError, match=r"'x' at a; snapshot 'y' at b: name one"):
        merge("d", both)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (info([1], total=5), "number of shards"),
        (info([1], schema=pa.schema([("m", pa.int64())])), "schema"),
        (info([0], sha256="another"), "copies of shard 0 of 'd' differ: sha256"),
        (info([4]), "a shard 4 of 'd', which has 4"),
        (info([1, 1]), "shard 1 of 'd' twice"),
        (plain("1"), "of its own"),
    ],
)
def test_daemons_that_contradict_each_other(other: DatasetInfo, words: str) -> None:
    with pytest.raises(errors.DatasetError, match=words):
        merge("d", [Answer("a", info([0, 2, 3])), Answer("b", other)])


def test_one_shard_and_none() -> None:
    one = info([0], total=1)
    assert len(merge("d", [Answer("a", one), Answer("b", one)]).parts[0]) == 2
    empty = DatasetInfo("d", 0, 0, SCHEMA, "k", "1", (Endpoint(b"t", ()),), "s", 0)
    assert merge("d", [Answer("a", empty)]).parts == ()
    unused = DatasetInfo("d", 0, 0, SCHEMA, "k", "1", (Endpoint(b"t", ()),), "s", 1)
    assert len(merge("d", [Answer("a", unused), Answer("b", one)]).parts[0]) == 1


def test_plain_datasets_are_copies_only_if_their_versions_are_equal() -> None:
    alone = merge("d", [Answer("a", plain("1", 3)), Answer("b", error=NONE)])
    assert [copy.shard for part in alone.parts for copy in part] == [0, 1, 2]
    assert alone.info.rows == 7
    same = merge("d", [Answer("a", plain("1")), Answer("b", plain("1"))])
    assert [copy.where for copy in same.parts[0]] == ["a", "b"]
    for other in (plain("2"), plain("1", 2), plain("")):
        with pytest.raises(errors.DatasetError, match="name one daemon"):
            merge("d", [Answer("a", plain("1")), Answer("b", other)])
    with pytest.raises(errors.DatasetError, match="versions unknown at a"):
        merge("d", [Answer("a", plain("")), Answer("b", plain(""))])


def test_nowhere() -> None:
    with pytest.raises(errors.NotFoundError, match="'d'; asked were a, b"):
        merge("d", [Answer("a", error=NONE), Answer("b", error=NONE)])
    with pytest.raises(errors.ConnectError, match=r"a \(it has none\), b \(cannot connect\)"):
        merge("d", [Answer("a", error=NONE), Answer("b", error=AWAY)])
    denied = errors.remote_error("UNAUTHENTICATED", "who are you")
    with pytest.raises(errors.DeniedError, match="a: who are you; b: who are you") as raised:
        merge("d", [Answer("a", error=denied), Answer("b", error=denied)])
    assert raised.value.code == "UNAUTHENTICATED"


def test_a_listing_shows_what_cannot_be_read() -> None:
    found = listed("d", [Answer("a", info([0])), Answer("b", error=AWAY)])
    assert (found.name, found.kind, found.rows, found.endpoints) == ("d", "incomplete", None, ())
