"""Answers to the requests of the reader in the JVM, as JSON objects.

The process of `plan` gives them: it speaks with the control plane for the JVM. A plan also names
the files of a published dataset that Spark's tasks may map instead of asking a daemon for rows.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from ...client.cluster.client import ClusterClient
from ...client.cluster.info import MergedDataset, ReplicaInfo
from ...client.connect import AnyClient
from ...client.dataset.requests import check_complete, pin_version
from ...client.rpc.info import DatasetInfo, Endpoint
from ...errors import DatasetError, UsageError
from ...protocol.request import Request
from ...protocol.uri import TCP_PORT, DataUri, Streams
from ...publication.layout import format_shard_name
from ...publication.manifest import ShardEntry
from ...publication.storage import is_object_url
from ...publication.version_store import VersionStore
from ...transport.tls_options import TlsOptions
from ..filters import parse_option, push_predicates
from ..options import SparkOptions
from ..reader import (
    RemoteDataset,
    pack_shards,
    read_options,
    refuse_stream_options,
    select_columns,
    shard_ordinals,
)
from ..shards import partition_columns
from ..types import arrow_schema, spark_schema, stored_schema
from . import MEMORY_LIMIT
from .aggregates import compute_aggregates
from .folder import answer_folder, find_folder
from .streaming import find_batch, find_latest, start_stream

_VERSION = re.compile(r"(\d{1,18})-[0-9a-f]+")


class LocalShards:
    """The shards that one folder has of the versions to read.

    Raises `UsageError` if the location is not a folder, or has none of the versions.
    """

    def __init__(self, location: str, versions: Iterable[str]) -> None:
        if is_object_url(location):
            raise UsageError(f"the option folder is {location}; only a local folder can be mapped")
        store = VersionStore(location)
        self._folder = Path(store.location)
        self._shards: Mapping[str, ShardEntry] = _read_manifests(store, set(versions))

    def find(self, endpoint: Endpoint) -> dict[str, Any] | None:
        """Return the path and the size of a shard's file; None if the folder does not have it.

        The size and the SHA-256 of the manifest must be those that the daemon reports, and the
        name of the file contains the beginning of that SHA-256.
        """
        shard = self._shards.get(endpoint.sha256)
        if shard is None or shard.nbytes != endpoint.nbytes:
            return None
        if format_shard_name("", shard.sha256) not in shard.path.rpartition("/")[2]:
            return None
        return {"path": str(self._folder / shard.path), "bytes": shard.nbytes}


def _read_manifests(store: VersionStore, versions: set[str]) -> dict[str, ShardEntry]:
    """Return the shards of versions by their SHA-256."""
    numbers = {int(match[1]) for match in map(_VERSION.fullmatch, versions) if match}
    try:
        manifests = [store.load(number) for number in sorted(numbers)]
    except DatasetError as error:
        raise UsageError(f"the option folder: {error.message}") from None
    found = [manifest for manifest in manifests if manifest is not None]
    if not found:
        raise UsageError(
            f"the option folder is {store.location!r}, which is not the folder of this dataset: "
            f"it has no version {', '.join(sorted(versions)) or 'at all'}"
        )
    return {shard.sha256: shard for manifest in found for shard in manifest.shards}


_TRANSPORTS = ("tcp", "tcp+tls")


@dataclass(frozen=True, slots=True)
class _Question:
    """A request of the reader in the JVM."""

    values: Mapping[str, Any]
    options: SparkOptions
    dataset: RemoteDataset

    def text(self, name: str) -> str | None:
        """Return a text of the request; None if it is absent or empty."""
        return self.values.get(name) or None

    def request(self, **selection: Any) -> Request:
        """Return a request for the columns and the filter of the query."""
        return Request(
            self.dataset.name,
            columns=tuple(self.values.get("columns") or ()) or None,
            filter=self.text("filter") or self.options.text("filter"),
            **selection,
        )


def answer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request of the reader in the JVM.

    Raises `SplitArrowError` if an option is wrong, or the control plane refuses.
    """
    settings = {name: text for name, text in values["options"].items() if text is not None}
    options = read_options(settings)
    folder = find_folder(options)
    if folder is not None:
        return answer_folder(folder, values, options)
    question = _Question(values, options, RemoteDataset.from_options(options))
    return _OPERATIONS[values["operation"]](question)


def _list(question: _Question) -> dict[str, Any]:
    """List the datasets of the control plane."""
    with question.dataset.connect() as client:
        return {"datasets": sorted(client)}


def _drop(question: _Question) -> dict[str, Any]:
    """Remove the dataset from its daemons."""
    with question.dataset.connect() as client:
        client.drop(question.dataset.name)
    return {}


