"""From raw Parquet to a training loop and back, over two daemons of this machine.

    raw Parquet -> Spark -> shards on two daemons -> a training loop -> scores -> Spark

Run it with ``python examples/taxi_pipeline.py``; it needs ``pip install 'splitarrow[spark]'``, and
on a machine without Java ``'splitarrow[spark,spark-jdk]'``. On a cluster the daemons are started
once on every storage node, and only the middle of `main` remains.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import splitarrow
from splitarrow import pipeline
from splitarrow.pipeline.publish import Publication, publish


def write_raw(folder: Path, rows: int) -> None:
    """Make up some taxi trips, as Parquet files."""
    numbers = np.random.default_rng(2009)
    for part in range(2):
        count = rows // 2
        miles = numbers.gamma(2.0, 1.5, count)
        table = pa.table(
            {
                "trip": pa.array(np.arange(part * count, (part + 1) * count)),
                "miles": pa.array(miles),
                "minutes": pa.array(miles * 3.5 + numbers.normal(5, 1, count)),
                "fare": pa.array(2.5 + 2.2 * miles + numbers.normal(0, 0.5, count)),
                "zone": pa.array([f"zone {index}" for index in numbers.integers(0, 40, count)]),
            }
        )
        pq.write_table(table, folder / f"{part}.parquet")


@contextmanager
def daemon(folder: Path) -> Generator[str]:
    """Run a daemon that takes uploads into a folder; yield its control plane."""
    folder.mkdir()
    ready = folder.with_suffix(".json")
    command = [sys.executable, "-m", "splitarrow", "serve", "--writable", str(folder)]
    command += ["--listen", "tcp://127.0.0.1:0", "--control", "grpc://127.0.0.1:0"]
    log = folder.with_suffix(".log").open("wb")
    with log, subprocess.Popen([*command, "--ready-file", str(ready)], stderr=log) as process:
        try:
            while not ready.is_file() or not ready.read_text().endswith("\n"):
                if process.poll() is not None:
                    sys.exit(f"the daemon does not start: see {log.name}")
                time.sleep(0.05)
            yield json.loads(ready.read_text())["control"]
        finally:
            process.terminate()


def train(uris: list[str], epochs: int) -> np.ndarray:
    """Fit the fare to miles and minutes by gradient descent, batch by batch."""
    weights = np.zeros(3)
    with splitarrow.connect(uris) as client:
        for _ in range(epochs):
            with client.read("trips-train", columns=["miles", "minutes", "fare"]) as stream:
                for batch in stream:  # where there is torch: torch.from_numpy(…)
                    miles, minutes, fare = (column.to_numpy() for column in batch.columns)
                    inputs = np.stack([np.ones_like(miles), miles, minutes / 10], axis=1)
                    error = inputs @ weights - fare
                    weights -= 0.02 * inputs.T @ error / len(fare)
    return weights


def score(uris: list[str], weights: np.ndarray) -> pa.Table:
    """Return what the model says of the rows that it has not seen."""
    with splitarrow.connect(uris) as client:
        found = client.read("trips-validation").read_all()
    miles, minutes = found["miles"].to_numpy(), found["minutes"].to_numpy()
    guess = np.stack([np.ones_like(miles), miles, minutes / 10], axis=1) @ weights
    return found.select(["trip", "fare"]).append_column("guess", pa.array(guess))


def main(rows: int, epochs: int, folder: Path) -> dict[str, float]:
    """Run it all; return what came out."""
    spark = pipeline.session("taxi", settings={"spark.ui.enabled": "false"})
    (raw := folder / "raw").mkdir()
    write_raw(raw, rows)
    with ExitStack() as stack:
        stack.callback(spark.stop)
        uris = [stack.enter_context(daemon(folder / name)) for name in ("a", "b")]
        published = publish(
            spark,
            Publication(
                str(raw),
                "trips",
                uris,
                filter="fare > 0 and minutes > 0",
                split={"train": 0.9, "validation": 0.1},
                shuffle_seed=1,
                repartition=2,
                rows_per_shard=max(1, rows // 8),
                dictionary="zone",
                mode="overwrite",
            ),
        )
        scores = score(uris, train(uris, epochs))
        frame = spark.createDataFrame(scores)
        frame.write.format("splitarrow").mode("overwrite").save(str(folder / "scores"))

        # The trips and the scores, joined by Spark again.
        trips = spark.read.format("splitarrow").option("uri", ",".join(uris))
        zones = trips.option("columns", "trip,zone").load("trips-validation")
        joined = zones.join(frame, "trip").selectExpr(
            "count(*) as rows", "count(distinct zone) as zones", "avg(abs(fare - guess)) as error"
        )
        result = joined.collect()[0].asDict()
    return {**result, **{one.name: one.rows for one in published}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The taxi pipeline")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=30)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="taxi-") as scratch:
        print(json.dumps(main(chosen.rows, chosen.epochs, Path(scratch)), indent=2))
