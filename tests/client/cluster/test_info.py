"""Merging the descriptions that several daemons give of one dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from splitarrow import errors
from splitarrow.client.cluster.info import DaemonInfo, merge, merge_for_listing
from splitarrow.client.rpc.info import DatasetInfo, Endpoint

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


def test_shards_are_in_order_with_all_their_replicas() -> None:
    merged = merge(
        "d", [DaemonInfo("a", info([2, 0])), DaemonInfo("b", info([1, 2, 3], version="7"))]
    )
    assert [endpoint.ordinal for endpoint in merged.info.endpoints] == [0, 1, 2, 3]
    assert [[copy.address for copy in part] for part in merged.replicas] == [
        ["a"],
        ["b"],
        ["a", "b"],
        ["b"],
    ]
    assert [copy.shard for copy in merged.replicas[2]] == [0, 1]
    assert [copy.version for copy in merged.replicas[2]] == ["1", "7"]
    assert merged.info.endpoints[2].held_by == ("a", "b")
    assert (merged.info.rows, merged.info.bytes) == (46, 400)
    assert merged.info.version == "s"


def test_a_daemon_that_fails_or_has_no_shard_is_ignored_if_all_shards_are_held() -> None:
    whole = DaemonInfo("a", info(range(4)))
    assert (
        merge("d", [whole, DaemonInfo("b", error=AWAY), DaemonInfo("c", error=NONE)]).info.rows
        == 46
    )


def test_the_error_names_missing_shards_and_all_daemons() -> None:
    answers = [DaemonInfo("a", info([0])), DaemonInfo("b", info([2])), DaemonInfo("c", error=NONE)]
    with pytest.raises(errors.DatasetError, match=r"shard 1, 3 of 4 is missing") as raised:
        merge("d", answers)
    assert "a has 0" in str(raised.value)
    assert "b has 2" in str(raised.value)
    assert "c (not found)" in str(raised.value)
    answers[2] = DaemonInfo("c", error=AWAY)
    with pytest.raises(errors.ConnectError, match=r"1, 3 of 4 .* c \(cannot connect\)"):
        merge("d", answers)


def test_the_only_complete_snapshot_wins() -> None:
    old, new = info(range(4), snapshot="old"), info([0, 1], snapshot="new")
    merged = merge("d", [DaemonInfo("a", new), DaemonInfo("b", old)])
    assert merged.info.snapshot == "old"
    assert all(copy.address == "b" for part in merged.replicas for copy in part)


def test_snapshots_are_never_mixed() -> None:
    two = [DaemonInfo("a", info([0, 1], snapshot="x")), DaemonInfo("b", info([2, 3], snapshot="y"))]
    with pytest.raises(errors.DatasetError, match=r"'x' shard 2-3 .*'y' shard 0-1"):
        merge("d", two)
    both = [
        DaemonInfo("a", info(range(4), snapshot="x")),
        DaemonInfo("b", info(range(4), snapshot="y")),
    ]
    with pytest.raises(errors.DatasetError, match=r"'x' at a; snapshot 'y' at b; name one"):
        merge("d", both)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (info([1], total=5), "number of shards"),
        (info([1], schema=pa.schema([("m", pa.int64())])), "schema"),
        (info([0], sha256="another"), "copies of shard 0 of 'd' differ: sha256"),
        (info([4]), "shard 4 of 'd', which has 4"),
        (info([1, 1]), "shard 1 of 'd' twice"),
        (plain("1"), "not published"),
    ],
)
def test_contradictions_between_daemons_are_errors(other: DatasetInfo, words: str) -> None:
    with pytest.raises(errors.DatasetError, match=words):
        merge("d", [DaemonInfo("a", info([0, 2, 3])), DaemonInfo("b", other)])


def test_a_contradiction_names_the_daemons_that_contradict_each_other() -> None:
    three = [DaemonInfo("a", info([0])), DaemonInfo("b", info([1])), DaemonInfo("c", info([2], 5))]
    with pytest.raises(errors.DatasetError) as caught:
        merge("d", three)
    assert caught.value.stream == "d"
    assert caught.value.message == (
        "a and c describe 'd' differently: the number of shards differs"
    )
    unpublished = [DaemonInfo("a", info([0])), DaemonInfo("b", plain("1"))]
    with pytest.raises(errors.DatasetError, match=r"'d': b has one that .*, and a a published one"):
        merge("d", unpublished)


def test_copies_of_a_shard_have_equal_rows_and_checksums_where_they_report_them() -> None:
    def part(rows: int | None, sha256: str) -> DatasetInfo:
        endpoint = Endpoint(b"t", (), ordinal=0, rows=rows, nbytes=1, sha256=sha256)
        return DatasetInfo("d", rows, 1, SCHEMA, "k", "1", (endpoint,), "s", 1)

    def merge_parts(*parts: DatasetInfo) -> DatasetInfo:
        return merge("d", [DaemonInfo(f"{n}", each) for n, each in enumerate(parts)]).info

    assert merge_parts(part(5, "ab"), part(5, ""), part(5, "ab")).rows == 5
    assert merge_parts(part(0, "ab"), part(0, "ab")).rows == 0
    with pytest.raises(errors.DatasetError, match=r"of shard 0 of 'd' differ: rows 5 at 0, 6 at 1"):
        merge_parts(part(5, "ab"), part(6, "ab"))
    with pytest.raises(errors.DatasetError, match="differ: rows 0 at 0, 6 at 1"):
        merge_parts(part(0, "ab"), part(6, "ab"))
    with pytest.raises(errors.DatasetError, match="differ: sha256 ab at 0,  at 1, cd at 2"):
        merge_parts(part(5, "ab"), part(5, ""), part(5, "cd"))


def test_a_total_is_unknown_if_a_daemon_or_a_shard_does_not_report_it() -> None:
    parts = [info([0, 1]), info([2, 3])]

    def totals(*infos: DatasetInfo) -> tuple[int | None, int | None]:
        found = merge("d", [DaemonInfo(f"{n}", each) for n, each in enumerate(infos)]).info
        return found.rows, found.bytes

    assert totals(*parts) == (46, 400)
    assert totals(parts[0], replace(parts[1], rows=None)) == (None, 400)
    assert totals(replace(parts[0], bytes=None), parts[1]) == (46, None)
    for field, expected in (("rows", (None, 400)), ("nbytes", (46, None))):
        first, second = parts[1].endpoints
        unknown: dict[str, Any] = {field: None}
        endpoints = (first, replace(second, **unknown))
        assert totals(parts[0], replace(parts[1], endpoints=endpoints)) == expected


def test_a_publication_needs_the_number_of_its_shards() -> None:
    unknown = replace(info([0]), shards_total=None)
    with pytest.raises(errors.DatasetError, match="a, b does not report the number of shards of"):
        merge("d", [DaemonInfo("a", unknown), DaemonInfo("b", unknown)])


def test_only_one_empty_endpoint_stands_for_no_shard() -> None:
    whole = DaemonInfo("a", info(range(4)))
    endpoint = Endpoint(b"t", ())
    for rows, endpoints in ((3, (endpoint,)), (0, (endpoint, endpoint))):
        other = DatasetInfo("d", rows, 0, SCHEMA, "k", "1", endpoints, "s", 4)
        with pytest.raises(errors.DatasetError, match="b lists shard None of 'd', which has 4"):
            merge("d", [whole, DaemonInfo("b", other)])
    none = DatasetInfo("d", 0, 0, SCHEMA, "k", "1", (endpoint,), "s", 4)
    assert len(merge("d", [whole, DaemonInfo("b", none)]).replicas[0]) == 1


def test_publications_of_one_shard_and_of_none() -> None:
    one = info([0], total=1)
    assert len(merge("d", [DaemonInfo("a", one), DaemonInfo("b", one)]).replicas[0]) == 2
    empty = DatasetInfo("d", 0, 0, SCHEMA, "k", "1", (Endpoint(b"t", ()),), "s", 0)
    assert merge("d", [DaemonInfo("a", empty)]).replicas == ()
    unused = DatasetInfo("d", 0, 0, SCHEMA, "k", "1", (Endpoint(b"t", ()),), "s", 1)
    assert len(merge("d", [DaemonInfo("a", unused), DaemonInfo("b", one)]).replicas[0]) == 1


def test_unpublished_datasets_are_replicas_only_if_their_versions_are_equal() -> None:
    alone = merge("d", [DaemonInfo("a", plain("1", 3)), DaemonInfo("b", error=NONE)])
    assert [copy.shard for part in alone.replicas for copy in part] == [0, 1, 2]
    assert alone.info.rows == 7
    same = merge("d", [DaemonInfo("a", plain("1")), DaemonInfo("b", plain("1"))])
    assert [(copy.address, copy.shard) for copy in same.replicas[0]] == [("a", None), ("b", None)]
    for other in (plain("2"), plain("1", 2), plain("")):
        with pytest.raises(errors.DatasetError, match="name one daemon"):
            merge("d", [DaemonInfo("a", plain("1")), DaemonInfo("b", other)])
    with pytest.raises(errors.DatasetError, match="versions unknown at a"):
        merge("d", [DaemonInfo("a", plain("")), DaemonInfo("b", plain(""))])


def test_a_dataset_at_one_daemon_needs_no_version() -> None:
    merged = merge("d", [DaemonInfo("a", plain("", 2))])
    assert [copy.shard for part in merged.replicas for copy in part] == [0, 1]


def test_unpublished_replicas_have_one_schema() -> None:
    other = replace(plain("1"), schema=pa.schema([("m", pa.int64())]))
    with pytest.raises(errors.DatasetError, match=r"a and b describe 'd' .* the schema differs"):
        merge("d", [DaemonInfo("a", plain("1")), DaemonInfo("b", other)])


def test_a_dataset_that_no_daemon_has() -> None:
    with pytest.raises(errors.NotFoundError, match="none of the daemons a, b has a dataset 'd'"):
        merge("d", [DaemonInfo("a", error=NONE), DaemonInfo("b", error=NONE)])
    with pytest.raises(errors.ConnectError, match=r"a \(not found\), b \(cannot connect\)"):
        merge("d", [DaemonInfo("a", error=NONE), DaemonInfo("b", error=AWAY)])
    denied = errors.remote_error("UNAUTHENTICATED", "who are you")
    with pytest.raises(errors.DeniedError, match="a: who are you; b: who are you") as raised:
        merge("d", [DaemonInfo("a", error=denied), DaemonInfo("b", error=denied)])
    assert raised.value.code == "UNAUTHENTICATED"


def test_daemons_that_fail_in_several_ways_cannot_be_connected_to() -> None:
    denied = errors.remote_error("UNAUTHENTICATED", "who are you")
    mixed = [DaemonInfo("a", error=denied), DaemonInfo("b", error=AWAY)]
    with pytest.raises(errors.ConnectError) as caught:
        merge("d", mixed)
    assert caught.value.stream == "d"
    assert caught.value.message == (
        "no daemon that responds has a dataset 'd': a (who are you), b (cannot connect)"
    )
    with pytest.raises(errors.ConnectError, match="no daemon describes 'd': a: cannot connect; b:"):
        merge("d", [DaemonInfo("a", error=AWAY), DaemonInfo("b", error=AWAY)])


def test_a_snapshot_that_lacks_shards_lists_who_has_which() -> None:
    empty = DatasetInfo("d", 0, 0, SCHEMA, "k", "1", (Endpoint(b"t", ()),), "s", 4)
    with pytest.raises(errors.DatasetError) as caught:
        merge(
            "d", [DaemonInfo("a", info([0, 1])), DaemonInfo("b", info([1])), DaemonInfo("c", empty)]
        )
    assert caught.value.message == (
        "the dataset 'd' is incomplete: of snapshot 's' shard 2-3 of 4 is missing, a has 0-1 and "
        "b has 1 and c has none; daemons: a, b, c"
    )


def test_a_listing_includes_datasets_that_cannot_be_read() -> None:
    found = merge_for_listing("d", [DaemonInfo("a", info([0])), DaemonInfo("b", error=AWAY)])
    assert (found.name, found.kind, found.rows, found.endpoints) == ("d", "incomplete", None, ())
    assert (found.bytes, found.version, found.snapshot) == (None, "", "")
    assert (found.schema, found.shards_total) == (SCHEMA, 4)
    whole = merge_for_listing("d", [DaemonInfo("a", info(range(4)))])
    assert (whole.kind, whole.rows) == ("published", 46)
    after = merge_for_listing("d", [DaemonInfo("a", error=AWAY), DaemonInfo("b", info([0]))])
    assert after.kind == "incomplete"
