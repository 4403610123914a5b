"""Results of uploads and publications, as a server reports them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UploadResult:
    """The result of an upload."""

    name: str
    """The name of the dataset."""
    rows: int
    """The number of rows."""
    bytes: int
    """The size of the dataset at the server, in bytes."""


@dataclass(frozen=True, slots=True)
class ShardUploadResult:
    """The result of the upload of a shard."""

    name: str
    """The name of the dataset."""
    job: str
    """The publication that the shard belongs to."""
    ordinal: int
    """The position of the shard in the dataset, from 0."""
    rows: int
    """The number of rows."""
    bytes: int
    """The size of the shard's file at the server, in bytes."""
    sha256: str
    """The checksum of the shard's file at the server, in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of a publication at one server."""

    name: str
    """The name of the dataset."""
    version: int
    """The number of the version that the server created."""
    snapshot: str
    """The identifier that this publication has at every server."""
    shards: int
    """The number of shards that the server holds."""
    rows: int
    """The number of rows in those shards."""
    bytes: int
    """The size of those shards in bytes."""
