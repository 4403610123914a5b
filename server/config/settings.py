"""The settings of a server, each declared once with its type, default, bounds and description.

Options of ``splitarrow serve``, ``SPLITARROW_…`` variables, keys of the TOML file and the page
Settings of the documentation follow from `Settings`. `ServeArguments` repeats the names and types
for type checkers and editors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from pydantic import Field, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ...errors import UriError
from ...protocol.tags import FREE_DATA, KEEP_ALIVE, TRACE, WANT_DATA, is_request_tag
from ...protocol.uri import DataUri
from ...transport.registry import find_transport
from .declaration import (
    ENVIRONMENT_PREFIX,
    Count,
    Group,
    PositiveSeconds,
    Reload,
    Seconds,
    Setting,
    Size,
    SizeOrZero,
)

_DEFAULT_TAGS = (
    ("want_data", WANT_DATA),
    ("free_data", FREE_DATA),
    ("keep_alive", KEEP_ALIVE),
    ("trace", TRACE),
)


def listener_uri(text: str, *, traced: bool = False) -> DataUri:
    """Return the URI of a listener for readers, with its tags filled in.

    `traced`: Only then does the URI invite readers to send theirs. Raises `UriError` if the URI is
    malformed, has an unknown scheme or a ticket, or has a tag that could be a body's tag.
    """
    uri = DataUri.parse(text)
    is_used = {"free_data": find_transport(uri).traits.leases_memory, "trace": traced}
    if uri.ticket is not None:
        raise UriError(f"{uri.redacted()}: the URI of a listener must not have a ticket")
    tags: dict[str, int] = {}
    for name, default in _DEFAULT_TAGS:
        value = getattr(uri, name)
        if value is not None and not is_request_tag(value):
            raise UriError(f"{name}={value:#x}: set at least one of its bits 32-55")
        if value is None and is_used.get(name, True):
            tags[name] = default
    return uri.replace(**tags)


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

        if not value:
            raise ValueError("give at least one URI to listen on")
        for text in value:
            listener_uri(text)
        return value


class Settings(ServiceSettings):
    """The settings of a server. They are valid once built.

    The fields here are its limits, shared memory, security and log. `ServiceSettings` has the
    others. `load_settings` builds the settings from arguments, variables and a TOML file. In a
    subclass, the configuration key ``toml_file`` names the file.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, validate_default=True
    )

    max_connections: Annotated[
        Count,
        Setting(
            "The number of connections that a process serves. It refuses more with "
            "RESOURCE_EXHAUSTED.",
            Group.LIMITS,
            metavar="N",
            reload=Reload.RELOAD,
        ),
    ] = 4096
    handshake_seconds: Annotated[
        PositiveSeconds,
        Setting(
            "The time that a new connection has for its first request, and one whose request was "
            "refused for the next, in seconds.",
            Group.LIMITS,
            metavar="SECONDS",
            reload=Reload.RELOAD,
        ),
    ] = 10.0
    idle_seconds: Annotated[
        PositiveSeconds,
        Setting(
            "The time after which the server closes a connection that has no stream, in seconds.",
            Group.LIMITS,
            metavar="SECONDS",
            reload=Reload.RELOAD,
        ),
    ] = 600.0
    stall_seconds: Annotated[
        PositiveSeconds,
        Setting(
            "The time after which the server disconnects a reader that takes nothing of its "
            "stream, in seconds.",
            Group.LIMITS,
            metavar="SECONDS",
            reload=Reload.RELOAD,
        ),
    ] = 600.0
    max_connections_per_address: Annotated[
        Count | None,
        Setting(
            "The number of connections from one address, to the listeners and to the control "
            "plane each. More get RESOURCE_EXHAUSTED; the control plane closes them.",
            Group.LIMITS,
            metavar="N",
            default="half of `max_connections`",
            reload=Reload.RELOAD,
        ),
    ] = None
    max_calls_per_address: Annotated[
        Count,
        Setting(
            "The number of calls of the control plane that run at a time for one address. More "
            "get RESOURCE_EXHAUSTED.",
            Group.LIMITS,
            metavar="N",
            needs=("control",),
            reload=Reload.RELOAD,
        ),
    ] = 2048
    max_streams_per_principal: Annotated[
        Count | None,
        Setting(
            "The number of streams that one principal reads at a time. More get "
            "RESOURCE_EXHAUSTED.",
            Group.LIMITS,
            metavar="N",
            default="half of `max_connections`",
            reload=Reload.RELOAD,
        ),
    ] = None

    filter_seconds: Annotated[
        PositiveSeconds,
        Setting(
            "The processor time that a filter may use in one stream, in seconds, in addition to a "
            "second for each 10 million rows or GB. A filter that uses more gets "
            "RESOURCE_EXHAUSTED.",
            Group.LIMITS,
            metavar="SECONDS",
        ),
    ] = 10.0
    filter_threads: Annotated[
        Count,
        Setting(
            "The number of filters that one principal, or all unauthenticated readers together, "
            "evaluate at a time. The other streams with a filter wait.",
            Group.LIMITS,
            metavar="N",
        ),
    ] = 8
    parquet_bytes: Annotated[
        Size,
        Setting(
            "The largest size of a column in a row group of a Parquet file, decoded, as in 8GiB. "
            "A request for a larger one gets RESOURCE_EXHAUSTED.",
            Group.LIMITS,
            metavar="SIZE",
        ),
    ] = 4 << 30
    parquet_int96: Annotated[
        Literal["microseconds", "exact"],
        Setting(
            "How to read INT96 timestamps of Parquet: cut them to `microseconds`, or refuse those "
            "that have more digits (`exact`).",
            Group.LIMITS,
        ),
    ] = "microseconds"
    parquet_keys: Annotated[
        Literal["last", "keep"],
        Setting(
            "What to do with a key that a MAP of Parquet has twice: use the `last` value, or "
            "`keep` all entries.",
            Group.LIMITS,
        ),
    ] = "last"

    shm_cache: Annotated[
        SizeOrZero | None,
        Setting(
            "The memory for copies of datasets that no reader maps, as in 4GiB.",
            Group.SHARED_MEMORY,
            metavar="SIZE",
            default="a quarter of this host's memory",
        ),
    ] = None
    vortex_cache: Annotated[
        SizeOrZero,
        Setting(
            "The memory for datasets that were compressed for readers in the format Vortex, as in "
            "4GiB.",
            Group.SHARED_MEMORY,
            metavar="SIZE",
        ),
    ] = 1 << 30
    shm_copy: Annotated[
        bool,
        Setting(
            "Let readers map copies of files, never the files themselves.", Group.SHARED_MEMORY
        ),
    ] = False
    shm_trust: Annotated[
        bool,
        Setting(
            "Let readers map files even if the server cannot guard them against changes.",
            Group.SHARED_MEMORY,
        ),
    ] = False
    shm_users: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Setting(
            "The id of a user who may map data, besides root and the server's user; may be given "
            "several times.",
            Group.SHARED_MEMORY,
            metavar="UID",
            default="none",
        ),
    ] = ()
    max_leased: Annotated[
        Size | None,
        Setting(
            "The size of all leases that one user may hold at a time, as in 2GiB.",
            Group.SHARED_MEMORY,
            metavar="SIZE",
            default="unlimited",
        ),
    ] = None
    lease_seconds: Annotated[
        Seconds,
        Setting(
            "The time that a stream at the limit `max_leased` waits for its reader to free leases, "
            "in seconds.",
            Group.SHARED_MEMORY,
            metavar="SECONDS",
        ),
    ] = 10.0

    token_file: Annotated[
        Path | None,
        Setting(
            "A TOML file with bearer tokens and the datasets that each may read and write.",
            Group.SECURITY,
            metavar="FILE",
            reload=Reload.CHANGE,
        ),
    ] = None
    jwks: Annotated[
        str | None,
        Setting(
            "The public keys of the issuer of JSON Web Tokens.",
            Group.SECURITY,
            metavar="FILE|URL",
            reload=Reload.CHANGE,
        ),
    ] = None
    jwt_issuer: Annotated[
        str | None,
        Setting(
            "The required value of the claim `iss` in JSON Web Tokens.",
            Group.SECURITY,
            metavar="TEXT",
            reload=Reload.RELOAD,
        ),
    ] = None
    jwt_audience: Annotated[
        str | None,
        Setting(
            "The required value of the claim `aud` in JSON Web Tokens.",
            Group.SECURITY,
            metavar="TEXT",
            reload=Reload.RELOAD,
        ),
    ] = None
    jwt_leeway_seconds: Annotated[
        Seconds,
        Setting(
            "How long a JSON Web Token is accepted after it expires, in seconds. It allows for "
            "clocks that differ.",
            Group.SECURITY,
            metavar="SECONDS",
            needs=("jwks",),
            reload=Reload.RELOAD,
        ),
    ] = 0.0
    ticket_key_file: Annotated[
        Path | None,
        Setting(
            "The keys that sign tickets. Servers that share the file accept each other's tickets.",
            Group.SECURITY,
            metavar="FILE",
            default="a random key",
            reload=Reload.CHANGE,
        ),
    ] = None
    ticket_seconds: Annotated[
        PositiveSeconds,
        Setting(
            "The lifetime of a signed ticket, in seconds.",
            Group.SECURITY,
            metavar="SECONDS",
            needs=("token_file", "jwks", "ticket_key_file"),
        ),
    ] = 300.0
    tls_cert: Annotated[
        Path | None,
        Setting(
            "The certificate chain of `tcp+tls` and `grpc+tls` listeners, in PEM.",
            Group.SECURITY,
            metavar="FILE",
            reload=Reload.CHANGE,
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Setting(
            "The key of the certificate, in PEM.",
            Group.SECURITY,
            metavar="FILE",
            default="in the same file",
            reload=Reload.CHANGE,
            needs=("tls_cert",),
        ),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Setting(
            "Certificate authorities, in PEM: require a client certificate that one of them "
            "issued.",
            Group.SECURITY,
            metavar="FILE",
            reload=Reload.CHANGE,
            needs=("tls_cert",),
        ),
    ] = None
    insecure: Annotated[
        bool,
        Setting("Serve other machines without tokens or client certificates.", Group.SECURITY),
    ] = False

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting("The least severe events to log.", Group.LOG, reload=Reload.RELOAD),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "json"],
        Setting(
            "The format of the log on standard error: text for people, or one JSON object per "
            "line.",
            Group.LOG,
            default="auto: console on a terminal, json elsewhere",
        ),
    ] = "auto"

    @property
    def address_limit(self) -> int:
        """The number of connections from one address."""
        return self.max_connections_per_address or -(-self.max_connections // 2)

    @property
    def principal_limit(self) -> int:
        """The number of streams that one principal reads at a time."""
        return self.max_streams_per_principal or -(-self.max_connections // 2)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of values, the one that wins first."""
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))


class ServeArguments(TypedDict, total=False):
    """The settings that `serve` takes as keyword arguments; the page Settings describes them.

    A size is a number of bytes, or text such as ``4GiB``. `Settings` validates the values.
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
