"""Deletion vectors of Delta tables: deleted rows are never sent, and invalid vectors are errors.

The vectors are written after the protocol. deltalake decodes them as well, and must agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, WriterProperties, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.catalog import read_dataset
from helpers.control_plane import running
from helpers.deletion_vectors import (
    Action,
    change_log,
    describe_inline,
    encode_rows,
    list_commits,
    read_actions,
    replace_vector,
    write_vector,
)
from helpers.faults import Faults, FaultyTransport
from helpers.sources import encode_filter
from splitarrow.client.connect import connect
from splitarrow.client.dataset import endpoints
from splitarrow.errors import DatasetError
from splitarrow.protocol.request import Request
from splitarrow.publication.storage import LocalStorage, open_storage
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.catalog.deletion_vectors import DeletionVector, VectorLog
from splitarrow.server.catalog.selection import resolve_rows
from splitarrow.transport import registry, tcp

GROUP_ROWS = 50
FILE_ROWS = 230
DELETED = [
    {0, 1, 2, 49, 50, 77, 229},
    {*range(40, 160), 200},
    {*range(FILE_ROWS)},
]
"""The deleted rows of the first three files. The fourth one has no vector."""
FEATURES = ("readerFeatures", "writerFeatures")
PROTOCOL: Action = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        **{key: ["deletionVectors"] for key in FEATURES},
    }
}


def write_files(table: Path, count: int = 4, rows: int = FILE_ROWS, **options: Any) -> list[Action]:
    """Write a table of some files, and return the actions that add them, in order of their rows."""
    properties = WriterProperties(max_row_group_size=GROUP_ROWS)
    for number in range(count):
        numbers = range(number * rows, (number + 1) * rows)
        data = {"n": pa.array(numbers, pa.int64()), "t": [f"v{n}" for n in numbers]}
        data["p"] = [f"a {number}"] * rows
        write_deltalake(
            table, pa.table(data), mode="append", writer_properties=properties, **options
        )
    change_log(table, PROTOCOL)
    return read_actions(table, "add")


def encode(table: Path, rows: set[int], storage: str) -> Action:
    """Write a vector, and return its descriptor."""
    data = encode_rows(rows, runs=storage == "u")
    if storage == "i":
        return describe_inline(data, len(rows))
    return write_vector(table, data, len(rows), storage, "ab" if storage == "u" else "")


def delete_rows(table: Path, adds: Sequence[Action], deleted: Sequence[set[int]]) -> list[Action]:
    """Delete rows of files by vectors of all kinds, and return the actions that add the files."""
    replaced: list[Action] = []
    actions: list[Action] = []
    for number, (add, rows) in enumerate(zip(adds, deleted, strict=False)):
        actions += replace_vector(add, encode(table, rows, "uip"[number % 3]))
        replaced.append(actions[-1]["add"])
    change_log(table, *actions)
    return replaced


def keep_rows(table: Path, adds: Sequence[Action], deleted: Sequence[set[int]]) -> list[pa.Table]:
    """Return what is left of each row group, in the order in which the files are read."""
    parts: dict[str, list[pa.Table]] = {}
    for number, add in enumerate(adds):
        gone = deleted[number] if number < len(deleted) else set[int]()
        with pq.ParquetFile(table / add["path"]) as file:
            counts = [file.metadata.row_group(each).num_rows for each in range(file.num_row_groups)]
            data = file.read()
        parts[add["path"]] = [
            data.take(pa.array(sorted({*range(begin, end)} - gone), pa.int64()))
            for begin, end in pairwise(accumulate(counts, initial=0))
        ]
    return [part for path in sorted(parts) for part in parts[path]]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with vectors of all kinds."""
    table = tmp_path_factory.mktemp("deleted")
    delete_rows(table, write_files(table), DELETED)
    return table


@pytest.fixture(scope="module")
def groups(table: Path) -> list[pa.Table]:
    """The rows that are left in each of its row groups."""
    return keep_rows(table, read_actions(table, "add")[:4], DELETED)


def test_no_deleted_row_is_sent(table: Path, groups: list[pa.Table]) -> None:
    dataset = open_dataset(table)
    expected = pa.concat_tables(groups)
    assert read_dataset(dataset).table.equals(expected)
    assert dataset.rows == expected.num_rows == 4 * FILE_ROWS - 7 - 121 - FILE_ROWS
    counts = [group.num_rows for group in groups]
    assert len(dataset.shards) == 4
    for number, shard in enumerate(dataset.shards):
        part = read_dataset(dataset, shard=number)
        request = Request("x", shard=number)
        of_shard = counts[5 * number : 5 * (number + 1)]
        assert shard.rows == part.rows == sum(of_shard)
        assert dataset.count_rows(request, Encoding()) == of_shard
        assert all(batch.num_rows for batch in part.batches)


