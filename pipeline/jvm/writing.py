"""Answers to the requests of the writer in the JVM, on the driver, as JSON objects.

The writer sends the rows of a task to a process of `plan` on the executor, where
`splitarrow.pipeline.shards.stage_stream` makes shards of them. This module plans a write before its
tasks, and commits or aborts it after them. Shards for daemons are staged in a folder first.
"""

from __future__ import annotations

import base64
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as at
from pyspark.sql import types as st

from ...errors import NotFoundError, UsageError
from ...formats.arrow.schema import describe_difference
from ...publication.manifest import ShardEntry
from ...publication.version_store import VersionStore
from ..filters import push_predicates
from ..folder_publication import publish_folder
from ..options import TLS_OPTIONS, SparkOptions, local_path
from ..reader import READ_OPTIONS, RemoteDataset
from ..shards import (
    WriteJob,
    collect_shards,
    decode,
    encode,
    find_partition,
    partition_columns,
    partition_job,
)
from ..types import arrow_schema, spark_schema
from ..writer import WRITE_OPTIONS, plan_write
from .pruning import ShardStatistics, UnknownError, VersionStatistics, simple_schema

_DAEMON_OPTIONS = ("uri", "dataset", "replicas", "staging", "token", "token_file", *TLS_OPTIONS)
_SPARK_OPTIONS = ("__partition_columns", "partitionoverwritemode", "checkpointlocation")
_OWN_OPTIONS = ("partition_by", "mergeschema", "__base")
_OPTIONS = (*WRITE_OPTIONS, *_DAEMON_OPTIONS, *_OWN_OPTIONS, *_SPARK_OPTIONS)


@dataclass(frozen=True, slots=True)
class _Write:
    """A write: its tasks, and what the driver does with their shards."""

    job: WriteJob
    mode: str
    """``append``, ``overwrite``, ``dynamic``, which replaces the partitions that it writes, or
    ``where``, which replaces the shards that a filter selects."""
    daemons: RemoteDataset | None = None
    """The dataset to upload the shards to; None publishes them where they are."""
    replicas: int = 1
    staging: str = ""
    """The folder to remove once the shards are uploaded."""
    base: int | None = None
    """The version that must still be the current one: the write contains its rows anew."""
    where: str = ""
    """The filter of the mode ``where``."""


