"""Spark Connect: a client without a JVM, and a server of the same version in another process.

``make test-spark`` installs what PySpark needs for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from helpers.publication import numbers, publish, read_version
from splitarrow.pipeline.jvm import JAR
from splitarrow.pipeline.spark_versions import HAS_PYTHON_SOURCES, VERSION
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

pytest.importorskip("grpc_status", reason="pyspark[connect] is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not HAS_PYTHON_SOURCES, reason=f"PySpark {VERSION} has no Connect server"),
]
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
PRELUDE = """
import json, sys
from pyspark.sql import SparkSession
from splitarrow import pipeline
from splitarrow.pipeline.publish import PublishJob, publish
uri, folder, settings, *daemons = json.loads(sys.argv[1])
pipeline.prepare_environment("local[2]")
builder = SparkSession.builder.remote("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert not hasattr(spark, "_jsparkSession")
answers = {}
def catch(function):
    try:
        return str(function())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(serve: Callable[..., Daemon], tmp_path: Path) -> Run:
    """Run a script in a process of its own, with a dataset ``set``; return its answers."""
    publish(VersionStore(tmp_path / "set"), "job", numbers(0, 100), numbers(100, 100))
    uri = serve({"set": tmp_path / "set"}).control_uri

    def run(script: str, *daemons: str, jars: str = "") -> dict[str, Any]:
        settings = {**SETTINGS, "spark.jars": jars} if jars else SETTINGS
        arguments = json.dumps([uri, str(tmp_path), settings, *daemons])
        process = subprocess.run(
            [sys.executable, "-c", f"{PRELUDE}{script}\nprint(json.dumps(answers))", arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-4000:]
        return json.loads(process.stdout.splitlines()[-1])

    return run


def test_reading_and_writing(run: Run, tmp_path: Path):
    answers = run(
        """
frame = pipeline.read(spark, uri, "set", columns=["n"], filter="n >= 50")
answers["read"] = [frame.columns, frame.count()]
pipeline.register(spark)
answers["jvm"] = catch(lambda: pipeline.register(spark, jvm_reader=True))
source = spark.read.format("splitarrow").option("uri", uri)
source.load("set").createOrReplaceTempView("numbers")
answers["sql"] = spark.sql("SELECT sum(n) FROM numbers WHERE n < 150").collect()[0][0]
answers["wrong"] = catch(lambda: source.option("limit", "x").load("set").count())
for mode in ("append", "overwrite"):
    spark.range(10).write.format("splitarrow").mode(mode).save(folder + "/out")
stream = spark.readStream.format("splitarrow").option("uri", uri).load("set").writeStream
stream = stream.trigger(availableNow=True).option("checkpointLocation", folder + "/checkpoint")
stream.format("parquet").start(folder + "/rows").awaitTermination()
answers["stream"] = spark.read.parquet(folder + "/rows").count()
"""
    )
    assert answers["read"] == [["n"], 150]
    assert answers["sql"] == sum(range(150))
    assert answers["stream"] == 200
    assert "a Spark Connect session has no JVM of its own" in answers["jvm"]
    assert "option 'limit' is 'x'; it must be an integer" in answers["wrong"]
    store = VersionStore(tmp_path / "out")
    assert store.list_versions() == [1, 2]
    assert read_version(store, store.load()).num_rows == 10


def test_publishing(run: Run, tmp_path: Path, writable_daemons: list[Daemon]):
    (tmp_path / "odd [name]").mkdir()
    pq.write_table(numbers(0, 1000), tmp_path / "odd [name]" / "rows.parquet")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "table" / "_delta_log" / "0.json").touch()
    pq.write_table(numbers(0, 10), tmp_path / "table" / "rows.parquet")
    answers = run(
        """
source = folder.replace("[", "\\\\[") + "/odd \\\\[name\\\\]/rows.parquet"
def job(name, **settings):
    settings = {"source": source, "to": [folder], "name": name, **settings}
    return sum(result.rows for result in publish(spark, PublishJob(**settings)))
answers["all"] = job("all", cast={"n": "int"}, shuffle_seed=1, repartition=2, dictionary="auto")
answers["parts"] = job("parts", split={"a": 0.5, "b": 0.5})
answers["daemons"] = job("all", to=daemons, mode="append", replicas=2)
answers["read"] = pipeline.read(spark, ",".join(daemons), "all").count()
answers["cast"] = catch(lambda: job("bad", cast={"text": "int"}))
answers["table"] = catch(lambda: job("bad", source=folder + "/table"))
answers["missing"] = catch(lambda: job("bad", source=folder + "/absent.parquet"))
""",
        *[daemon.control_uri for daemon in writable_daemons],
    )
    counts = {name: answers[name] for name in ("all", "parts", "daemons", "read")}
    assert counts == dict.fromkeys(counts, 1000)
    assert "CAST_INVALID_INPUT" in answers["cast"]
    assert f"DatasetError: {tmp_path}/table" in answers["table"]
    assert "is a Delta table" in answers["table"]
    assert "UsageError: " in answers["missing"]
    assert "PATH_NOT_FOUND" in answers["missing"]
    assert not any("\n" in answers[name] for name in ("cast", "table", "missing"))
    store = VersionStore(tmp_path / "all")
    assert read_version(store, store.load()).sort_by("n")["n"].to_pylist() == list(range(1000))
    assert VersionStore(tmp_path / "bad").load() is None
    assert not list((tmp_path / "bad").rglob("*.arrow"))


def test_the_server_has_the_reader_in_the_jvm(run: Run):
    answers = run(
        """
source = spark.read.format("splitarrow").options(uri=uri, reader="jvm").load("set")
answers["rows"] = source.where("n < 5").count()
stream = spark.readStream.format("splitarrow").options(uri=uri, maxShardsPerTrigger=1)
stream = stream.load("set")
query = stream.writeStream.trigger(availableNow=True).format("memory").queryName("rows").start()
query.awaitTermination()
answers["stream"] = [spark.table("rows").count(), len(query.recentProgress)]
""",
        jars=str(JAR),
    )
    assert answers["rows"] == 5
    rows, batches = answers["stream"]
    assert rows == 200
    assert batches >= 2