def test_deltalake_agrees(table: Path, groups: list[pa.Table]) -> None:
    other = DeltaTable(table)
    query = QueryBuilder().register("t", other).execute("select n, t, p from t order by n")
    expected = pa.concat_tables(groups).sort_by("n")
    assert pa.table(query.read_all()).cast(expected.schema).equals(expected)
    vectors: Any = pa.table(pa.RecordBatchReader.from_stream(other.deletion_vectors()))
    masks = vectors["selection_vector"].to_pylist()
    assert sorted(mask.count(False) for mask in masks) == [*(7, 121, FILE_ROWS)]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_every_selection_equals_that_of_the_rows_that_are_left(
    table: Path, groups: list[pa.Table], data: st.DataObject
) -> None:
    dataset = open_dataset(table)
    fields: dict[str, Any] = {
        "offset": data.draw(st.none() | st.integers(0, 700)),
        "limit": data.draw(st.none() | st.integers(0, 700)),
        "batch_rows": data.draw(st.none() | st.integers(1, 300)),
        "columns": data.draw(st.none() | st.sampled_from([("p",), ("t", "n")])),
    }
    shard = fields["shard"] = data.draw(st.none() | st.integers(0, 3))
    mine = groups if shard is None else groups[5 * shard : 5 * (shard + 1)]
    total = sum(group.num_rows for group in mine)
    kind = data.draw(st.sampled_from(["all", "batches", "rows"]))
    if kind == "batches":
        end = data.draw(st.integers(0, len(mine)))
        fields["batches"] = (data.draw(st.integers(0, end)), end)
        mine = mine[slice(*fields["batches"])]
    expected = pa.concat_tables(mine) if mine else groups[0].slice(0, 0)
    if kind == "rows":
        end = data.draw(st.integers(0, total))
        fields["rows"] = (data.draw(st.integers(0, end)), end)
        expected = expected.slice(fields["rows"][0], end - fields["rows"][0])
    wanted: pc.Expression | None = None
    bounds = data.draw(st.none() | st.tuples(st.integers(0, 950), st.integers(0, 950)))
    if bounds is not None:
        # Row groups are pruned on one side or on both sides, or between the bounds.
        low, high = (pc.field("n") >= bounds[0]), (pc.field("n") <= bounds[1])
        wanted = data.draw(st.sampled_from([low, low & high, low | high]))
        fields["filter"] = encode_filter(wanted, dataset.schema)
        expected = expected.filter(wanted)
    request = resolve_rows(dataset, Request("x", **fields), Encoding())
    changed = ("batches", "rows", "offset", "limit", "version")
    result = read_dataset(
        dataset, **{**fields, **{name: getattr(request, name) for name in changed}}
    )
    expected = expected.slice(fields["offset"] or 0, fields["limit"])
    assert result.rows == expected.num_rows
    columns = fields["columns"] or expected.column_names
    assert result.table.equals(expected.select(list(columns)))
    if wanted is not None:
        request = Request("x", shard=shard, filter=fields["filter"])
        mine = groups if shard is None else groups[5 * shard : 5 * (shard + 1)]
        counts = [group.filter(wanted).num_rows for group in mine]
        assert dataset.count_rows(request, Encoding()) == counts


def test_a_limit_does_not_read_row_by_row(tmp_path: Path) -> None:
    adds = write_files(tmp_path, 1)
    delete_rows(tmp_path, adds, [set(range(220))])
    dataset = open_dataset(tmp_path)
    assert read_dataset(dataset, limit=3).table["n"].to_pylist() == [220, 221, 222]
    assert read_dataset(dataset, offset=8, limit=3).table["n"].to_pylist() == [228, 229]


