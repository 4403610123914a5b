"""The settings of a server as keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict


class ServeArguments(TypedDict, total=False):
    """The settings that `serve` takes as keyword arguments; the page Settings describes them.

    A size is a number of bytes, or text such as ``4GiB``. `ServerSettings` validates the values.
    """

    otlp: str | None
    ready_file: str | Path | None
    workers: int
    drain_seconds: float
    http_hosts: Sequence[str]
    advertise: str | None
    writable: str | Path | None
    writable_bytes: int | str | None
    upload_bytes: int | str | None
    reflection: bool
    compression: Literal["none", "lz4", "zstd", "auto"] | None
    batch_rows: int | None
    allow_writers: bool
    keep_versions: int | None
    poll_seconds: float
    object_cache: str | Path | None
    object_cache_bytes: int | str
    max_connections: int
    handshake_seconds: float
    idle_seconds: float
    stall_seconds: float
    max_connections_per_address: int | None
    max_calls_per_address: int
    max_streams_per_principal: int | None
    filter_seconds: float
    filter_threads: int
    parquet_bytes: int | str
    parquet_int96: Literal["microseconds", "exact"]
    parquet_keys: Literal["last", "keep"]
    shm_cache: int | str | None
    vortex_cache: int | str
    shm_copy: bool
    shm_trust: bool
    shm_users: Sequence[int]
    max_leased: int | str | None
    lease_seconds: float
    token_file: str | Path | None
    jwks: str | None
    jwt_issuer: str | None
    jwt_audience: str | None
    jwt_leeway_seconds: float
    ticket_key_file: str | Path | None
    ticket_seconds: float
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_client_ca: str | Path | None
    insecure: bool
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["auto", "console", "json"]
