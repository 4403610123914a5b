"""Publishing to one server: shards into its staging, then one commit."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import pyarrow as pa

from ..errors import DatasetError, ProtocolError, UsageError
from ..formats.arrow.headers import read_header
from ..proto import Flight_pb2 as flight
from .calls import Caller
from .described import Published, StoredShard
from .upload import Progress, batches_of, sent, unclear

MODES = ("append", "overwrite")
"""What a publication does with the shards of the version before."""
_MAGIC = 8
"""How many bytes of an Arrow IPC file come before its messages."""


class ShardData(NamedTuple):
    """What a shard is made of."""

    schema: pa.Schema
    """Its schema."""
    batches: Iterator[Any]
    """Its record batches."""
    codec: str | None
    """How they are compressed where they lie: ``lz4``, ``zstd``, or None."""


@contextmanager
def shard_data(data: Any, schema: pa.Schema | None = None) -> Generator[ShardData]:
    """Open what a shard is made of: the path of an Arrow IPC file, or any Arrow data.

    Raises
    ------
    DatasetError
        If the file is none.
    UsageError
        If it is something else.
    """
    if not isinstance(data, (str, os.PathLike)):
        yield ShardData(*batches_of(data, schema), None)
        return
    path = os.fspath(cast("str | os.PathLike[str]", data))
    try:
        with pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            codec = _codec(path) if reader.num_record_batches else None
            count = reader.num_record_batches
            yield ShardData(reader.schema, (reader.get_batch(n) for n in range(count)), codec)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"cannot read the shard {path}: {error}") from None


def _codec(path: str) -> str | None:
    """Return how the record batches of a file are compressed; they are all alike."""
    with pa.memory_map(path) as file:
        file.seek(_MAGIC)
        for message in pa.ipc.MessageReader.open_stream(file):
            if message.type == "record batch":
                return read_header(bytes(memoryview(message.metadata))).codec
    return None


def put_shard(
    caller: Caller,
    name: str,
    data: ShardData,
    job: str,
    ordinal: int,
    compression: str | None = None,
    progress: Progress | None = None,
) -> StoredShard:
    """Send a shard into the staging of a publication; return what the server made of it.

    Raises
    ------
    SplitArrowError
        If it is refused. The server has nothing of it then.
    """
    _check_job(job)
    if ordinal < 0:
        raise UsageError(f"the ordinal {ordinal} is less than 0")
    command = {"dataset": name, "publish": {"job": job, "ordinal": ordinal}}
    descriptor = flight.FlightDescriptor(
        type=flight.FlightDescriptor.CMD, cmd=json.dumps(command, ensure_ascii=False).encode()
    )
    codec = {None: data.codec, "none": None}.get(compression, compression)
    told = sent(caller, descriptor, name, data.schema, data.batches, progress, codec)
    try:
        return StoredShard(
            name=str(told["dataset"]),
            job=str(told["job"]),
            ordinal=int(told["ordinal"]),
            rows=int(told["rows"]),
            bytes=int(told["bytes"]),
            sha256=str(told["sha256"]),
        )
    except (ValueError, KeyError, TypeError):
        raise unclear(name) from None


def publication(
    name: str,
    job: str,
    ordinals: Iterable[int],
    shards_total: int | None,
    snapshot: str | None,
    mode: str,
    schema: pa.Schema | None,
    properties: Mapping[str, str] | None,
) -> bytes:
    """Return the body of the action ``publish``.

    Raises
    ------
    UsageError
        If an argument is wrong.
    """
    _check_job(job)
    wanted = sorted(set(ordinals))
    total = len(wanted) if shards_total is None else shards_total
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}; known are {', '.join(MODES)}")
    if wanted and not 0 <= wanted[0] <= wanted[-1] < total:
        raise UsageError(f"the ordinals {wanted[0]} to {wanted[-1]} of {total} shards")
    asked: dict[str, Any] = {
        "dataset": name,
        "job": job,
        "ordinals": wanted,
        "shards_total": total,
        "snapshot": snapshot or job,
        "mode": mode,
    }
    if schema is not None:
        asked["schema"] = base64.b64encode(memoryview(schema.serialize())).decode()
    if properties:
        asked["properties"] = dict(properties)
    return json.dumps(asked, ensure_ascii=False).encode()


def published(name: str, answer: bytes) -> Published:
    """Return what a server says of a publication.

    Raises
    ------
    ProtocolError
        If it cannot be understood.
    """
    try:
        told: Any = json.loads(answer)
        return Published(
            name=str(told["dataset"]),
            version=int(told["version"]),
            snapshot=str(told["snapshot"]),
            shards=int(told["shards"]),
            rows=int(told["rows"]),
            bytes=int(told["bytes"]),
        )
    except (ValueError, KeyError, TypeError):
        raise ProtocolError("the server does not say what it has published", stream=name) from None


def _check_job(job: str) -> None:
    if not job.strip():
        raise UsageError("a publication needs a job: a name that is its own")