def test_partitions_and_added_columns_have_the_rows_that_are_left(tmp_path: Path) -> None:
    adds = write_files(tmp_path, 2, partition_by=["p"])
    later = pa.table({"n": [-1], "t": ["later"], "p": ["a 0"], "added": [0.5]})
    write_deltalake(tmp_path, later, mode="append", schema_mode="merge")
    change_log(tmp_path, PROTOCOL)
    delete_rows(tmp_path, adds, DELETED)
    dataset = open_dataset(tmp_path)
    left = sorted({*range(2 * FILE_ROWS)} - DELETED[0] - {FILE_ROWS + n for n in DELETED[1]})
    found = read_dataset(dataset).table.sort_by("n")
    assert found["n"].to_pylist() == [-1, *left]
    assert found["p"].to_pylist() == ["a 0", *(f"a {n // FILE_ROWS}" for n in left)]
    assert found["added"].to_pylist() == [0.5] + [None] * len(left)
    row_filter = encode_filter((pc.field("p") == "a 1") & (pc.field("n") < 300), dataset.schema)
    only = read_dataset(dataset, columns=("p", "added"), filter=row_filter)
    assert only.rows == len([n for n in left if FILE_ROWS <= n < 300])
    assert read_dataset(dataset, columns=("p",)).rows == dataset.rows == len(left) + 1


def test_each_version_has_the_vectors_of_its_time(tmp_path: Path) -> None:
    (first, second) = write_files(tmp_path, 2)
    deleted = [{3}, {3, 4, *range(100, 230)}, set[int](), {7}]
    dataset = open_dataset(tmp_path)
    versions = {dataset.version: set[int]()}
    for rows in deleted:
        vector = encode(tmp_path, rows, "u") if rows else None
        change_log(tmp_path, *replace_vector(first, vector))
        first = read_actions(tmp_path, "add")[-1]
        versions[dataset.version] = rows
    for served in (dataset, open_dataset(tmp_path)):
        for version, gone in versions.items():
            found: Any = read_dataset(served, version=version).table["n"]
            assert sorted(found.to_pylist()) == sorted({*range(2 * FILE_ROWS)} - gone)
    change_log(tmp_path, replace_vector(first, None)[0])
    assert read_dataset(dataset).table["n"].to_pylist() == [*range(FILE_ROWS, 2 * FILE_ROWS)]
    change_log(tmp_path, replace_vector(second, None)[0])
    assert (read_dataset(dataset).rows, dataset.rows) == (0, 0)


def test_a_tombstone_of_an_older_vector_removes_nothing(tmp_path: Path) -> None:
    (add,) = write_files(tmp_path, 1)
    delete_rows(tmp_path, [add], DELETED)
    change_log(tmp_path, replace_vector(add, None)[0])
    assert read_dataset(open_dataset(tmp_path)).rows == FILE_ROWS - 7


def keep_checkpoint(log: Path, checkpoint: Path) -> None:
    """Keep the checkpoint as deltalake has written it."""


def write_parts(log: Path, checkpoint: Path) -> None:
    """Replace a checkpoint by two parts, beside one part of three that are not complete."""
    table = pq.read_table(checkpoint)
    name = checkpoint.name.removesuffix(".parquet")
    pq.write_table(table.slice(0, 3), log / f"{name}.{1:010}.{2:010}.parquet")
    pq.write_table(table.slice(3), log / f"{name}.{2:010}.{2:010}.parquet")
    pq.write_table(table, log / f"{name}.{1:010}.{3:010}.parquet")
    checkpoint.unlink()


def write_sidecars(log: Path, checkpoint: Path) -> None:
    """Replace a checkpoint by one of the specification V2, with two sidecar files."""
    table = pq.read_table(checkpoint).select(["add", "remove", "metaData", "protocol"])
    sidecars = log / "_sidecars"
    sidecars.mkdir()
    is_file = pc.is_valid(table["add"])
    files, others = table.filter(is_file), table.filter(pc.invert(is_file))
    number = int(checkpoint.name.partition(".")[0])
    lines: list[Action] = [{"checkpointMetadata": {"version": number}}]
    for begin in (0, 2):
        sidecar = sidecars / f"part {begin}.parquet"
        pq.write_table(files.slice(begin, 2).select(["add", "remove"]), sidecar)
        size = {"sizeInBytes": sidecar.stat().st_size, "modificationTime": 0}
        lines.append({"sidecar": {"path": sidecar.name.replace(" ", "%20"), **size}})
    for action in others.to_pylist(maps_as_pydicts="strict"):
        lines += [
            {name: {key: each for key, each in action[name].items() if each is not None}}
            for name in ("protocol", "metaData")
            if action[name] is not None
        ]
    name = checkpoint.name.replace(".parquet", ".3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json")
    (log / name).write_text("\n".join(map(json.dumps, lines)))
    checkpoint.unlink()