def _describe(question: _Question) -> dict[str, Any]:
    """Describe the dataset that the options name, in the version to read."""
    options, dataset = question.options, question.dataset
    limit = options.count("limit", minimum=0)
    options.count("shards_per_partition")
    info = dataset.info(options.text("version"))
    columns = select_columns(info, options.names("columns"))
    filter_text = options.text("filter")
    filtered = filter_text is not None
    if filter_text is not None:
        parse_option(filter_text)
    rows = -1 if filtered or info.rows is None else info.rows
    if limit is not None and rows >= 0:
        rows = min(limit, rows)
    return {
        "dataset": dataset.name,
        "problem": _find_problem(info, columns, dataset),
        "schema": spark_schema(columns).jsonValue(),
        "stored_schema": stored_schema(columns).jsonValue(),
        "version": info.version,
        "rows": rows,
        "bytes": -1 if info.bytes is None else info.bytes,
        "pushdown": options.flag("pushdown", True) and not filtered and limit is None,
        "connect_millis": int(dataset.arguments["connect_timeout"] * 1000),
        "stall_millis": int(dataset.arguments["stall_timeout"] * 1000),
        "memory_limit": options.nbytes("memory_limit", MEMORY_LIMIT),
        "partition_by": partition_columns(info.schema),
    }


def _find_problem(info: DatasetInfo, schema: pa.Schema, dataset: RemoteDataset) -> str | None:
    """Return why the reader in the JVM cannot read a dataset; None if it can."""
    transport = dataset.arguments["transport"]
    if transport not in ("auto", *_TRANSPORTS):
        return f"the option transport is {transport!r}"
    if len(set(schema.names)) < len(schema.names):
        return "two columns have the same name"
    if not schema.names:
        return "it has no columns"
    for endpoint in info.endpoints:
        addresses = list(_addresses(endpoint, dataset))
        if not addresses:
            return "the daemon does not listen on tcp"
        if any(address["tls"] is not None for address in addresses):
            return _find_key_problem(dataset.tls or TlsOptions.from_environment())
    return None


def _find_key_problem(tls: TlsOptions) -> str | None:
    """Return why Java cannot use the key of a client's certificate; None if it can."""
    path = tls.key_file or tls.cert_file
    if path is None or b"-----BEGIN PRIVATE KEY-----" in Path(path).read_bytes():
        return None
    return f"the key in {os.fspath(path)} is not in the form PKCS #8, unencrypted"


def _push(question: _Question) -> dict[str, Any]:
    """Choose the predicates that the daemon evaluates."""
    info = question.dataset.info(question.text("version"))
    accepted, text = push_predicates(question.values["predicates"], info.schema)
    return {"accepted": accepted, "filter": text}


def _exportable(schema: st.StructType) -> pa.Schema:
    """Return the columns that a filter can use, with the types that Spark gives them."""
    simple = (st.AtomicType, st.NumericType)
    return arrow_schema(
        st.StructType([field for field in schema if isinstance(field.dataType, simple)])
    )


def _aggregate(question: _Question) -> dict[str, Any]:
    """Return the values of aggregates over all rows, if the manifest has them."""
    with question.dataset.connect() as client:
        merged = _describe_replicas(client, question.request(version=question.text("version")))
    target = _exportable(
        spark_schema(select_columns(merged.info, question.options.names("columns")))
    )
    aggregates = question.values["aggregates"]
    return {"values": compute_aggregates(question.dataset, merged, aggregates, target)}


def _plan(question: _Question) -> dict[str, Any]:
    """Divide the shards of one version among tasks, with tickets for all of their replicas."""
    refuse_stream_options(question.options)
    return _plan_shards(question, question.text("version"), None)


def _plan_shards(
    question: _Question, version: str | None, selected: Set[int] | None
) -> dict[str, Any]:
    """Divide the shards that have the selected ordinals among tasks; None selects all shards."""
    limit = question.options.count("limit", minimum=0)
    shards_per_task = question.options.count("shards_per_partition")
    with question.dataset.connect() as client:
        merged = _describe_replicas(client, question.request(version=version))
    files = _find_files(question, merged)
    chosen = [
        (ordinal, endpoint, replicas)
        for ordinal, endpoint, replicas in zip(
            shard_ordinals(merged.info), merged.info.endpoints, merged.replicas, strict=True
        )
        if selected is None or ordinal in selected
    ]
    shards = [
        {
            "ordinal": ordinal,
            "rows": -1 if endpoint.rows is None else endpoint.rows,
            "replicas": [
                _encode_replica(replica, question.dataset) for replica in _rotate(replicas, index)
            ],
            "file": files.find(endpoint) if files else None,
        }
        for index, (ordinal, endpoint, replicas) in enumerate(chosen)
    ]
    if limit is not None:
        return {"partitions": [shards], "limit": limit}
    sizes = [endpoint.nbytes for _, endpoint, _ in chosen]
    settings = [question.values[name] for name in ("parallelism", "max_bytes", "open_bytes")]
    packed = pack_shards(sizes, shards_per_task, *settings)
    return {"partitions": [[shards[index] for index in task] for task in packed], "limit": -1}


