"""The settings that describe what a server serves, and where: the first half of all settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import field_validator
from pydantic_settings import BaseSettings

from .declaration import Count, Group, PositiveSeconds, Reload, Seconds, Setting, Size

DEFAULT_LISTEN = ("tcp://127.0.0.1:8816", "shm://")
"""The default listeners. A server leaves ``shm://`` out if this host cannot share memory."""


class ServiceSettings(BaseSettings):
    """The datasets, the listeners, the control plane and the form of the data."""

    datasets: Annotated[
        dict[str, str],
        Setting(
            "What to serve: a name, and the path or URL of a file, a folder, a pattern such as "
            "`'trips/*.parquet'`, a prefix in an object store, or a published dataset. Without "
            "`NAME=`, the name is the file's name without its suffix.",
            Group.GENERAL,
            metavar="NAME=PATH",
            default="none",
            reload=Reload.RELOAD,
        ),
    ] = {}
    listen: Annotated[
        tuple[str, ...],
        Setting(
            "A URI to listen on for readers; may be given several times. Port 0 selects a free "
            "port. `?stream=metadata` or `?stream=body` serves one of the two streams. "
            "`shm:///PATH` is a Unix socket for readers on this host, which map the data.",
            Group.GENERAL,
            metavar="URI",
            default=f"{DEFAULT_LISTEN[0]}, and shared memory for readers on this host",
        ),
    ] = DEFAULT_LISTEN
    control: Annotated[
        str | None,
        Setting(
            "The URI of the control plane, an Arrow Flight service: "
            "`grpc://127.0.0.1:8815`, or `grpc+tls://…` with TLS.",
            Group.GENERAL,
            metavar="URI",
            default="no control plane",
        ),
    ] = None
    http: Annotated[
        str | None,
        Setting(
            "The URI of the HTTP listener for metrics, health checks and the status page: "
            "`http://127.0.0.1:9816`, or `https://…` with TLS.",
            Group.GENERAL,
            metavar="URI",
            default="no HTTP listener",
        ),
    ] = None
    otlp: Annotated[
        str | None,
        Setting(
            "The URL of an OpenTelemetry collector, which gets traces by OTLP over HTTP: "
            "`http://127.0.0.1:4318`. `OTEL_…` variables have further options.",
            Group.GENERAL,
            metavar="URL",
            default="that of `OTEL_EXPORTER_OTLP_ENDPOINT`; without it, no traces",
        ),
    ] = None
    ready_file: Annotated[
        Path | None,
        Setting(
            "A file for one JSON object with the URI of every dataset. The server writes it once "
            "every listener is bound.",
            Group.GENERAL,
            metavar="FILE",
        ),
    ] = None
    workers: Annotated[
        Count,
        Setting(
            "The number of processes that serve the readers of `tcp` and `tcp+tls`. If there are "
            "several, the one that was started serves the control plane and all other readers.",
            Group.GENERAL,
            metavar="N",
        ),
    ] = 1
    drain_seconds: Annotated[
        Seconds,
        Setting(
            "The time that running streams get to finish after SIGTERM or Ctrl-C, in seconds. A "
            "second signal cuts them.",
            Group.GENERAL,
            metavar="SECONDS",
            reload=Reload.RELOAD,
        ),
    ] = 30.0
    http_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "A further host name by which clients may address the HTTP listener, besides this "
            "host's own names and all addresses; may be given several times. A server that "
            "requires tokens accepts all names.",
            Group.GENERAL,
            metavar="NAME",
            default="none",
            needs=("http",),
        ),
    ] = ()

    advertise: Annotated[
        str | None,
        Setting(
            "The host in the locations that the control plane returns, if readers reach this "
            "host by another name.",
            Group.CONTROL,
            metavar="HOST",
            needs=("control",),
        ),
    ] = None
    writable: Annotated[
        Path | None,
        Setting(
            "A folder for uploads, created if it is missing. Without it, the server accepts none.",
            Group.CONTROL,
            metavar="FOLDER",
            needs=("control",),
        ),
    ] = None
    writable_bytes: Annotated[
        Size | None,
        Setting(
            "The total size of all uploads, as in 100GiB.",
            Group.CONTROL,
            metavar="SIZE",
            default="limited by the disk only",
            needs=("writable",),
        ),
    ] = None
    upload_bytes: Annotated[
        Size | None,
        Setting(
            "The largest size of one upload, as in 10GiB.",
            Group.CONTROL,
            metavar="SIZE",
            default="the total",
            needs=("writable",),
        ),
    ] = None
    reflection: Annotated[
        bool,
        Setting(
            "Let gRPC tools list the services of the control plane.",
            Group.CONTROL,
            negatable=True,
            needs=("control",),
        ),
    ] = False

    compression: Annotated[
        Literal["none", "lz4", "zstd", "auto"] | None,
        Setting(
            "The compression of bodies, unless the reader requests another. With `auto`, bodies "
            "over TCP, TLS and UCX are compressed while that is faster on the link.",
            Group.DATA,
            default="unchanged",
        ),
    ] = None
    batch_rows: Annotated[
        Count | None,
        Setting(
            "The largest number of rows in a record batch.",
            Group.DATA,
            metavar="ROWS",
            default="unchanged",
        ),
    ] = None
    allow_writers: Annotated[
        bool,
        Setting(
            "Serve files that another process has open for writing. A reader may then get a "
            "mixture of two states of a file.",
            Group.DATA,
        ),
    ] = False

    keep_versions: Annotated[
        Count | None,
        Setting(
            "The number of versions of a dataset to keep. Once no reader uses an older version, "
            "the server removes it, and the shards that no other version lists.",
            Group.PUBLISHED,
            metavar="N",
            default="all",
        ),
    ] = None
    poll_seconds: Annotated[
        PositiveSeconds,
        Setting(
            "The time between two checks for new versions in object stores and for old versions "
            "to remove, in seconds.",
            Group.PUBLISHED,
            metavar="SECONDS",
        ),
    ] = 10.0
    object_cache: Annotated[
        Path | None,
        Setting(
            "A folder for copies of shards from object stores.",
            Group.PUBLISHED,
            metavar="FOLDER",
            default="splitarrow/objects in the user's cache folder",
        ),
    ] = None
    object_cache_bytes: Annotated[
        Size,
        Setting(
            "The largest size of the object cache, as in 100GiB.", Group.PUBLISHED, metavar="SIZE"
        ),
    ] = 10 << 30

    @field_validator("datasets")
    @classmethod
    def _check_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name or "\0" in name:
                raise ValueError(f"{name!r} is not a dataset name")
        return value

    @field_validator("listen")
    @classmethod
    def _check_listeners(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        from .uris import listener_uri  # it needs the transports, and the command line does not

        if not value:
            raise ValueError("give at least one URI to listen on")
        for text in value:
            listener_uri(text)
        return value