@pytest.mark.parametrize("arrange", [keep_checkpoint, write_parts, write_sidecars])
def test_vectors_are_found_in_checkpoints(
    tmp_path: Path, arrange: Callable[[Path, Path], None]
) -> None:
    adds = write_files(tmp_path)
    features = ["deletionVectors", "v2Checkpoint"]
    change_log(
        tmp_path,
        {"protocol": {**PROTOCOL["protocol"], **dict.fromkeys(FEATURES, features)}},
    )
    adds[:3] = delete_rows(tmp_path, adds, DELETED)
    expected = pa.concat_tables(keep_rows(tmp_path, adds, DELETED))
    running = open_dataset(tmp_path)
    DeltaTable(tmp_path).create_checkpoint()
    log = tmp_path / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    arrange(log, checkpoint)
    (log / "_last_checkpoint").unlink(missing_ok=True)
    change_log(tmp_path, *replace_vector(adds[0], encode(tmp_path, {0}, "u")))
    for commit in list_commits(tmp_path)[:-1]:
        commit.unlink()
    for dataset in (running, open_dataset(tmp_path)):
        assert read_dataset(dataset).rows == expected.num_rows + 6
        older = read_dataset(dataset, version=str(int(checkpoint.name[:20])))
        assert older.table.sort_by("n").equals(expected.sort_by("n"))


def test_a_log_that_lacks_a_commit_is_refused(tmp_path: Path) -> None:
    delete_rows(tmp_path, write_files(tmp_path, 1), DELETED)
    log = VectorLog(LocalStorage(tmp_path))
    with pytest.raises(DatasetError, match=r"is inconsistent: .* has other data files, such as"):
        log.load(2, {"x"})
    list_commits(tmp_path)[1].unlink()
    with pytest.raises(DatasetError, match=r"0001\.json does not exist; the log may have been"):
        log.load(2, {"x"})


def spoil_byte(file: Path, position: int) -> None:
    contents = bytearray(file.read_bytes())
    contents[position] ^= 1
    file.write_bytes(contents)


ROWS = encode_rows([3, 4])
PROTOCOL_EXAMPLE: Action = {
    "storageType": "i",
    "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 40,
    "cardinality": 6,
}
"""The inline example of the protocol. It is in an older format, which deltalake refuses, too."""
INVALID: dict[str, tuple[Callable[[Path, Action], object], str]] = {
    "missing": (lambda file, _: file.unlink(), r"cannot read .*deletion_vector_.*No such file"),
    "truncated": (
        lambda file, _: file.write_bytes(file.read_bytes()[:-1]),
        "bytes; expected .* at byte",
    ),
    "checksum": (lambda file, _: spoil_byte(file, -1), "its checksum in .* is wrong"),
    "content": (lambda file, _: spoil_byte(file, -6), "its checksum in .* is wrong"),
    "size": (lambda _, vector: vector.update(sizeInBytes=20), "states 36 bytes; the log states 20"),
    "offset": (lambda _, vector: vector.update(offset=1), "the log states 36"),
    "huge": (lambda _, vector: vector.update(sizeInBytes=2**31 - 1), "bytes; expected 2147483655"),
    "cardinality": (lambda _, vector: vector.update(cardinality=3), "2 rows; the log states 3"),
    "too many": (lambda _, vector: vector.update(cardinality=11), "deletes 11 rows; .* has 10"),
    "storage": (lambda _, vector: vector.update(storageType="q"), "storage type 'q'"),
    "letters": (lambda _, vector: vector.update(pathOrInlineDv="~" * 20), "'~~~.* is invalid"),
    "place": (
        lambda _, vector: vector.update(storageType="p", pathOrInlineDv="file:///etc/passwd"),
        "/etc/passwd is outside of the folder of its table, /.*; copy the table",
    ),
    "prefix": (
        lambda _, vector: vector.update(pathOrInlineDv="../" + vector["pathOrInlineDv"]),
        "is outside of the folder",
    ),
}