def _stream_start(question: _Question) -> dict[str, Any]:
    """Return the offset at which a streaming query begins."""
    return start_stream(question.dataset.info, question.options)


def _stream_latest(question: _Question) -> dict[str, Any]:
    """Return the offset at which a micro-batch ends."""
    return find_latest(question.dataset.info, question.values, question.options)


def _stream_plan(question: _Question) -> dict[str, Any]:
    """Divide the shards of a micro-batch among tasks."""
    info, ordinals = find_batch(question.dataset.info, question.values)
    if not ordinals:
        return {"partitions": [], "limit": -1}
    return _plan_shards(question, info.version, ordinals)


def _find_files(question: _Question, merged: MergedDataset) -> LocalShards | None:
    """Return the files that the tasks may map; None if the daemon has to send the rows.

    The daemon evaluates the filters and extracts the fields of structs, and the files have all rows
    and whole columns.
    """
    folder = question.options.text("folder")
    if folder is None or question.text("filter") or question.options.text("filter"):
        return None
    names = question.options.names("columns")
    if names and set(names) - set(question.dataset.info(merged.info.version).schema.names):
        return None
    versions = {replica.version for replicas in merged.replicas for replica in replicas}
    return LocalShards(folder, versions)


def _renew(question: _Question) -> dict[str, Any]:
    """Request a new ticket for the rest of a shard at one daemon."""
    values = question.values
    dataset = replace(question.dataset, uri=values["control"])
    selection = {
        name: values[name]
        for name in ("offset", "limit", "shard", "version")
        if values.get(name) not in (None, "")
    }
    with dataset.connect() as client:
        merged = _describe_replicas(client, question.request(**selection))
    ((replica,),) = merged.replicas
    return {"replica": _encode_replica(replica, dataset)}


def _describe_replicas(client: AnyClient, request: Request) -> MergedDataset:
    if isinstance(client, ClusterClient):
        return client.describe_replicas(request)
    info = client.describe(request)
    if request.shard is None:
        check_complete(info, client.uri)
    several = len(info.endpoints) > 1
    replicas = tuple(
        (ReplicaInfo(client.uri, info.version, index if several else request.shard, endpoint),)
        for index, endpoint in enumerate(info.endpoints)
    )
    return MergedDataset(info, replicas)


def _rotate(replicas: tuple[ReplicaInfo, ...], index: int) -> tuple[ReplicaInfo, ...]:
    """Return the replicas, beginning with another one for each shard."""
    start = index % len(replicas)
    return (*replicas[start:], *replicas[:start])


def _encode_replica(replica: ReplicaInfo, dataset: RemoteDataset) -> dict[str, Any]:
    endpoint = pin_version(replica.endpoint, replica.version)
    return {
        "control": replica.address,
        "version": replica.version,
        "shard": replica.shard,
        "ticket": base64.b64encode(endpoint.ticket).decode(),
        "addresses": list(_addresses(endpoint, dataset)),
    }


def _addresses(endpoint: Endpoint, dataset: RemoteDataset) -> Iterator[dict[str, Any]]:
    """Yield the addresses that carry both streams over TCP. Numbers of 64 bits are texts."""
    transport = dataset.arguments["transport"]
    transports = _TRANSPORTS if transport == "auto" else (transport,)
    for text in endpoint.locations:
        if text.partition(":")[0] not in transports:
            continue
        uri = DataUri.parse(text)
        if uri.stream is Streams.BOTH and uri.want_data is not None:
            yield {
                "host": uri.host,
                "port": uri.port or TCP_PORT,
                "want_data": str(uri.want_data),
                "keep_alive": None if uri.keep_alive is None else str(uri.keep_alive),
                "tls": _encode_tls(dataset.tls) if uri.scheme != "tcp" else None,
            }


def _encode_tls(tls: TlsOptions | None) -> dict[str, str | None]:
    """Return the files that options name. Without any, the executor's variables apply."""
    if tls is None:
        return {}
    files = {"ca": tls.ca_file, "cert": tls.cert_file, "key": tls.key_file}
    named = {name: os.fspath(path) for name, path in files.items() if path is not None}
    return {**named, "server_name": tls.server_name}


_OPERATIONS: dict[str, Callable[[_Question], dict[str, Any]]] = {
    "list": _list,
    "drop": _drop,
    "describe": _describe,
    "push": _push,
    "aggregate": _aggregate,
    "plan": _plan,
    "stream_start": _stream_start,
    "stream_latest": _stream_latest,
    "stream_plan": _stream_plan,
    "renew": _renew,
}
