"""Answers to the requests of the reader in the JVM, as JSON objects.

The process of `plan` gives them: it speaks with the control plane for the JVM. A plan also names
the files of a published dataset that Spark's tasks may map instead of asking a daemon for rows.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from ...client.cluster.client import ClusterClient
from ...client.cluster.info import MergedDataset, ReplicaInfo, list_holders
from ...client.connect import AnyClient
from ...client.dataset.endpoints import TRANSIENT
from ...client.dataset.requests import check_complete, pin_version
from ...client.rpc.info import DatasetInfo, Endpoint, read_ranges
from ...errors import DatasetError, UsageError
from ...protocol.request import Request
from ...protocol.uri import TCP_PORT, DataUri, Streams
from ...publication.layout import format_shard_name
from ...publication.manifest import ShardEntry, decode_range
from ...publication.storage import is_object_url
from ...publication.version_store import VersionStore
from ...transport.tls_options import TlsOptions
from ..filters import has_no_value, parse_option, push_predicates, push_runtime
from ..options import SparkOptions
from ..reader import (
    RemoteDataset,
    read_options,
    refuse_stream_options,
    select_columns,
    shard_ordinals,
)
from ..shards import partition_columns
from ..types import spark_schema, stored_schema
from . import MEMORY_LIMIT
from .aggregates import compute_aggregates, find_keys
from .folder import answer_folder, find_folder
from .pruning import (
    ShardStatistics,
    UnknownError,
    VersionStatistics,
    divide,
    read_order,
    simple_schema,
)
from .streaming import find_batch, find_latest, start_stream

if TYPE_CHECKING:
    from ...client.dataset.client import Client

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

    @property
    def filter(self) -> str | None:
        """The filter of the query, or else of the option; None if there is none."""
        return self.text("filter") or self.options.text("filter")

    def request(self, filter: str | None, **selection: Any) -> Request:
        """Return a request for the columns of the query."""
        columns = tuple(self.values.get("columns") or ()) or None
        return Request(self.dataset.name, columns=columns, filter=filter, **selection)

    def describe(self, version: str | None) -> MergedDataset:
        """Return a version with all columns and rows."""
        with self.dataset.connect() as client:
            return _describe_replicas(client, Request(self.dataset.name, version=version))

    def maps_files(self) -> bool:
        """Return whether the tasks may map files.

        The files have whole columns and all rows, and the daemons extract the fields of structs
        and evaluate the option ``filter``.
        """
        if self.options.text("folder") is None or self.options.text("filter") is not None:
            return False
        names = self.options.names("columns")
        return not names or not set(names) - {*self.dataset.info(self.text("version")).schema.names}


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
    """Choose the predicates that the daemon evaluates.

    Where tasks map files, it evaluates none, and the filter only selects shards.
    """
    info = question.dataset.info(question.text("version"))
    accepted, text = push_predicates(question.values["predicates"], info.schema)
    if question.maps_files():
        accepted = [False] * len(accepted)
    return {"accepted": accepted, "filter": text}


def _make_statistics(question: _Question, whole: MergedDataset) -> VersionStatistics:
    return VersionStatistics(
        whole.info.schema,
        simple_schema(spark_schema(select_columns(whole.info, question.options.names("columns")))),
        lambda columns: _read_statistics(question.dataset, whole, columns),
    )


def _read_statistics(
    dataset: RemoteDataset, merged: MergedDataset, columns: Sequence[str]
) -> list[ShardStatistics]:
    """Read the statistics of all shards, from as few daemons as possible.

    Raises `UnknownError` if no daemon has those of a shard.
    """
    found: dict[int, ShardStatistics] = {}
    for address, replicas in list_holders(merged).items():
        if replicas.keys() <= found.keys():
            continue
        version = next(iter(replicas.values())).version
        # The ranges of all columns can be large.
        names = tuple(columns) or tuple(merged.info.schema.names[:1])
        request = Request(dataset.name, columns=names or None, version=version)
        try:
            with replace(dataset, uri=address).connect() as client:
                # One address has no other client.
                ranges = read_ranges(cast("Client", client).channel, request)
        except TRANSIENT:
            continue
        for index, replica in replicas.items():
            shard = ranges.get(replica.shard or 0)
            if shard is not None:
                known = {name: decode_range(each) for name, each in shard.columns.items()}
                found[index] = ShardStatistics(shard.rows, known)
    if len(found) < len(merged.replicas):
        raise UnknownError
    return [found[index] for index in range(len(merged.replicas))]


def _aggregate(question: _Question) -> dict[str, Any]:
    """Return the values of aggregates for each group, if the manifest has them."""
    values = question.values
    rows = compute_aggregates(
        _make_statistics(question, question.describe(question.text("version"))),
        values["aggregates"],
        values.get("groups", ()),
        question.text("filter"),
    )
    return {"rows": rows}


def _estimate(question: _Question) -> dict[str, Any]:
    """Return the rows and the bytes of the shards that may have rows of a query."""
    whole = question.describe(question.text("version"))
    statistics = _make_statistics(question, whole)
    chosen = statistics.select(question.filter, read_order(question.values))
    endpoints = whole.info.endpoints
    shards = endpoints if chosen is None else [endpoints[index] for index in chosen]
    return {
        "rows": _sum(endpoint.rows for endpoint in shards),
        "bytes": _sum(endpoint.nbytes for endpoint in shards),
    }


def _sum(numbers: Iterable[int | None]) -> int:
    """Return the sum; -1 if one of the numbers is unknown."""
    known = list(numbers)
    return -1 if None in known else sum(filter(None, known))


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
    filter, chosen, keys = question.filter, None, None
    runtime = question.values.get("runtime", ())
    if has_no_value(runtime):
        return {"partitions": []}
    if filter or runtime or question.values.get("top") or question.values.get("keyed"):
        whole = question.describe(version)
        filter = push_runtime(runtime, filter, whole.info.schema)
        statistics = _make_statistics(question, whole)
        chosen = statistics.select(filter, read_order(question.values))
        if question.values.get("keyed") and limit is None:
            keys = find_keys(statistics)
    maps_files = question.maps_files()
    if maps_files:
        filter = None  # Spark evaluates it
    with question.dataset.connect() as client:
        request = question.request(filter, version=version)
        merged = _describe_replicas(client, request)
    ordinals = shard_ordinals(merged.info)
    files = _find_files(question, merged) if maps_files else None
    shards = [
        {
            "ordinal": ordinal,
            "rows": -1 if endpoint.rows is None else endpoint.rows,
            "replicas": [
                _encode_replica(replica, question.dataset) for replica in _rotate(replicas, index)
            ],
            "file": files.find(endpoint) if files else None,
        }
        for index, (ordinal, endpoint, replicas) in enumerate(
            zip(ordinals, merged.info.endpoints, merged.replicas, strict=True)
        )
    ]
    if chosen is None:
        chosen = list(range(len(shards)))
    if selected is not None:
        chosen = [index for index in chosen if ordinals[index] in selected]
    sizes = [endpoint.nbytes for endpoint in merged.info.endpoints]
    tasks = (
        [chosen]
        if limit is not None
        else divide(chosen, sizes, shards_per_task, question.values, keys)
    )
    return {
        "partitions": [[shards[index] for index in task] for task in tasks],
        "limit": -1 if limit is None else limit,
        "filter": filter,
        "keys": None if keys is None else [keys[task[0]] for task in tasks],
    }


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


def _find_files(question: _Question, merged: MergedDataset) -> LocalShards:
    """Return the files of the versions that the daemons have."""
    versions = {replica.version for replicas in merged.replicas for replica in replicas}
    return LocalShards(question.options.text("folder") or "", versions)


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
        merged = _describe_replicas(client, question.request(question.filter, **selection))
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
    "estimate": _estimate,
    "plan": _plan,
    "stream_start": _stream_start,
    "stream_latest": _stream_latest,
    "stream_plan": _stream_plan,
    "renew": _renew,
}
