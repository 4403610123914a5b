"""Publishing to one server: upload shards into its staging area, then commit them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import pyarrow as pa

from ...errors import DatasetError, ProtocolError, UsageError
from ...formats.arrow.headers import read_header
from ...proto import Flight_pb2 as flight
from .channel import FlightChannel
from .results import PublishResult, ShardUploadResult
from .upload import Progress, malformed_result, read_batches, upload_batches

MODES = ("append", "overwrite")
"""Whether a publication keeps the shards of the previous version or replaces them."""
_FILE_MAGIC_BYTES = 8
"""The size of the magic and its padding at the start of an Arrow IPC file, in bytes."""


class ShardData(NamedTuple):
    """The contents of a shard."""

    schema: pa.Schema
    """The schema."""
    batches: Iterator[Any]
    """The record batches."""
    codec: str | None
    """The compression of the source file: ``lz4``, ``zstd``, or None."""


@contextmanager
def open_shard(data: Any, schema: pa.Schema | None = None) -> Generator[ShardData]:
    """Open the contents of a shard while the context lasts.

    Parameters
    ----------
    data : path-like, or any Arrow data
        The path of an Arrow IPC file, or data that `read_batches` accepts.
    schema : pyarrow.Schema, optional
        The schema of an iterable that yields no record batch.

    Raises
    ------
    DatasetError
        If the file cannot be read as an Arrow IPC file.
    UsageError
        If the data is of another type, or has no schema.
    """
    if not isinstance(data, (str, os.PathLike)):
        yield ShardData(*read_batches(data, schema), None)
        return
    path = os.fspath(cast("str | os.PathLike[str]", data))
    try:
        with pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            count = reader.num_record_batches
            codec = _read_codec(path) if count else None
            batches = (reader.get_batch(index) for index in range(count))
            yield ShardData(reader.schema, batches, codec)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"cannot read the shard {path}: {error}") from None


def _read_codec(path: str) -> str | None:
    """Return the compression of a file's first record batch. All batches of a file share it."""
    with pa.memory_map(path) as file:
        file.seek(_FILE_MAGIC_BYTES)
        for message in pa.ipc.MessageReader.open_stream(file):
            if message.type == "record batch":
                return read_header(bytes(memoryview(message.metadata))).codec
    return None


def upload_shard(
    channel: FlightChannel,
    name: str,
    data: ShardData,
    job: str,
    ordinal: int,
    compression: str | None = None,
    progress: Progress | None = None,
) -> ShardUploadResult:
    """Upload a shard into the staging area of a publication.

    Parameters
    ----------
    channel : FlightChannel
        The channel to the server.
    name : str
        The dataset.
    data : ShardData
        The contents.
    job : str
        The publication.
    ordinal : int
        The position of the shard in the dataset, from 0.
    compression : {"none", "lz4", "zstd"}, optional
        The codec at the server. `None` keeps that of the source file.
    progress : callable, optional
        Receives the numbers of rows and bytes sent so far, on another thread.

    Raises
    ------
    UsageError
        If the job or the ordinal is invalid.
    SplitArrowError
        If the server refuses the shard. It keeps nothing of it then.
    """
    _check_job(job)
    if ordinal < 0:
        raise UsageError(f"ordinal is {ordinal}; expected 0 or more")
    command = {"dataset": name, "publish": {"job": job, "ordinal": ordinal}}
    descriptor = flight.FlightDescriptor(
        type=flight.FlightDescriptor.CMD, cmd=json.dumps(command).encode()
    )
    codec = {None: data.codec, "none": None}.get(compression, compression)
    result = upload_batches(channel, descriptor, name, data.schema, data.batches, progress, codec)
    try:
        return ShardUploadResult(
            name=str(result["dataset"]),
            job=str(result["job"]),
            ordinal=int(result["ordinal"]),
            rows=int(result["rows"]),
            bytes=int(result["bytes"]),
            sha256=str(result["sha256"]),
        )
    except (ValueError, KeyError, TypeError):
        raise malformed_result(name) from None


def encode_publication(
    name: str,
    *,
    job: str,
    ordinals: Iterable[int],
    shards_total: int | None,
    snapshot: str | None,
    mode: str,
    schema: pa.Schema | None,
    properties: Mapping[str, str] | None,
) -> bytes:
    """Return the body of the action ``publish``; the parameters are those of `Client.publish`.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """
    _check_job(job)
    required = sorted(set(ordinals))
    total = len(required) if shards_total is None else shards_total
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}; expected {' or '.join(MODES)}")
    if required and not 0 <= required[0] <= required[-1] < total:
        raise UsageError(
            f"ordinals range from {required[0]} to {required[-1]}; "
            f"expected 0 to {total - 1} for {total} shards"
        )
    body: dict[str, Any] = {
        "dataset": name,
        "job": job,
        "ordinals": required,
        "shards_total": total,
        "snapshot": snapshot or job,
        "mode": mode,
    }
    if schema is not None:
        body["schema"] = base64.b64encode(memoryview(schema.serialize())).decode()
    if properties:
        body["properties"] = dict(properties)
    return json.dumps(body).encode()


def parse_publish_result(name: str, response: bytes) -> PublishResult:
    """Parse the response to the action ``publish``.

    Raises
    ------
    ProtocolError
        If it is malformed.
    """
    try:
        result: Any = json.loads(response)
        return PublishResult(
            name=str(result["dataset"]),
            version=int(result["version"]),
            snapshot=str(result["snapshot"]),
            shards=int(result["shards"]),
            rows=int(result["rows"]),
            bytes=int(result["bytes"]),
        )
    except (ValueError, KeyError, TypeError):
        raise ProtocolError("the server sent a malformed publication result", stream=name) from None


def _check_job(job: str) -> None:
    if not job.strip():
        raise UsageError("job is empty; expected a name that is unique to the publication")