@pytest.mark.parametrize(("spoil", "reason"), INVALID.values(), ids=INVALID)
def test_an_invalid_vector_is_an_error(
    tmp_path: Path, spoil: Callable[[Path, Action], object], reason: str
) -> None:
    (add,) = write_files(tmp_path, 1, rows=10)
    dataset = open_dataset(tmp_path)
    assert len(ROWS) == 36
    vector = write_vector(tmp_path, ROWS, 2, "u")
    spoil(next(tmp_path.glob("*.bin")), vector)
    change_log(tmp_path, *replace_vector(add, vector))
    for use in (
        lambda: read_dataset(dataset),
        lambda: dataset.count_rows(Request("x"), Encoding()),
        lambda: read_dataset(open_dataset(tmp_path), limit=1),
    ):
        with pytest.raises(DatasetError, match=reason):
            use()


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (describe_inline(encode_rows([10]), 1), "has the row 10, .* the data file has 10 rows"),
        (describe_inline(encode_rows([1 << 40]), 1), "has the row 1099511627776"),
        (describe_inline(b"1234", 1), "begins with the number"),
        (PROTOCOL_EXAMPLE, "begins with the number 3503503716; expected 1681511377"),
        ({**describe_inline(ROWS, 2), "sizeInBytes": 37}, "has 36 bytes of it; expected 37"),
        ({**describe_inline(ROWS, 2), "pathOrInlineDv": "abcd"}, "4 letters of base85"),
        ({**describe_inline(ROWS, 2), "pathOrInlineDv": "~" * 45}, "bad base85 character"),
    ],
)
def test_an_invalid_vector_in_the_log_is_an_error(
    tmp_path: Path, vector: Action, reason: str
) -> None:
    (add,) = write_files(tmp_path, 1, rows=10)
    change_log(tmp_path, *replace_vector(add, vector))
    dataset = open_dataset(tmp_path)
    with pytest.raises(
        DatasetError, match=f"the deletion vector of .*parquet is invalid: .*{reason}"
    ):
        read_dataset(dataset)


def test_files_of_vectors_are_found_as_in_the_examples_of_the_protocol() -> None:
    relative = DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    name = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert relative.find_file("s3://mytable") == name
    absolute = DeletionVector("p", "s3://mytable/a%20b/x.bin", 4, 40, 6)
    assert absolute.find_file("s3://mytable") == "a b/x.bin"
    assert DeletionVector("p", "file:/t/x.bin", 4, 40, 6).find_file("/t") == "x.bin"


def test_clients_never_get_a_deleted_row(
    table: Path, groups: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "FIRST_PAUSE_SECONDS", 0.001)
    expected = pa.concat_tables(groups)
    first, gone = str(expected["n"][0]), (pc.field("n") < 45)
    with running({"trips": table}) as served, connect(served.uri) as client:
        info = client.info("trips")
        assert info.rows == expected.num_rows
        assert len(client["trips"]) == expected.num_rows
        counts = client.count_rows("trips")
        assert [rows for shard in counts.values() for rows in shard] == [
            group.num_rows for group in groups
        ]
        matching = client.count_rows("trips", filter=gone)
        assert sum(map(sum, matching.values())) == expected.filter(gone).num_rows
        for begin, end in ((0, 300), (33, 34), (30, 200)):
            with client.read("trips", rows=(begin, end)) as stream:
                assert stream.read_all().equals(expected.slice(begin, end - begin))
        with client.read("trips", format="vortex") as stream:
            assert stream.read_all().num_rows == expected.num_rows
        cut = FaultyTransport(tcp.TRANSPORT, Faults(cut_after=6))
        with registry.override_transport(cut):
            with client.read("trips", batch_rows=9) as stream:
                assert stream.read_all().equals(expected)
                assert stream.resumed >= 5
            with client.read("trips", batch_rows=9, filter=f"n > {first}") as stream:
                assert stream.read_all().equals(expected.filter(pc.field("n") > expected["n"][0]))


def test_vectors_are_read_from_an_object_store(
    table: Path, groups: list[pa.Table], bucket: str
) -> None:
    storage = open_storage(bucket)
    for entry in LocalStorage(table).list_objects(""):
        data = (table / entry.name.lstrip("/")).read_bytes()
        moved = data.replace(table.as_uri().encode(), bucket.encode())
        assert storage.create(entry.name.lstrip("/"), moved)
    dataset = open_dataset(bucket)
    expected = pa.concat_tables(groups)
    assert read_dataset(dataset).table.equals(expected)
    assert read_dataset(dataset, offset=30, limit=90).table.equals(expected.slice(30, 90))
    name = next(table.glob("ab/*.bin")).relative_to(table)
    storage.delete([str(name)])
    with pytest.raises(DatasetError, match=r"deletion_vector_.* (does not exist|was replaced)"):
        read_dataset(dataset)
    with pytest.raises(DatasetError, match="does not exist; it may have been vacuumed"):
        open_dataset(bucket)
