"""A pipeline from raw files to a trained model and back, with Spark and two daemons.

    Parquet files -> Spark -> shards on two daemons -> training -> predictions -> Spark

Run it with ``python examples/taxi_pipeline.py``. It needs ``pip install 'splitarrow[spark]'``, and
also the extra ``spark-jdk`` on a machine without Java.

Here everything runs on one machine. On a cluster, every storage node runs ``splitarrow serve
--writable FOLDER``, and the functions from `publish_trips` to `join_predictions` stay the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import splitarrow
from splitarrow import pipeline
from splitarrow.pipeline.publish import PublishJob, publish
from splitarrow.testing import Daemon

ZONES = 40
LEARNING_RATE = 0.02


def main() -> None:
    """Run the pipeline in a temporary folder, and print its results as JSON."""
    parser = argparse.ArgumentParser(description="A pipeline over taxi trips.")
    parser.add_argument("--rows", type=int, default=200_000, help="the number of trips")
    parser.add_argument("--epochs", type=int, default=30, help="the number of passes over the data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="taxi-") as folder:
        spark = pipeline.session("taxi", settings={"spark.ui.enabled": "false"})
        try:
            results = run_pipeline(spark, Path(folder), options.rows, options.epochs)
        finally:
            spark.stop()
    print(json.dumps(results, indent=2))


def run_pipeline(spark: SparkSession, folder: Path, rows: int, epochs: int) -> dict[str, Any]:
    """Prepare, publish, train, predict and join; return figures about each step."""
    raw = folder / "raw"
    write_raw_trips(raw, rows)
    with ExitStack() as stack:
        uris: list[str] = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            daemon = Daemon(control="grpc://127.0.0.1:0", writable=folder / name)
            uris.append(stack.enter_context(daemon).control_uri)
        published = publish_trips(spark, raw, uris, shard_rows=max(1, rows // 8))
        weights = train(uris, epochs)
        predictions = predict(uris, weights)
        return {**join_predictions(spark, uris, predictions, folder / "predictions"), **published}


def write_raw_trips(folder: Path, rows: int) -> None:
    """Write random taxi trips to two Parquet files."""
    folder.mkdir()
    random = np.random.default_rng(2009)
    count = rows // 2
    for part in range(2):
        miles = random.gamma(2.0, 1.5, count)
        trips = pa.table(
            {
                "trip": pa.array(np.arange(part * count, (part + 1) * count)),
                "miles": pa.array(miles),
                "minutes": pa.array(miles * 3.5 + random.normal(5, 1, count)),
                "fare": pa.array(2.5 + 2.2 * miles + random.normal(0, 0.5, count)),
                "zone": pa.array([f"zone {zone}" for zone in random.integers(0, ZONES, count)]),
            }
        )
        pq.write_table(trips, folder / f"{part}.parquet")


def publish_trips(
    spark: SparkSession, raw: Path, uris: list[str], shard_rows: int
) -> dict[str, int]:
    """Clean, split and shuffle the trips with Spark, and publish them to the daemons.

    Returns the number of rows by dataset: ``trips-train`` and ``trips-validation``.
    """
    job = PublishJob(
        source=str(raw),
        name="trips",
        to=uris,
        filter="fare > 0 and minutes > 0",
        split={"train": 0.9, "validation": 0.1},
        shuffle_seed=1,
        repartition=2,
        rows_per_shard=shard_rows,
        dictionary="zone",
        mode="overwrite",
    )
    return {result.name: result.rows for result in publish(spark, job)}


def train(uris: list[str], epochs: int) -> np.ndarray:
    """Fit the fare to miles and minutes by gradient descent, one record batch per step."""
    weights = np.zeros(3)
    with splitarrow.connect(uris) as client:
        for _ in range(epochs):
            with client.read("trips-train", columns=["miles", "minutes", "fare"]) as stream:
                for batch in stream:
                    inputs = features(batch)
                    error = inputs @ weights - batch["fare"].to_numpy()
                    weights -= LEARNING_RATE * inputs.T @ error / len(error)
    return weights


def predict(uris: list[str], weights: np.ndarray) -> pa.Table:
    """Return the validation trips with a column of predicted fares."""
    with splitarrow.connect(uris) as client:
        trips = client.read("trips-validation").read_all()
    predicted = pa.array(features(trips) @ weights)
    return trips.select(["trip", "fare"]).append_column("predicted", predicted)


def features(trips: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Return the inputs of the model: a constant, the miles, and the minutes scaled down."""
    miles, minutes = trips["miles"].to_numpy(), trips["minutes"].to_numpy()
    return np.stack([np.ones_like(miles), miles, minutes / 10], axis=1)


def join_predictions(
    spark: SparkSession, uris: list[str], predictions: pa.Table, folder: Path
) -> dict[str, Any]:
    """Publish the predictions to a folder, and join them with the trips of the daemons."""
    predicted = spark.createDataFrame(predictions)
    predicted.write.format("splitarrow").mode("overwrite").save(str(folder))
    trips = (
        spark.read.format("splitarrow")
        .option("uri", ",".join(uris))
        .option("columns", "trip,zone")
        .load("trips-validation")
    )
    joined = trips.join(predicted, "trip").selectExpr(
        "count(*) as rows",
        "count(distinct zone) as zones",
        "avg(abs(fare - predicted)) as error",
    )
    return joined.collect()[0].asDict()


if __name__ == "__main__":
    main()
