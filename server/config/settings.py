"""Every setting of a server, with its type, default, bounds and help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

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
from .service_settings import DEFAULT_LISTEN, ServiceSettings

__all__ = ["DEFAULT_LISTEN", "ServerSettings"]


class ServerSettings(ServiceSettings):
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
