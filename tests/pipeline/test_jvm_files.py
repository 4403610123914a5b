"""The reader in the JVM with the folder of the dataset: mapped files, and what it does not map."""

from __future__ import annotations

from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from splitarrow.pipeline import VersionStore, register
from splitarrow.pipeline.jvm import FORMAT
from splitarrow.pipeline.spark_versions import HAS_PYTHON_SOURCES

ROWS = 600


def varied_table(index: int) -> pa.Table:
    """A column of each layout of Arrow, nulls among them."""
    rows = range(index * ROWS, (index + 1) * ROWS)
    words = pa.array([None if n % 7 == 0 else f"word {n % 13}" for n in rows])
    structs = [None if n % 5 == 0 else {"a": n, "w": f"word {n % 3}"} for n in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "words": words.dictionary_encode(),
            "nothing": pa.nulls(ROWS),
            "views": pa.array(["v" * (n % 40) for n in rows]).cast(pa.string_view()),
            "runs": pa.RunEndEncodedArray.from_arrays(
                pa.array([n * 10 + 10 for n in range(ROWS // 10)], pa.int32()),
                pa.array([None if n % 4 == 0 else n for n in range(ROWS // 10)], pa.int16()),
            ),
            "flags": pa.array([None if n % 9 == 0 else n % 2 == 0 for n in rows]),
            "lists": pa.array([list(range(n % 4)) for n in rows], pa.list_(pa.int32())),
            "pairs": pa.array([[n, n + 1] for n in rows], pa.list_(pa.int16(), 2)),
            "maps": pa.array([[("k", n)] for n in rows], pa.map_(pa.string(), pa.int64())),
            "structs": pa.array(structs),
            "money": pa.array([Decimal(n) / 4 for n in rows], pa.decimal128(20, 2)),
            "last": pa.array(rows, pa.int32()),
        }
    )


def publish(folder: Path, tables: list[pa.Table], compression: Any = None) -> VersionStore:
    store = VersionStore(folder)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    schema = tables[0].schema
    shards = [
        store.write_shard("job", f"{n}.arrow", schema, table.to_batches(250), options=options)
        for n, table in enumerate(tables)
    ]
    store.commit("job", schema, shards, append=False)
    return store


@pytest.fixture
def load(spark):
    register(spark, jvm_reader=True)

    def read(uri, reader="jvm", **options):
        frame = spark.read.format(FORMAT).option("uri", uri).option("reader", reader)
        return frame.options(**options).load("set")

    return read


def transfer(frame: Any) -> tuple[int, int]:
    """Run a query, and return the bytes that its scan received and mapped, which Spark counts."""
    execution = frame._jdf.queryExecution()
    frame._jdf.collectToPython()
    metrics = execution.executedPlan().collectLeaves().head().metrics()
    return tuple(metrics.apply(name).value() for name in ("bytesReceived", "bytesMapped"))


def plan_of(frame: Any) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize("compression", [None, pytest.param("lz4", marks=pytest.mark.long), "zstd"])
def test_mapped_files_have_the_rows_of_the_daemon(tmp_path, serve, load, compression):
    store = publish(tmp_path / "set", [varied_table(n) for n in range(3)], compression)
    uri = serve({"set": tmp_path / "set"}).control_uri
    mapped = load(uri, folder=store.location)
    assert mapped.toArrow().equals(load(uri).toArrow())
    assert transfer(mapped)[0] == 0
    # The columns between them are passed over, whatever their layout.
    for columns in (["last"], ["runs", "id"], ["structs", "last"]):
        some = mapped.select(columns)
        assert some.toArrow().equals(load(uri).select(columns).toArrow())
    received, read = transfer(mapped.select("last"))
    assert received == 0
    assert 0 < read <= 3 * (4 * ROWS + ROWS // 8 + 200)
    assert mapped.limit(5).count() == 5


def test_a_filter_selects_the_files_that_are_mapped(tmp_path, serve, load):
    store = publish(tmp_path / "set", [varied_table(n) for n in range(3)])
    uri = serve({"set": tmp_path / "set"}).control_uri
    mapped = load(uri, folder=store.location)
    rare = mapped.where(f"id < {ROWS + 3} and id >= {ROWS}").select("id")
    received, read = transfer(rare)
    assert received == 0
    assert 0 < read <= 8 * ROWS + ROWS // 8 + 200
    assert sorted(row.id for row in rare.collect()) == [ROWS, ROWS + 1, ROWS + 2]
    assert mapped.where("id < 0").count() == 0
    assert (
        mapped.where("views = 'v' and id > 7").count()
        == load(uri).where("views = 'v' and id > 7").count()
    )


def nested_table(index: int) -> pa.Table:
    """Structs with a long text, dictionaries, and names as those of the pairs of a map."""
    rows = range(index * ROWS, (index + 1) * ROWS)
    words = pa.array([f"word {n % 3}" for n in rows]).dictionary_encode()
    kinds = pa.array([None if n % 3 else f"kind {n % 4}" for n in rows]).dictionary_encode()
    inner = pa.StructArray.from_arrays([words, pa.array(rows, pa.int32())], ["w", "n"])
    fields = [kinds, pa.array(rows, pa.int64()), words, inner, pa.array(["x" * 900] * ROWS)]
    names = ["kind", "key", "value", "inner", "text"]
    missing = pa.array([n % 5 == 0 for n in rows])
    offsets = [0, *accumulate(0 if n % 4 == 0 else n % 3 for n in rows)]
    total = offsets[-1]
    items = pa.StructArray.from_arrays(
        [pa.array(range(total)), pa.array(["y" * 900] * total)], ["a", "b"]
    )
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "s": pa.StructArray.from_arrays(fields, names, mask=missing),
            "items": pa.ListArray.from_arrays(offsets, items),
            "maps": pa.array(
                [[("k", {"a": n, "b": "z" * 900})] for n in rows],
                pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ),
        }
    )


@pytest.mark.parametrize("compression", [pytest.param(None, marks=pytest.mark.long), "zstd"])
def test_only_the_fields_of_structs_that_a_query_needs_are_mapped(
    tmp_path, serve, load, compression
):
    store = publish(tmp_path / "set", [nested_table(0), nested_table(1)], compression)
    uri = serve({"set": store.location}).control_uri
    mapped, received = load(uri, folder=store.location), load(uri)
    queries = [
        ["s.key", "id"],
        ["s.key as k", "s.value as v"],
        ["s.value", "s is null as missing"],
        ["s.kind", "s.inner.w"],
        ["s.inner.n", "id"],
        ["items.a", "id"],
        ["maps['k'].a", "map_keys(maps)"],
        ["s", "id"],
    ]
    python = load(uri, "python") if HAS_PYTHON_SOURCES else received
    for query in queries:
        expected = [str(row) for row in python.selectExpr(*query).collect()]
        for frame in (mapped, received):
            assert [str(row) for row in frame.selectExpr(*query).collect()] == expected, query
    some = mapped.where("s is not null and s.inner.n > 700").selectExpr("s.key")
    assert sorted(row.key for row in some.collect()) == [n for n in range(701, 1200) if n % 5]
    for query in queries[:6]:
        assert 0 < transfer(mapped.selectExpr(*query))[1] < 100_000, query
    assert "s:struct<key:bigint>" in plan_of(mapped.selectExpr("s.key"))


def test_fields_of_structs_come_from_the_daemon(tmp_path, serve, load):
    publish(tmp_path / "set", [varied_table(0)])
    uri = serve({"set": tmp_path / "set"}).control_uri
    options = {"columns": "structs.a,id", "folder": str(tmp_path / "set")}
    expected = [None if n % 5 == 0 else n for n in range(ROWS)]
    for reader in ("jvm", "python"):
        frame = load(uri, reader, **options)
        assert frame.toArrow().sort_by("id")["structs.a"].to_pylist() == expected
        few = frame.where("`structs.a` < 4").select("id")
        assert sorted(row.id for row in few.collect()) == [1, 2, 3]
        maximum = frame.selectExpr("max(`structs.a`)").collect()[0][0]
        assert maximum == max(each for each in expected if each is not None)
    received, mapped = transfer(load(uri, **options))
    assert received > 0
    assert mapped == 0


@pytest.mark.parametrize("damage", ["removed", "longer", "no footer", "no message"])
def test_a_file_that_cannot_be_mapped_is_read_from_the_daemon(
    tmp_path, tmp_path_factory, serve, load, damage
):
    """Another host may have other files under the same path, such as a copy that is cut off."""
    store = publish(tmp_path / "set", [varied_table(0), varied_table(1)])
    copy = tmp_path_factory.mktemp("copy")
    for path in sorted(Path(store.location).rglob("*")):
        target = copy / path.relative_to(store.location)
        target.mkdir(parents=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    uri = serve({"set": tmp_path / "set"}).control_uri
    shard = next((copy / "data" / "job").glob("1-*.arrow"))
    contents = shard.read_bytes()
    shard.unlink()
    last = contents.rindex(b"\xff\xff\xff\xff", 0, contents.rindex(b"\xff\xff\xff\xff"))
    written = {
        "longer": contents + b"\0",
        "no footer": contents[:-10] + bytes(10),
        "no message": contents[: last + 8] + b"\xff" * 64 + contents[last + 72 :],
    }
    if damage in written:
        shard.write_bytes(written[damage])
    frame = load(uri, folder=str(copy))
    received, mapped = transfer(frame.select("id"))
    assert received > 0
    assert mapped > 0
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(2 * ROWS))


def test_another_folder_is_refused(tmp_path, serve, load):
    publish(tmp_path / "set", [varied_table(0)])
    (tmp_path / "other").mkdir()
    uri = serve({"set": tmp_path / "set"}).control_uri
    for folder in (tmp_path / "other", tmp_path / "set" / "data"):
        with pytest.raises(PySparkException, match="not the folder of this dataset"):
            load(uri, folder=str(folder)).collect()
    with pytest.raises(PySparkException, match="only a local folder can be mapped"):
        load(uri, folder="s3://bucket/set").collect()


def test_the_python_source_has_no_use_for_the_folder(tmp_path, serve, load):
    publish(tmp_path / "set", [varied_table(0)])
    uri = serve({"set": tmp_path / "set"}).control_uri
    assert load(uri, reader="python", folder=str(tmp_path / "set")).count() == ROWS
