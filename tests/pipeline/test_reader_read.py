"""`splitarrow.pipeline.read`: the rows, types and errors of the source, without its hand-over."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.files import write_file, write_shards
from splitarrow import errors
from splitarrow.pipeline import read

ROWS = 500


@pytest.fixture
def uri(tmp_path, serve):
    tables = [
        pa.table(
            {
                "id": pa.array(range(part * ROWS, (part + 1) * ROWS), pa.int64()),
                "s": pa.array([f"n{n % 7}" for n in range(ROWS)]).dictionary_encode(),
                "u": pa.array([n % 256 for n in range(ROWS)], pa.uint8()),
            }
        )
        for part in range(3)
    ]
    write_shards(tmp_path / "shards", tables)
    write_file(tmp_path / "empty.arrow", tables[0].slice(0, 0))
    datasets = {"shards": tmp_path / "shards", "empty": tmp_path / "empty.arrow"}
    return serve(datasets).control_uri


def test_rows_types_and_partitions_are_those_of_the_source(spark, uri):
    source = spark.read.format("splitarrow").option("uri", uri).load("shards")
    frame = read(spark, uri, "shards")
    assert frame.schema == source.schema
    assert frame.rdd.getNumPartitions() == 3
    assert frame.toArrow().sort_by("id").equals(source.toArrow().sort_by("id"))
    assert read(spark, [uri], "shards", shards_per_partition=2).rdd.getNumPartitions() == 2


def test_columns_filter_and_limit_reach_the_daemon(spark, uri):
    frame = read(spark, uri, "shards", columns=["u", "id"], filter="id >= 1400 and s = 'n1'")
    rows: Any = frame.toArrow()
    expected = [n for n in range(1400, 1500) if n % ROWS % 7 == 1]
    assert rows.column_names == ["u", "id"]
    assert sorted(rows["id"].to_pylist()) == expected
    assert read(spark, uri, "shards", filter=pc.field("id") < 5).count() == 5
    first = read(spark, uri, "shards", columns=["id"], limit=7).toArrow()
    assert first["id"].to_pylist() == list(range(7))
    assert read(spark, uri, "shards", limit=0).count() == 0
    assert read(spark, uri, "empty").count() == 0
    assert read(spark, uri, "shards", columns=[]).count() == 3 * ROWS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["absent"]}, "no column 'absent'"),
        ({"filter": "absent > 3"}, "absent"),
        ({"shards_per_partitoin": 2}, "did you mean 'shards_per_partition'"),
        ({"pushdown": "true"}, "no option 'pushdown'"),
        ({"reader": "jvm"}, "no option 'reader'"),
    ],
)
def test_a_wrong_argument_is_an_error_at_once(spark, uri, arguments, message):
    with pytest.raises(errors.UsageError, match=message):
        read(spark, uri, "shards", **arguments)