def answer_write(values: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request of the writer in the JVM.

    Raises `SplitArrowError` if an option is wrong, or a dataset cannot be written.
    """
    return _OPERATIONS[values["operation"]](values)


def _options(values: Mapping[str, Any]) -> SparkOptions:
    """Return the options of the write, and those of its table that a write has."""
    given = {name.lower(): text for name, text in values["options"].items() if text is not None}
    if "__clustering_columns" in given:
        raise UsageError("splitarrow does not cluster rows; use partitionBy instead of clusterBy")
    table = {name.lower(): text for name, text in values.get("table", {}).items()}
    reading = {name for name in (*READ_OPTIONS, "versionasof") if name not in _OPTIONS}
    options = {name: text for name, text in table.items() if name not in reading} | given
    if "path" in options:
        options["path"] = local_path(options["path"])
    return SparkOptions(options, _OPTIONS)


def _find_daemons(options: SparkOptions) -> RemoteDataset | None:
    return RemoteDataset.from_options(options) if options.text("uri") else None


def _load_current(options: SparkOptions) -> Any:
    """Return the schema of the current version; None if there is none."""
    daemons = _find_daemons(options)
    if daemons is None:
        manifest = VersionStore(options.require("path", "/data/flights")).load()
        return None if manifest is None else manifest.schema
    try:
        return daemons.info().schema
    except NotFoundError:
        return None


def _find(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the location of the dataset to write, if it exists, under the key ``existing``.

    It is None if the dataset has no version, or has one of the same job, which is not written
    twice.
    """
    options = _options(values)
    daemons = _find_daemons(options)
    if daemons is not None:
        found = _load_current(options) is not None
        return {"existing": f"{daemons.uri}/{daemons.name}" if found else None}
    store = VersionStore(options.require("path", "/data/flights"))
    job = options.text("job_id")
    if store.load() is None or (job is not None and store.find_job(job) is not None):
        return {"existing": None}
    return {"existing": store.location}


def _plan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check a write. Nothing is written."""
    options, schema = _options(values), st.StructType.fromJson(values["schema"])
    mode: str = values["mode"]
    current = _load_current(options)
    named = options.names("__partition_columns") or options.names("partition_by") or []
    columns = named = [name if name in schema.names else _unquote(name) for name in named]
    dynamic = options.text("partitionoverwritemode") or values.get("overwrite_partitions") or ""
    base = options.count("__base")
    if base is None and mode == "replace" and columns and dynamic.lower() == "dynamic":
        mode = "dynamic"
    if current is not None and (mode != "replace" or base is not None):
        columns = partition_columns(current)
    if named and named != columns:
        raise UsageError(
            f"the dataset is partitioned by {', '.join(columns) or 'no column'}, not by "
            f"{', '.join(named)}; only mode('overwrite') can change that"
        )
    if mode == "replace" or (mode == "dynamic" and (not columns or current is None)):
        mode = "overwrite"
    daemons = _find_daemons(options)
    where = _find_where(values, current) if mode == "where" else ""
    if daemons is not None and mode in ("dynamic", "where"):
        raise UsageError(
            "daemons replace a dataset as a whole; write the partitions to a folder that they serve"
        )
    staging, location = "", options.text("path")
    if daemons is not None:
        folder = options.text("staging") or tempfile.gettempdir()
        staging = f"{folder.rstrip('/')}/splitarrow-write-{uuid.uuid4().hex}"
        location = f"{staging}/{daemons.name}"
    job = partition_job(plan_write(options, schema, location), columns)
    if current is not None and mode != "overwrite":
        job = _conform(job, current)
    elif current is not None and base is not None:
        job = _encode_again(job, current)
    write = _Write(job, mode, daemons, options.count("replicas") or 1, staging, base, where)
    return {
        "write": encode(write),
        "job": encode(job),
        "schema": base64.b64encode(arrow_schema(schema).serialize()).decode(),
        "partition_by": columns,
    }


def _unquote(name: str) -> str:
    """Return the column that a name in back quotes means: Spark requires them in `partitionBy`."""
    return name[1:-1].replace("``", "`") if re.fullmatch("`.*`", name, re.DOTALL) else name


def _load_write(values: Mapping[str, Any]) -> _Write:
    """Return the write of a request, with the job of its micro-batch if it has one."""
    write: _Write = decode(values["write"])
    name = values["job"]
    return write if name is None else replace(write, job=replace(write.job, job_id=name))


def _find_where(values: Mapping[str, Any], current: pa.Schema | None) -> str:
    """Return the filter that selects the shards to replace.

    Raises `UsageError` if splitarrow cannot evaluate it.
    """
    if current is None:
        return ""
    accepted, text = push_predicates(values["where"], current)
    if text is None or not all(accepted):
        raise UsageError("an overwrite compares partition columns with constants only")
    return text


def _is_selected(shard: ShardEntry, schema: pa.Schema, where: str) -> bool:
    """Return whether a filter selects all rows of a shard.

    Raises `UsageError` if it selects only some of them, or nobody knows.
    """
    shards = [ShardStatistics(shard.rows, shard.columns)]
    target = simple_schema(spark_schema(schema))
    statistics = VersionStatistics(schema, target, lambda columns: shards)
    try:
        (decision,) = statistics.decide(where)
    except UnknownError:
        decision = None
    if decision is None:
        raise UsageError(
            f"the overwrite would replace some rows of the shard {shard.path}; compare columns "
            "that partition the dataset"
        )
    return decision


def _conform(job: WriteJob, current: pa.Schema) -> WriteJob:
    """Return a job that appends to a version: with its order of columns, and its wider types.

    Raises `UsageError` if the columns or their types differ otherwise.
    """
    encoded = tuple(f.name for f in current if at.is_dictionary(f.type))
    if set(job.schema.names) == set(current.names):
        fields = [job.schema.field(name) for name in current.names]
        for index, field in enumerate(current):
            data_type = field.type.value_type if field.name in encoded else field.type
            if _is_wider(data_type, fields[index].type):
                fields[index] = fields[index].with_type(data_type)
        metadata: Any = job.schema.metadata
        schema = pa.schema(fields, metadata)
        job = replace(job, schema=schema, dictionary=job.dictionary or encoded)
    difference = describe_difference(current, job.shard_schema)
    if difference is not None:
        raise UsageError(
            f"cannot append: the schema differs from that of the dataset: {difference}; the "
            "option mergeSchema adds columns and widens numbers"
        )
    return job


def _encode_again(job: WriteJob, current: pa.Schema) -> WriteJob:
    """Return a job that writes the rows of a version anew, with its dictionaries of texts."""
    if job.dictionary:
        return job
    encoded = {field.name for field in current if at.is_dictionary(field.type)}
    texts = [f.name for f in job.schema if at.is_string(f.type) or at.is_binary(f.type)]
    return replace(job, dictionary=tuple(name for name in texts if name in encoded))


def _is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether a type of numbers has all values of another one."""
    if at.is_decimal(wide) and at.is_decimal(narrow):
        one, other = (each.precision - each.scale for each in (wide, narrow))
        return not wide.equals(narrow) and one >= other and wide.scale >= narrow.scale
    for kind in (at.is_signed_integer, at.is_floating):
        if kind(wide) and kind(narrow):
            return wide.bit_width > narrow.bit_width
    return False


def _merge(values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the columns of a frame with those of the current version, by name.

    The answer names the version if its rows have to be written again: with more columns, or wider
    numbers.
    """
    options, frame = _options(values), st.StructType.fromJson(values["schema"])
    if options.text("uri"):
        raise UsageError(
            "the option mergeSchema does not work for daemons; write to a folder that they serve"
        )
    manifest = VersionStore(options.require("path", "/data/flights")).load()
    if manifest is None or not options.flag("mergeschema", False):
        return {}
    old = spark_schema(manifest.schema)
    stored, new = arrow_schema(old), arrow_schema(frame)
    merged = st.StructType()
    for field in old:
        data_type = field.dataType
        if field.name in new.names:
            ours, theirs = stored.field(field.name).type, new.field(field.name).type
            if _is_wider(theirs, ours):
                data_type = frame[field.name].dataType
            elif not theirs.equals(ours) and not _is_wider(ours, theirs):
                raise UsageError(
                    f"cannot append: the column {field.name!r} is {theirs}, not {ours}, and "
                    "mergeSchema only widens numbers"
                )
        merged = merged.add(field.name, data_type)
    for field in frame:
        if field.name not in old.names:
            merged = merged.add(field.name, field.dataType)
    version = None if merged == old else manifest.version
    return {"schema": merged.jsonValue(), "version": version}


def _create(values: Mapping[str, Any]) -> dict[str, Any]:
    """Publish a version without rows."""
    request = {**_plan(values), "job": None, "messages": []}
    _begin(request)
    return _commit(request)


def _begin(values: Mapping[str, Any]) -> dict[str, Any]:
    job = _load_write(values).job
    VersionStore(job.location).create_staging(job.job_id)
    return {}


def _check(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a stream can be written. Spark hides why one of its tasks fails."""
    job = _load_write(values).job
    store = VersionStore(job.location)
    store.create_staging(job.job_id)
    store.discard_empty_staging(job.job_id)
    return {}


def _commit(values: Mapping[str, Any]) -> dict[str, Any]:
    """Publish the shards of all tasks as the next version, unless the job has one already.

    A micro-batch without rows publishes nothing, unless it overwrites.
    """
    write = _load_write(values)
    job, store = write.job, VersionStore(write.job.location)
    shards = collect_shards([decode(message) for message in values["messages"]])
    if values["job"] is not None and not shards and write.mode == "append":
        store.discard_empty_staging(job.job_id)
        return {}
    append, replaces = write.mode != "overwrite", None
    if write.mode == "dynamic":
        columns = partition_columns(job.schema)
        written = {find_partition(shard, columns) for shard in shards}
        replaces = lambda shard: find_partition(shard, columns) in written  # noqa: E731
    elif write.where:
        replaces = partial(_is_selected, schema=job.shard_schema, where=write.where)
    if write.daemons is None:
        store.commit(
            job.job_id,
            job.shard_schema,
            shards,
            append=append,
            replaces=replaces,
            base=write.base,
        )
        return {}
    try:
        store.commit(job.job_id, job.shard_schema, shards, append=False)
        dataset = write.daemons
        publish_folder(
            job.location,
            dataset.name,
            dataset.uri.split(","),
            job=job.job_id,
            replicas=write.replicas,
            mode=write.mode,
            token=dataset.token,
            tls=dataset.tls,
        )
    finally:
        shutil.rmtree(write.staging, ignore_errors=True)
    return {}


def _abort(values: Mapping[str, Any]) -> dict[str, Any]:
    """Delete the shards that the tasks have staged."""
    write = _load_write(values)
    if write.daemons is None:
        VersionStore(write.job.location).discard(write.job.job_id)
    else:
        shutil.rmtree(write.staging, ignore_errors=True)
    return {}


_OPERATIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "find": _find,
    "merge": _merge,
    "write": _plan,
    "create": _create,
    "check": _check,
    "begin": _begin,
    "commit": _commit,
    "abort": _abort,
}
WRITES = frozenset(_OPERATIONS)
"""The operations of `answer_write`."""
