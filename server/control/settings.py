"""How the control plane serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from ...protocol.uri import DataUri

SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
DEFAULT_PORT = 8815


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """How the control plane serves. It is valid once built."""

    control: str
    """Where to listen: ``grpc://host:port`` or ``grpc+tls://host:port``; port 0 picks one."""
    advertise: str | None = None
    """The host that clients reach the data listeners by, where they cannot know it themselves."""
    writable: Path | None = None
    """The directory that uploads go to; None: nothing can be uploaded."""
    writable_bytes: int | None = None
    """The most bytes that all uploads together may take; None: what the disk has."""
    upload_bytes: int | None = None
    """The most bytes that one upload may take; None: as much as all together."""
    message_bytes: int = 256 << 20
    """The largest message of an upload, in bytes: one record batch."""
    uploads: int = 8
    """How many uploads may run at a time."""
    calls: int = 4096
    """How many calls may run at a time; more are told RESOURCE_EXHAUSTED."""
    tls_cert: Path | None = None
    """The server's certificate chain, in PEM; a ``grpc+tls://`` address needs one."""
    tls_key: Path | None = None
    """The key of the certificate, in PEM; None: it is in the same file."""
    tls_client_ca: Path | None = None
    """Authorities of which clients need a certificate, in PEM; None: they need none."""
    reflection: bool = False
    """Whether the service describes itself to gRPC tools."""
    insecure: bool = False
    """Whether a server without tokens may be reached from other machines."""

    def __post_init__(self) -> None:
        uri = self.uri
        if uri.scheme not in SCHEMES:
            raise ConfigError(
                f"control: {uri.address} has the scheme {uri.scheme!r}; it is "
                "grpc://host:port or grpc+tls://host:port"
            )
        if uri.path not in ("", "/") or uri.want_data is not None or uri.extra or uri.ticket:
            raise ConfigError(f"control: {uri.address} takes a host and a port, and no more")
        if self.tls and self.tls_cert is None:
            raise ConfigError("control: grpc+tls:// needs tls_cert")
        if self.writable is None and (self.writable_bytes or self.upload_bytes):
            raise ConfigError("writable_bytes and upload_bytes need a directory: writable")

    @property
    def uri(self) -> DataUri:
        """The address, parsed.

        Raises
        ------
        UriError
            If it is malformed.
        """
        return DataUri.parse(self.control)

    @property
    def tls(self) -> bool:
        """Whether calls are encrypted."""
        return self.uri.scheme == "grpc+tls"
