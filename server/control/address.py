"""The URI that the control plane listens on."""

from __future__ import annotations

from ...errors import ConfigError
from ...protocol.uri import DataUri
from ..config import ServerSettings

DEFAULT_PORT = 8815
_SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")


def control_uri(settings: ServerSettings) -> DataUri | None:
    """Return the URI of the control plane's listener; None if the server has no control plane.

    Raises
    ------
    ConfigError
        If the URI is not that of a gRPC listener, or the settings that it needs are missing.
    UriError
        If the URI is malformed.
    """
    if settings.control is None:
        return None
    uri = DataUri.parse(settings.control)
    if uri.scheme not in _SCHEMES:
        raise ConfigError(
            f"control: {uri.address} has the scheme {uri.scheme!r}; "
            "expected grpc://host:port or grpc+tls://host:port"
        )
    if uri.path not in ("", "/") or uri.want_data is not None or uri.extra or uri.ticket:
        raise ConfigError(f"control: {uri.address} must have a host and a port only")
    if uri.scheme == "grpc+tls" and settings.tls_cert is None:
        raise ConfigError("control: grpc+tls:// needs tls_cert")
    return uri.replace(port=DEFAULT_PORT if uri.port is None else uri.port, path="")
