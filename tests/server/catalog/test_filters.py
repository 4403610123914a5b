"""A filter stays within its budget of memory and processor time, and its result is unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.catalog import read_dataset
from helpers.files import write_file, write_parquet
from helpers.sources import encode_filter, make_table
from splitarrow.errors import ExhaustedError
from splitarrow.filters import encode_filter as encode_sql
from splitarrow.server.catalog import filters
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Budget, Encoding
from splitarrow.server.catalog.filters import RowFilter

NUMBERS = pa.table({"n": pa.array(range(100_000), pa.int64())})
PLAIN = pa.schema({"n": pa.int64(), "t": pa.string()})

coalesce: Any = pc.coalesce

MEASURE = """
import sys
import pyarrow as pa
from splitarrow.server.catalog.filters import RowFilter
schema, rows = pa.schema({"n": pa.int64(), "t": pa.string()}), 40_000
words = pa.array(["y" * 100_000, "z"])
indices = pa.array([0, 1] * (rows // 2), pa.int8())
batch = pa.record_batch({"n": range(rows), "t": pa.DictionaryArray.from_arrays(indices, words)})
before = pa.total_allocated_bytes()
row_filter = RowFilter.resolve(sys.argv[1], batch.schema, "x", seconds=60)
kept = row_filter.apply(batch, [0, 1]).num_rows
print(kept, pa.default_memory_pool().max_memory() - before)
"""


def peak_bytes(expression: pc.Expression) -> tuple[int, int]:
    """Return the rows that a filter keeps, and the memory that it takes in a fresh process."""
    command = [sys.executable, "-c", MEASURE, encode_filter(expression, PLAIN)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    kept, nbytes = map(int, output.split())
    return kept, nbytes


def test_a_large_literal_is_not_repeated_for_every_row_at_once() -> None:
    expression = pc.if_else(pc.field("n") > 3, "x" * 26_000, pc.field("t")) == "z"
    kept, nbytes = peak_bytes(expression)
    assert kept == 2
    assert nbytes < 128 << 20


@pytest.mark.slow
def test_a_large_dictionary_value_is_not_repeated_for_every_row_at_once() -> None:
    kept, nbytes = peak_bytes(pc.field("t") == "z")
    assert kept == 20_000
    assert nbytes < 128 << 20


@pytest.mark.parametrize("width", [1 << 26, (1 << 31) - 1])
def test_a_cast_to_a_wide_type_is_refused(width: int) -> None:
    expression = pc.field("t").cast(pa.binary(width), safe=False).is_null()
    pool: Any = pa.default_memory_pool()
    before = pool.max_memory()
    with pytest.raises(ExhaustedError, match="more than 32 MiB of memory for a single row"):
        RowFilter.resolve(encode_filter(expression, PLAIN), PLAIN, "x")
    assert pool.max_memory() < before + (16 << 20)


@pytest.mark.parametrize("budget", [2_000, 50_000])
@pytest.mark.parametrize(
    "expression",
    [
        pc.field("n") >= 600,
        coalesce(pc.field("t"), pc.scalar("nothing")) == "text 7",
        pc.field("d") == "word 3",
        pc.if_else(pc.field("b"), pc.field("t"), pc.field("d")) == "word 1",
        pc.field("f").is_null() | pc.field("n").isin([1, 2, 3]),
    ],
)
def test_slices_give_the_same_result(
    monkeypatch: pytest.MonkeyPatch, expression: pc.Expression, budget: int
) -> None:
    monkeypatch.setattr(filters, "EVALUATION_BYTES", budget)
    table = make_table().select(["n", "f", "t", "b", "d"])
    plain = table.schema.set(4, pa.field("d", pa.string()))
    plain_table = table.cast(plain)
    result = read_dataset(open_dataset(table), filter=encode_filter(expression, plain))
    assert result.table.cast(plain).equals(plain_table.filter(expression))


def read_with_seconds(seconds: float, expression: pc.Expression) -> int:
    encoding = Encoding(budget=Budget(filter_seconds=seconds))
    row_filter = encode_filter(expression, NUMBERS.schema)
    return read_dataset(open_dataset(NUMBERS), encoding, filter=row_filter).rows


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_columns_of_every_kind_are_filtered(share: float) -> None:
    numbers = np.random.default_rng(1)
    rows = 1000
    texts = [None if n % 7 == 0 else f"text {n % 9}" for n in range(rows)]
    storage = pa.array([b"%016d" % n for n in range(rows)], pa.binary(16))
    runs: Any = pa.RunEndEncodedArray
    arrays: dict[str, Any] = {
        "n": pa.array(range(rows)),
        "b": numbers.random(rows) < 0.5,
        "t": texts,
        "d": pa.array(texts).dictionary_encode(),
        "l": [[text] * (n % 3) for n, text in enumerate(texts)],
        "s": [{"a": n, "b": text} for n, text in enumerate(texts)],
        "nothing": pa.nulls(rows),
        "u": pa.ExtensionArray.from_storage(pa.uuid(), storage),
        "v": pa.array(texts, pa.string_view()),
        "r": runs.from_arrays(range(5, rows + 1, 5), range(rows // 5)),
    }
    for names in (list(arrays), list(arrays)[:-2], list(arrays)[:1]):
        batch = pa.record_batch({name: arrays[name] for name in names}, metadata={"k": "v"})
        keep = numbers.random(rows) < share
        batch = batch.append_column("keep", pa.array(keep))
        text = encode_sql("keep", batch.schema)
        filtered = RowFilter.resolve(text, batch.schema, "x").apply(batch, range(len(names) + 1))
        filtered.validate(full=True)
        assert filtered.schema.equals(batch.schema, check_metadata=True)
        expected = [row for row, is_kept in zip(batch.to_pylist(), keep, strict=True) if is_kept]
        assert filtered.to_pylist() == expected


def test_a_filter_that_takes_too_long_is_refused() -> None:
    expensive = pc.if_else(pc.field("n") > 3, "x" * 26_000, "y") == "z"
    with pytest.raises(ExhaustedError, match=r"more than 0\.02 s of processor time"):
        read_with_seconds(0.02, expensive)
    assert read_with_seconds(60, expensive) == 0


def test_a_cheap_filter_may_run_over_any_number_of_rows() -> None:
    many = pa.table({"n": pa.array(np.arange(4_000_000))})
    row_filter = RowFilter.resolve(
        encode_filter(pc.field("n") >= 10, many.schema), many.schema, "x", seconds=0.1
    )
    for _ in range(10):
        for batch in many.to_batches(max_chunksize=1_000_000):
            row_filter.apply(batch, [0])


def record_row_groups(path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> int:
    import pyarrow.parquet as pq

    seen: list[int] = []
    original = pq.ParquetFile.iter_batches

    def record(self: Any, *args: Any, **options: Any) -> Any:
        seen.extend(options["row_groups"])
        return original(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", record)
    expression = pc.field("n").isin(list(range(count)))
    row_filter = encode_filter(expression, NUMBERS.schema)
    assert read_dataset(open_dataset(path), filter=row_filter).rows == count
    return len(seen)


def test_a_costly_filter_is_not_compared_with_every_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "x.parquet", NUMBERS.slice(0, 10_000), row_group_size=10)
    assert record_row_groups(path, monkeypatch, 3) == 1
    assert record_row_groups(path, monkeypatch, 200) == 1000


def test_columns_that_the_filter_ignores_do_not_count(tmp_path: Path) -> None:
    big = pa.table({"n": [1, 2], "t": ["x" * (40 << 20), "y"]})
    path = write_file(tmp_path / "x.arrow", big.to_batches())
    row_filter = encode_filter(pc.field("n") == 1, PLAIN)
    assert read_dataset(open_dataset(path), filter=row_filter).rows == 1
    copying = encode_filter(coalesce(pc.field("t"), pc.scalar("")) == "y", PLAIN)
    with pytest.raises(ExhaustedError, match="for a single row"):
        read_dataset(open_dataset(path), filter=copying)
