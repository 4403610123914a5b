"""PySpark: a data source that reads from daemons, a sink, and a publishing job.

Publishing from Python (`VersionStore`, `publish_folder`, `publish_shards`) needs no extra. All else
needs the extra ``spark``::

    from splitarrow import pipeline

    spark = pipeline.session()
    df.write.format("splitarrow").mode("append").save("/data/trips")
    spark.read.format("splitarrow").option("uri", "grpc://host").load("trips")

Notes
-----
Code runs in three places. Spark pickles an object on the driver and sends it to the executors,
whose Python workers run the tasks::

    driver                            executors, once per task       storage and daemons
    ------                            ------------------------       -------------------
    write
      plan_write -> WriteJob
      ShardWriter (pickled) --------> write: write_shards ---------> staged shards
      commit <----------------------- StagedShards (pickled)
        VersionStore.commit ---------------------------------------> manifest of the version
    read
      RemoteDataset.info <------------------------------------------ control plane: endpoints
      plan_read -> ReadTask
      DatasetReader (pickled) ------> read: read_batches <---------- daemon: record batches
    publish (PublishJob)
      read_source, select_rows, ...   row operations in the JVM
      then write, as above
      publish_folder: uploads, with daemons as the destination ----> one commit per daemon

- The driver alone commits. A task only stages shards, which no reader sees, so a task that fails,
  is killed or runs twice leaves nothing behind that a reader could see.
- The job identifier makes a commit idempotent: a dataset has at most one version per job.
- A read uses one version, which the driver chooses. A repeated task reads the same rows again.
- Each micro-batch of a stream is planned in the same way. Spark stores its `stream_offsets`.
- The data source exists twice under one name, in Python and in Java (`jvm/`), and Spark prefers
  Java. That one reads the data plane by itself, and leaves reads that it cannot do to the one in
  Python. The module `plan` runs in processes beside the JVMs: on the driver it speaks with the
  control plane, and on the executors it makes shards of the rows that tasks write.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .java import Java, find_java
from .spark_session import prepare_environment, register, require_pyspark, session

if TYPE_CHECKING:
    from ..client.cluster.publication import ClusterPublishResult, assign_shards, publish_shards
    from ..publication.version_store import VersionStore
    from .dictionaries import dictionary_columns
    from .filters import filter_option
    from .folder_publication import publish_folder
    from .reader import read

__all__ = [
    "ClusterPublishResult",
    "Java",
    "VersionStore",
    "assign_shards",
    "dictionary_columns",
    "filter_option",
    "find_java",
    "prepare_environment",
    "publish_folder",
    "publish_shards",
    "read",
    "register",
    "session",
]

_MODULES = {
    "ClusterPublishResult": "..client.cluster.publication",
    "VersionStore": "..publication.version_store",
    "assign_shards": "..client.cluster.publication",
    "publish_folder": ".folder_publication",
    "publish_shards": "..client.cluster.publication",
}
"""The modules of the names that are imported on first use."""

_REQUIRE_PYSPARK = {
    "dictionary_columns": ".dictionaries",
    "filter_option": ".filters",
    "read": ".reader",
}
"""The same for names that import PySpark."""


def __getattr__(name: str) -> Any:
    module = {**_MODULES, **_REQUIRE_PYSPARK}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _REQUIRE_PYSPARK:
        require_pyspark()
    return getattr(import_module(module, __name__), name)
