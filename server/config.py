"""The server's settings: from arguments, ``SPLITARROW_…`` variables and a TOML file.

They count in that order: what an argument says wins over a variable, and that over the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ..errors import ConfigError, UriError
from ..protocol.tags import is_request_value
from ..protocol.uri import DataUri
from ..transport.registry import transport_for
from .catalog.object_cache import DEFAULT_BYTES, CacheSettings, ObjectCache

WANT_DATA = 0x0000_0100_0000_0001
FREE_DATA = 0x0000_0100_0000_0002
"""The tags of a listener that names none: the same on every host, so that URIs stay valid."""

DEFAULT_LISTEN = ("tcp://127.0.0.1:8816", "shm://")
"""Where a server listens that is told nothing. Shared memory is left out where it cannot be."""

Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class ServerSettings(BaseSettings):
    """How a daemon serves. It is valid once built."""

    model_config = SettingsConfigDict(
        env_prefix="SPLITARROW_", extra="forbid", frozen=True, validate_default=True
    )

    datasets: dict[str, str] = {}
    """The catalog: names and where the data lies."""
    listen: tuple[str, ...] = DEFAULT_LISTEN
    """Where to listen for readers. ``stream=metadata`` or ``stream=body`` serves one stream."""
    object_cache: Path | None = None
    """Where shards from object stores are kept; None: in the user's cache folder."""
    object_cache_bytes: Count = DEFAULT_BYTES
    """The most bytes that are kept there."""
    keep_versions: Count | None = None
    """How many versions of published datasets are kept at least: older ones, and shards that only
    they name, are removed when nobody reads them. None: nothing is removed."""
    poll_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How often object stores are looked at for new versions, and for old ones to remove."""
    control: str | None = None
    """Where to listen for the control plane; None: nowhere."""
    compression: Literal["none", "lz4", "zstd"] | None = None
    """How bodies are compressed; None leaves files as they lie and compresses nothing else."""
    batch_rows: Count | None = None
    """The largest number of rows in a batch; None leaves it to the source."""
    workers: Count = 1
    """How many processes share the ports."""
    drain_seconds: Seconds = 30.0
    """How long running streams may go on after SIGTERM."""
    handshake_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long a new connection may take to say what it is."""
    idle_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a connection without a stream is kept."""
    max_connections: Count = 4096
    """How many connections a process serves; more are told RESOURCE_EXHAUSTED."""
    shm_cache: Annotated[int, Field(ge=0)] | None = None
    """How many bytes of datasets that were copied into memory, for readers that map it, are kept
    once nobody reads them; None: a quarter of the host's memory."""
    shm_copy: bool = False
    """Whether readers map copies of files and never the files themselves."""
    shm_trust: bool = False
    """Whether readers map files that cannot be guarded against changes while they do."""
    shm_users: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """The ids of users that may map data, besides the server's own and root."""
    max_leased: Count | None = None
    """How many bytes one user may hold leases on at a time; None: any number."""
    lease_seconds: Seconds = 10.0
    """How long a stream waits for its reader to free something, where it holds that much."""
    advertise: str | None = None
    """The host in the addresses that the control plane hands out, if readers need another."""
    writable: Path | None = None
    """The directory for uploads; None: nothing can be uploaded."""
    writable_bytes: Count | None = None
    """The most bytes that all uploads together may take."""
    upload_bytes: Count | None = None
    """The most bytes that one upload may take."""
    token_file: Path | None = None
    """A file with bearer tokens and what each may read."""
    jwks: str | None = None
    """A file or URL with the public keys of an issuer of JSON Web Tokens."""
    jwt_issuer: str | None = None
    """Who issues them."""
    jwt_audience: str | None = None
    """Whom they are for."""
    ticket_key_file: Path | None = None
    """A file with the keys that sign tickets; servers that share it accept each other's."""
    ticket_seconds: Annotated[float, Field(gt=0)] = 300.0
    """How long a signed ticket is good."""
    tls_cert: Path | None = None
    """The certificate chain for ``tcp+tls`` and ``grpc+tls``, in PEM."""
    tls_key: Path | None = None
    """Its key, in PEM; None: it is in the same file."""
    tls_client_ca: Path | None = None
    """Authorities of which clients need a certificate, in PEM; None: they need none."""
    reflection: bool = False
    """Whether the control plane describes itself to gRPC tools."""
    insecure: bool = False
    """Whether a server without tokens may be reached from other machines."""
    ready_file: Path | None = None
    """A file that gets one JSON object once every listener is bound."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe event that is logged."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """How events are logged; ``auto``: for people on a terminal, JSON elsewhere."""

    def open_object_cache(self) -> ObjectCache:
        """Return where shards from object stores are kept."""
        return CacheSettings(self.object_cache, self.object_cache_bytes).open()

    @field_validator("datasets")
    @classmethod
    def _named(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name or "\0" in name:
                raise ValueError("a dataset needs a name")
        return value

    @field_validator("listen")
    @classmethod
    def _listening(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("there has to be one address at least")
        for text in value:
            listener_uri(text)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say where settings come from, the strongest first."""
        toml_file = settings_cls.model_config.get("toml_file")
        file = (TomlConfigSettingsSource(settings_cls),) if toml_file else ()
        return (init_settings, env_settings, *file)


def load_settings(config: Path | None = None, **arguments: Any) -> ServerSettings:
    """Return the settings; arguments that are None count as not given.

    Parameters
    ----------
    config : Path, optional
        A TOML file with settings of the same names.
    **arguments
        Fields of `ServerSettings`.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a setting is unknown or impossible; the error names it.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if config is not None and not config.is_file():
        raise ConfigError(f"there is no configuration file {config}")

    class FromFile(ServerSettings):
        model_config = SettingsConfigDict(toml_file=config, title="ServerSettings")

    try:
        return ServerSettings(**FromFile(**given).model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{name}: {reason}") from None
    except (ValueError, OSError) as error:  # malformed TOML, or a variable that is no JSON
        raise ConfigError(f"{config or 'environment'}: {error}") from None


def listener_uri(text: str) -> DataUri:
    """Return the URI of a listener, with ``want_data`` filled in.

    Raises
    ------
    UriError
        If it is malformed, of an unknown scheme, or its ``want_data`` could be a body's tag.
    """
    uri = DataUri.parse(text)
    transport_for(uri)
    if uri.ticket is not None:
        raise UriError(f"{uri.redacted()}: a listener has no ticket")
    changes: dict[str, int] = {}
    for name, default in (("want_data", WANT_DATA), ("free_data", FREE_DATA)):
        value = getattr(uri, name)
        if value is not None and not is_request_value(value):
            raise UriError(f"{name}={value:#x}: one of its bits 32-55 has to be set")
        if value is None and (name == "want_data" or uri.scheme in ("shm", "ucx")):
            changes[name] = default
    return uri.replace(**changes)
