"""The settings of a server, each declared once with its type, default, bounds and description.

Options of ``splitarrow serve``, ``SPLITARROW_…`` variables, keys of the TOML file and the page
Settings of the documentation follow from `Settings`. `ServeArguments` repeats the names and types
for type checkers and editors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ...errors import UriError
from ...protocol.tags import FREE_DATA, KEEP_ALIVE, TRACE, WANT_DATA, is_request_tag
from ...protocol.uri import TCP_PORT, DataUri
from ...transport.tls_options import TlsServerOptions
from .advertised import (
    AdvertisedAddresses,
    Network,
    list_pairs,
    parse_advertised,
    parse_network,
)
from .declaration import (
    ENVIRONMENT_PREFIX,
    Count,
    Group,
    PositiveSeconds,
    Reload,
    Seconds,
    Size,
    SizeOrZero,
    setting,
)

_DEFAULT_TAGS = (
    ("want_data", WANT_DATA),
    ("free_data", FREE_DATA),
    ("keep_alive", KEEP_ALIVE),
    ("trace", TRACE),
)


def listener_uri(text: str, *, traced: bool = False) -> DataUri:
    """Return the URI of a listener for readers, with its tags filled in.

    If it is `traced`, the URI has the tag with which readers send the identifier of their trace.
    Raises `UriError` if the URI is malformed, has an unknown scheme or a ticket, or has a tag that
    could be a body's tag.
    """
    from ...transport.registry import find_transport  # the help needs no transports

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


DEFAULT_LISTEN = (f"tcp://127.0.0.1:{TCP_PORT}", "shm://")
"""The default listeners. A server leaves ``shm://`` out if this host cannot share memory."""
EMBEDDED_LISTEN = ("tcp://127.0.0.1:0", "shm://")
"""The default listeners of a server in the process of its user; see `DEFAULT_LISTEN`."""


_SERVICE_SCHEMES = {"control": ("grpc", "grpc+tls"), "http": ("http", "https")}


