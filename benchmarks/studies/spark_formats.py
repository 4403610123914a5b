"""Spark beside Parquet: ``python -m splitarrow.benchmarks.studies.spark_formats``.

It works with every version of Spark that the reader in the JVM works with. Each query runs in turns
on Parquet files, over TCP and on mapped files of the same rows, and must give the same result. A
figure is the time with Parquet divided by that with splitarrow.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ... import pipeline
from ...errors import SplitArrowError
from ...testing import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {"spark.ui.enabled": "false", "spark.driver.memory": "3g", "spark.log.level": "ERROR"}
_SMALL_SHARDS = 500
_WIDE_COLUMNS = 100
_PATHS = ("parquet", "tcp", "mapped")


def _make_frames(spark: SparkSession, rows: int) -> Iterator[tuple[str, DataFrame]]:
    """Yield the rows of each dataset, in four partitions, with its name."""
    numbers = spark.range(0, rows, numPartitions=4)
    yield (
        "rows",
        numbers.selectExpr(
            "id",
            "cast(hash(id) % 240 as int) as delay",
            "cast(hash(id, 1) % 400 as short) as airport",
            "rand(1) as fare",
            "elt(pmod(hash(id, 2), 4) + 1, 'AA', 'DL', 'UA', 'WN') as carrier",
        ),
    )
    yield (
        "strings",
        numbers.limit(rows // 4).repartition(4).selectExpr("sha1(string(id)) as a", "hex(id) as b"),
    )
    columns = [f"rand({index}) as c{index}" for index in range(_WIDE_COLUMNS)]
    yield "wide", spark.range(0, rows // 20, numPartitions=4).selectExpr(*columns)
    yield (
        "small",
        spark.range(0, 2000 * _SMALL_SHARDS, numPartitions=_SMALL_SHARDS).selectExpr(
            "id", "rand(1) as a", "rand(2) as b", "rand(3) as c"
        ),
    )


def _sum(*expressions: str, where: str = "true") -> Callable[[DataFrame], Any]:
    return lambda frame: frame.where(where).selectExpr("count(1)", *expressions).collect()


QUERIES: dict[str, tuple[str, Callable[[DataFrame], Any]]] = {
    "all columns": (
        "rows",
        _sum("sum(id)", "sum(delay)", "sum(airport)", "max(fare)", "sum(length(carrier))"),
    ),
    "a filter that selects 1 %": ("rows", _sum("sum(delay)", where="fare < 0.01")),
    "a filter on a sorted column": ("rows", _sum("max(fare)", where="id between 1000 and 9000")),
    "strings": ("strings", _sum("max(a)", "sum(length(b))")),
    "3 of 100 columns": ("wide", _sum("max(c1)", "max(c50)", "max(c99)")),
    "500 small shards": ("small", _sum("sum(id)", "max(a)", "max(b)", "max(c)")),
}
"""The dataset and the query by its name."""


def measure(spark: SparkSession, folder: Path, rows: int, rounds: int) -> Iterator[list[str]]:
    """Yield the cells of each query: the seconds with Parquet, and the other figures."""
    frames = dict(_make_frames(spark, rows))
    for name, frame in frames.items():
        frame.write.parquet(str(folder / "parquet" / name))
        written = spark.read.parquet(str(folder / "parquet" / name))
        if name == "small":  # as many files as the frame has partitions
            written = frame
        written.write.format("splitarrow").mode("append").save(str(folder / name))
    listen = ["tcp://127.0.0.1:0"]
    datasets = {name: folder / name for name in frames}
    with Daemon(datasets, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        reader = partial(_read, spark, str(daemon.control_uri), folder)
        for query, (name, run) in QUERIES.items():
            jobs = {path: partial(_query, run, reader, name, path) for path in _PATHS}
            seconds = _run_in_turns(jobs, rounds)
            yield [query, *_ratios(seconds), "-"]
        source = spark.read.parquet(str(folder / "parquet" / "rows"))
        targets = {"parquet": folder / "written.parquet", "splitarrow": folder / "written"}

        def write(format: str) -> None:
            shutil.rmtree(targets[format], ignore_errors=True)
            source.write.format(format).mode("append").save(str(targets[format]))

        seconds = _run_in_turns({name: partial(write, name) for name in targets}, rounds)
        base, *ratio = _ratios(seconds)
        yield ["write", base, "-", "-", *ratio]


def _read(spark: SparkSession, uri: str, folder: Path, name: str, path: str) -> DataFrame:
    if path == "parquet":
        return spark.read.parquet(str(folder / "parquet" / name))
    reader = spark.read.format("splitarrow").option("uri", uri)
    if path == "mapped":
        reader = reader.option("folder", str(folder / name))
    return reader.load(name)


def _query(
    run: Callable[[DataFrame], Any], reader: Callable[..., DataFrame], name: str, path: str
) -> Any:
    return run(reader(name, path))


def _run_in_turns(jobs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each job, after two rounds to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    results = {str(job()) for job in jobs.values()}
    if len(results) > 1:
        raise SplitArrowError(f"the formats give different results: {'; '.join(sorted(results))}")
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            begin = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    return {name: median(each) for name, each in seconds.items()}


def _ratios(seconds: dict[str, float]) -> list[str]:
    base, *others = seconds.values()
    return [f"{base:.2f} s", *(f"{base / each:.2f}" for each in others)]


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    spark = pipeline.session("splitarrow benchmark", master=arguments.master, settings=_SETTINGS)
    with tempfile.TemporaryDirectory(prefix="splitarrow-bench-") as folder:
        print(f"| Spark {spark.version} | Parquet | TCP | mapped | sink |")
        print("| --- | --- | --- | --- | --- |")
        for cells in measure(spark, Path(folder), arguments.rows, arguments.rounds):
            print(f"| {' | '.join(cells)} |", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
