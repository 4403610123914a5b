"""Variants by columns beside duckdb and Spark, each on one core.

``python -m splitarrow.benchmarks.studies.variant --rows 1000000 --peers duckdb,spark``
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ... import variant

_BATCH_ROWS = 100_000
_DATA_TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("at", pa.struct([("lat", pa.int64()), ("lon", pa.int64())])),
    ]
)

Figures = dict[str, float]
"""The seconds of each task, by its name."""


def make_texts(rows: int) -> pa.Array[Any]:
    """Return JSON documents of some 80 bytes, with seven numbers and texts."""
    return pa.array(
        [
            f'{{"at":{{"lat":{row % 90},"lon":{row % 180}}},"id":{row},"name":"user{row}",'
            f'"ok":{"true" if row % 2 else "false"},"tags":["a","bc"]}}'
            for row in range(rows)
        ]
    )


def measure(
    task: Callable[[], object], turns: int, clock: Callable[[], float] = time.process_time
) -> float:
    """Return the median of the processor seconds of a task, or of those of another clock."""
    seconds: list[float] = []
    for _ in range(turns):
        start = clock()
        task()
        seconds.append(clock() - start)
    return statistics.median(seconds)


def measure_own(column: Any, texts: Any, turns: int) -> Figures:
    """Measure the functions of `splitarrow.variant`."""
    shredded = variant.shred(column, _DATA_TYPE)
    return {
        "encode JSON": measure(lambda: variant.from_json(texts), 1),
        "decode to JSON": measure(lambda: variant.to_json(column), turns),
        "read a path": measure(lambda: variant.get(column, "$.at.lat", pa.int64()), turns),
        "shred": measure(lambda: variant.shred(column, _DATA_TYPE), turns),
        "unshred": measure(lambda: variant.unshred(shredded), turns),
    }


def measure_duckdb(table: pa.Table, texts: Any, shredded: Path, turns: int) -> Figures:
    """Measure duckdb with one thread. It casts from JSON, and shreds while it writes Parquet."""
    import duckdb

    with duckdb.connect() as connection:
        connection.sql("SET threads = 1")
        connection.register("served", table)
        connection.register("texts", pa.table({"t": texts}))
        connection.sql("CREATE TABLE own AS SELECT v FROM served")
        target = shredded.with_name("duckdb.parquet")

        def run(query: str) -> float:
            return measure(lambda: connection.sql(query).fetchall(), turns)

        def write() -> None:
            connection.execute(f"COPY own TO '{target}'")

        return {
            "encode JSON": run("SELECT count(t::JSON::VARIANT) FROM texts"),
            "decode to JSON": run("SELECT sum(length(v::JSON::VARCHAR)) FROM own"),
            "read a path": run("SELECT sum(v.at.lat::INT) FROM own"),
            "shred": measure(write, turns),
            "unshred": run(f"SELECT sum(length(v::JSON::VARCHAR)) FROM '{shredded}'"),
        }


def measure_spark(plain: Path, shredded: Path, texts: Path, turns: int) -> Figures:
    """Measure Spark with one task at a time. Its time is that of the clock, after one warm-up."""
    from ...pipeline import session

    spark: Any = session("variants", master="local[1]")
    try:

        def run(path: Path, expression: str) -> float:
            frame = spark.read.parquet(str(path)).selectExpr(expression)

            def write() -> None:
                frame.write.format("noop").mode("overwrite").save()

            write()  # warms up
            return measure(write, turns, time.perf_counter)

        return {
            "encode JSON": run(texts, "parse_json(t)"),
            "decode to JSON": run(plain, "to_json(v)"),
            "read a path": run(plain, "variant_get(v, '$.at.lat', 'bigint')"),
            "unshred": run(shredded, "to_json(v)"),
        }
    finally:
        spark.stop()


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print the rows per second as a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", default="duckdb,spark")
    options = parser.parse_args(arguments)
    pa.set_cpu_count(1)
    texts = make_texts(options.rows)
    column = variant.from_json(pa.chunked_array([texts]))
    schema = pa.schema([variant.field("v")])
    table = pa.Table.from_arrays([column], schema=schema)
    figures = {"splitarrow": measure_own(column, texts, options.turns)}
    with tempfile.TemporaryDirectory() as folder:
        plain, shredded, strings = (
            Path(folder) / f"{name}.parquet" for name in ("plain", "shredded", "texts")
        )
        variant.write_parquet(table, plain, row_group_size=_BATCH_ROWS)
        variant.write_parquet(table, shredded, shred={"v": _DATA_TYPE}, row_group_size=_BATCH_ROWS)
        pq.write_table(pa.table({"t": texts}), strings)
        if "duckdb" in options.peers:
            figures["duckdb"] = measure_duckdb(table, texts, shredded, options.turns)
        if "spark" in options.peers:
            figures["Spark"] = measure_spark(plain, shredded, strings, options.turns)
    print(format_table(figures, options.rows))


def format_table(figures: dict[str, Figures], rows: int) -> str:
    """Return the rows per second of each task and program."""
    lines = [f"| thousand rows/s | {' | '.join(figures)} |", f"| --- {'| --- ' * len(figures)}|"]
    for task in figures["splitarrow"]:
        cells = [
            f"{rows / each[task] / 1000:,.0f}" if task in each else "" for each in figures.values()
        ]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