class Settings(BaseSettings):
    """The settings of a server. They are valid once built.

    `load_settings` builds them from arguments, variables and a TOML file. In a subclass, the
    configuration key ``toml_file`` names the file. The docstring of a field is its description in
    the help of the command line and in the documentation: plain text, with code in backticks.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    datasets: dict[str, str] = setting(
        {}, Group.GENERAL, metavar="NAME=PATH", shown="none", reload=Reload.RELOAD
    )
    """What to serve: a name, and the path or URL of a file, a folder, a pattern such as
    `'trips/*.parquet'`, a prefix in an object store, or a published dataset. Without `NAME=`,
    the name is the file's name without its suffix."""
    listen: tuple[str, ...] = setting(
        DEFAULT_LISTEN,
        Group.GENERAL,
        metavar="URI",
        shown=f"{DEFAULT_LISTEN[0]}, and shared memory for readers on this host",
    )
    """A URI to listen on for readers; may be given several times. Port 0 selects a free port.
    `?stream=metadata` or `?stream=body` serves one of the two streams. `shm:///PATH` is a Unix
    socket for readers on this host, which map the data."""
    control: str | None = setting(None, Group.GENERAL, metavar="URI", shown="no control plane")
    """The URI of the control plane, an Arrow Flight service: `grpc://127.0.0.1:8815`, or
    `grpc+tls://…` with TLS."""
    http: str | None = setting(None, Group.GENERAL, metavar="URI", shown="no HTTP listener")
    """The URI of the HTTP listener for datasets, metrics, health checks and the status page:
    `http://127.0.0.1:9816`, or `https://…` with TLS."""
    otlp: str | None = setting(
        None,
        Group.GENERAL,
        metavar="URL",
        shown="that of `OTEL_EXPORTER_OTLP_ENDPOINT`; without it, no traces",
    )
    """The URL of an OpenTelemetry collector, which gets traces by OTLP over HTTP:
    `http://127.0.0.1:4318`. `OTEL_…` variables have further options."""
    ready_file: Path | None = setting(None, Group.GENERAL)
    """A file for one JSON object with the URI of every dataset. The server writes it once every
    listener is bound."""
    workers: Count = setting(1, Group.GENERAL)
    """The number of processes that serve the readers of `tcp` and `tcp+tls`. If there are
    several, the one that was started serves the control plane and all other readers."""
    drain_seconds: Seconds = setting(30.0, Group.GENERAL, reload=Reload.RELOAD)
    """The time that running streams get to finish after SIGTERM or Ctrl-C, in seconds. A second
    signal cuts them."""
    http_hosts: tuple[str, ...] = setting(
        (), Group.GENERAL, metavar="NAME", shown="none", needs=("http",)
    )
    """A host name by which clients may address the HTTP listener, besides this host's own names
    and all addresses; may be given several times. With tokens, all names are accepted."""
    http_origins: tuple[str, ...] = setting(
        (), Group.GENERAL, metavar="ORIGIN", shown="none", needs=("http",)
    )
    """An origin, such as `https://notebook.example`, whose pages may read the HTTP listener from a
    browser (CORS); may be given several times. `*` allows all."""

    advertise: Annotated[tuple[str, ...], NoDecode] = setting(
        (),
        Group.CONTROL,
        metavar="ADDRESS",
        shown="the bound addresses",
        needs=("control", "http"),
    )
    """The address by which readers reach the listener of a scheme, as in
    `tcp=data.example.org:30016`, or `http=https://data.example.org:443` if a proxy ends the TLS, or
    the host of all listeners; may be given several times. A variable has commas between them, a
    file may have a table."""
    advertise_for: Annotated[tuple[str, ...], NoDecode] = setting(
        (), Group.CONTROL, metavar="NETWORK=ADDRESS", shown="none", needs=("control", "http")
    )
    """An address as for `advertise`, for the readers of one network: `10.0.0.0/8=node7` or
    `10.0.0.0/8=tcp=node7:8816`; may be given several times. The smallest network wins."""
    writable: Path | None = setting(None, Group.CONTROL, metavar="FOLDER", needs=("control",))
    """A folder for uploads: a new or an empty one, or one that has uploads already. Without it, the
    server accepts none."""
    writable_bytes: Size | None = setting(
        None, Group.CONTROL, shown="limited by the disk only", needs=("writable",)
    )
    """The total size of all uploads, as in 100GiB."""
    upload_bytes: Size | None = setting(None, Group.CONTROL, shown="the total", needs=("writable",))
    """The largest size of one upload, as in 10GiB."""
    upload_rate: SizeOrZero = setting(1 << 10, Group.CONTROL, needs=("writable",))
    """The least rate of an upload, in bytes per second, as in 64KiB. The server ends one that is
    slower for `idle_seconds`."""
    reflection: bool = setting(False, Group.CONTROL, negatable=True, needs=("control",))
    """Let gRPC tools list the services of the control plane."""

    compression: Literal["none", "lz4", "zstd", "auto"] | None = setting(
        None, Group.DATA, shown="unchanged"
    )
    """The compression of bodies, unless the reader requests another. With `auto`, bodies over
    TCP, TLS and UCX are compressed while that is faster on the link."""
    batch_rows: Count | None = setting(None, Group.DATA, metavar="ROWS", shown="unchanged")
    """The largest number of rows in a record batch."""
    allow_writers: bool = setting(False, Group.DATA)
    """Serve files that another process has open for writing. A reader may then get a mixture of
    two states of a file."""
    follow_symlinks: bool = setting(False, Group.DATA)
    """Follow symbolic links that lead out of a served folder. Without it, a dataset with such a
    link is refused. The path of a dataset may always be a link."""
    partition_text: bool = setting(False, Group.DATA)
    """Keep the values of all partition keys as text. Without it, a key whose values are all
    numbers, such as `month=01`, becomes a column of integers."""

    keep_versions: Count | None = setting(None, Group.PUBLISHED, shown="all")
    """The number of versions of a dataset to keep. Once no reader uses an older version, the
    server removes it, and the shards that no other version lists."""
    poll_seconds: PositiveSeconds = setting(10.0, Group.PUBLISHED)
    """The time between two checks for new versions in object stores and for old versions to
    remove, in seconds."""
    object_cache: Path | None = setting(
        None,
        Group.PUBLISHED,
        metavar="FOLDER",
        shown="splitarrow/objects in the user's cache folder",
    )
    """A folder for copies of shards from object stores."""
    object_cache_bytes: Size = setting(10 << 30, Group.PUBLISHED)
    """The largest size of the object cache, as in 100GiB."""

    max_connections: Count = setting(4096, Group.LIMITS, reload=Reload.RELOAD)
    """The number of connections that a process serves. It refuses more with
    RESOURCE_EXHAUSTED."""
    handshake_seconds: PositiveSeconds = setting(10.0, Group.LIMITS, reload=Reload.RELOAD)
    """The time that a new connection has for its first request, and one whose request was
    refused for the next, in seconds."""
    idle_seconds: PositiveSeconds = setting(600.0, Group.LIMITS, reload=Reload.RELOAD)
    """The time after which the server closes a connection that has no stream, in seconds."""
    stall_seconds: PositiveSeconds = setting(600.0, Group.LIMITS, reload=Reload.RELOAD)
    """The time after which the server disconnects a reader that takes no data, in seconds."""
    max_connections_per_address: Count | None = setting(
        None, Group.LIMITS, shown="half of `max_connections`", reload=Reload.RELOAD
    )
    """The number of connections from one address, to the listeners and to the control plane
    each. More get RESOURCE_EXHAUSTED; the control plane closes them."""
    max_calls_per_address: Count = setting(
        2048, Group.LIMITS, needs=("control",), reload=Reload.RELOAD
    )
    """The number of calls of the control plane that run at a time for one address. More get
    RESOURCE_EXHAUSTED."""
    max_streams_per_principal: Count | None = setting(
        None, Group.LIMITS, shown="half of `max_connections`", reload=Reload.RELOAD
    )
    """The number of streams that one principal reads at a time. More get RESOURCE_EXHAUSTED."""
    stream_memory: Size = setting(256 << 20, Group.LIMITS)
    """The memory in which each process keeps the next data of streams ready, as in 1GiB. One
    principal gets half of it. Without room, a stream prepares data only when its reader waits."""
    filter_seconds: PositiveSeconds = setting(10.0, Group.LIMITS)
    """The processor time of a filter in one stream, in seconds, beside a second for each 10
    million rows or GB. A filter that uses more gets RESOURCE_EXHAUSTED."""
    filter_threads: Count = setting(8, Group.LIMITS)
    """The number of filters that one principal, or all unauthenticated readers together,
    evaluate at a time. The other streams with a filter wait."""
    parquet_bytes: Size = setting(4 << 30, Group.LIMITS)
    """The largest size of a column in a row group of a Parquet file, decoded, as in 8GiB. A
    request for a larger one gets RESOURCE_EXHAUSTED."""
    parquet_decoding_bytes: Size | None = setting(
        None, Group.LIMITS, shown="half of this host's memory, divided by the processes"
    )
    """The memory in which each process decodes row groups of Parquet files, as in 8GiB. A reader
    whose share is not free within a minute, or can never be, gets RESOURCE_EXHAUSTED."""
    parquet_int96: Literal["microseconds", "exact"] = setting("microseconds", Group.LIMITS)
    """How to read INT96 timestamps of Parquet: cut them to `microseconds`, or refuse those that
    have more digits (`exact`)."""
    parquet_keys: Literal["last", "keep"] = setting("last", Group.LIMITS)
    """What to do with a key that a MAP of Parquet has twice: use the `last` value, or `keep`
    all entries."""

    shm_cache: SizeOrZero | None = setting(
        None, Group.SHARED_MEMORY, shown="a quarter of this host's memory"
    )
    """The memory for copies of datasets that no reader maps, as in 4GiB."""
    vortex_cache: SizeOrZero = setting(1 << 30, Group.SHARED_MEMORY)
    """The memory for datasets that were compressed for readers in the format Vortex, as in
    4GiB."""
    shm_copy: bool = setting(False, Group.SHARED_MEMORY)
    """Let readers map copies of files, never the files themselves."""
    shm_trust: bool = setting(False, Group.SHARED_MEMORY)
    """Let readers map files even if the server cannot guard them against changes."""
    shm_users: tuple[Annotated[int, Field(ge=0)], ...] = setting(
        (), Group.SHARED_MEMORY, metavar="UID", shown="none"
    )
    """The id of a user who may map data, besides root and the server's user; may be given
    several times."""
    max_leased: Size | None = setting(None, Group.SHARED_MEMORY, shown="unlimited")
    """The size of all leases that one user may hold at a time, as in 2GiB."""
    lease_seconds: Seconds = setting(10.0, Group.SHARED_MEMORY)
    """The time that a stream at the limit `max_leased` waits for its reader to free leases, in
    seconds."""

    token_file: Path | None = setting(None, Group.SECURITY, reload=Reload.CHANGE)
    """A TOML file with bearer tokens and the datasets that each may read and write."""
    jwks: str | None = setting(None, Group.SECURITY, metavar="FILE|URL", reload=Reload.CHANGE)
    """The public keys of the issuer of JSON Web Tokens."""
    jwt_issuer: str | None = setting(None, Group.SECURITY, metavar="TEXT", reload=Reload.RELOAD)
    """The required value of the claim `iss` in JSON Web Tokens."""
    jwt_audience: str | None = setting(None, Group.SECURITY, metavar="TEXT", reload=Reload.RELOAD)
    """The required value of the claim `aud` in JSON Web Tokens."""
    jwt_leeway_seconds: Seconds = setting(
        0.0, Group.SECURITY, needs=("jwks",), reload=Reload.RELOAD
    )
    """How long a JSON Web Token is accepted after it expires, in seconds. It allows for clocks
    that differ."""
    oauth_client_id: str | None = setting(
        None, Group.SECURITY, metavar="TEXT", needs=("jwks",), reload=Reload.RELOAD
    )
    """The client id for which the issuer lets people log in with `splitarrow login`."""
    oauth_scope: str | None = setting(
        None, Group.SECURITY, metavar="TEXT", needs=("jwks",), reload=Reload.RELOAD
    )
    """The scopes that `splitarrow login` requests, as in `openid offline_access`."""
    ticket_key_file: Path | None = setting(
        None, Group.SECURITY, shown="a random key", reload=Reload.CHANGE
    )
    """The keys that sign tickets. Servers that share the file accept each other's tickets."""
    ticket_seconds: PositiveSeconds = setting(
        300.0, Group.SECURITY, needs=("token_file", "jwks", "ticket_key_file")
    )
    """The lifetime of a signed ticket, in seconds."""
    tls_cert: Path | None = setting(None, Group.SECURITY, reload=Reload.CHANGE)
    """The certificate chain of `tcp+tls` and `grpc+tls` listeners, in PEM."""
    tls_key: Path | None = setting(
        None, Group.SECURITY, shown="in the same file", needs=("tls_cert",), reload=Reload.CHANGE
    )
    """The key of the certificate, in PEM."""
    tls_client_ca: Path | None = setting(
        None, Group.SECURITY, needs=("tls_cert",), reload=Reload.CHANGE
    )
    """Certificate authorities, in PEM: require a client certificate that one of them issued."""
    proxy_protocol: Annotated[tuple[str, ...], NoDecode] = setting(
        (), Group.SECURITY, metavar="NETWORK", shown="none"
    )
    """A network of proxies, such as `10.1.0.0/16`, whose word for the reader's address counts: the
    header of the PROXY protocol on `tcp`, `tcp+tls` and HTTP listeners, and `X-Forwarded-For` on
    the control plane and HTTP; may be given several times."""
    insecure: bool = setting(False, Group.SECURITY)
    """Serve other machines without tokens or client certificates."""

    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", Group.LOG, reload=Reload.RELOAD
    )
    """The least severe events to log."""
    log_format: Literal["auto", "console", "json"] = setting(
        "auto", Group.LOG, shown="auto: console on a terminal, json elsewhere"
    )
    """The format of the log on standard error: text for people, or one JSON object per line."""

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

    @field_validator("advertise", "advertise_for", "proxy_protocol", mode="before")
    @classmethod
    def _split_addresses(cls, value: Any) -> Any:
        return list_pairs(value)

    @field_validator("advertise")
    @classmethod
    def _check_advertised(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_advertised(value)
        return value

    @field_validator("advertise_for")
    @classmethod
    def _check_advertised_for(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_advertised((), value)
        return value

    @field_validator("proxy_protocol")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            parse_network(text)
        return value

    @field_validator("control", "http")
    @classmethod
    def _check_service(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        plain, encrypted = _SERVICE_SCHEMES[info.field_name or ""]
        if "://" not in value:
            raise ValueError(
                f"{value!r} is not a URI; expected {plain}://host:port or {encrypted}://host:port, "
                f"as in {plain}://{value or '127.0.0.1:0'}"
            )
        DataUri.parse(value)
        return value

    @property
    def address_limit(self) -> int:
        """The number of connections from one address."""
        return self.max_connections_per_address or -(-self.max_connections // 2)

    @property
    def principal_limit(self) -> int:
        """The number of streams that one principal reads at a time."""
        return self.max_streams_per_principal or -(-self.max_connections // 2)

    @property
    def advertised(self) -> AdvertisedAddresses:
        """The addresses by which readers reach the listeners."""
        return parse_advertised(self.advertise, self.advertise_for)

    @property
    def proxies(self) -> tuple[Network, ...]:
        """The networks of proxies whose word for the reader's address counts."""
        return tuple(map(parse_network, self.proxy_protocol))

    @property
    def tls(self) -> TlsServerOptions | None:
        """The certificate of the server, and the clients that it accepts; None without one."""
        if self.tls_cert is None:
            return None
        return TlsServerOptions(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def requires_token(self) -> bool:
        """Whether the settings name tokens."""
        return self.token_file is not None or self.jwks is not None

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
    http_origins: Sequence[str]
    advertise: str | Sequence[str] | Mapping[str, str]
    advertise_for: Sequence[str] | Mapping[str, str | Mapping[str, str]]
    writable: str | Path | None
    writable_bytes: int | str | None
    upload_bytes: int | str | None
    upload_rate: int | str
    reflection: bool
    compression: Literal["none", "lz4", "zstd", "auto"] | None
    batch_rows: int | None
    allow_writers: bool
    follow_symlinks: bool
    partition_text: bool
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
    stream_memory: int | str
    filter_seconds: float
    filter_threads: int
    parquet_bytes: int | str
    parquet_decoding_bytes: int | str | None
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
    oauth_client_id: str | None
    oauth_scope: str | None
    ticket_key_file: str | Path | None
    ticket_seconds: float
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_client_ca: str | Path | None
    proxy_protocol: str | Sequence[str]
    insecure: bool
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["auto", "console", "json"]
