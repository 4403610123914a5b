"""Traces of the server, which an OpenTelemetry collector gets by OTLP over HTTP.

This module finds the collector and opens the tracer. Only `spans` imports OpenTelemetry. A server
that records no traces has no tracer at all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from ..errors import ConfigError, MissingExtraError, install_hint
from .config import Settings
from .logs import get_logger

_PATH = "/v1/traces"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP = "http/protobuf"


class Endpoint(NamedTuple):
    """Where spans go."""

    source: str
    """The setting or the variable that names it."""
    url: str | None
    """The URL, with its path. None lets the exporter read it from the variable."""


def check_endpoint(settings: Settings) -> str | None:
    """Return the URL that spans go to by the settings; None if they name none.

    As for OpenTelemetry's own variable, ``/v1/traces`` is added to the path.
    """
    text = settings.otlp
    if text is None:
        return None
    expected = "expected http://host:port or https://host:port"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"otlp: the value is not a URL; {expected}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "otlp: the URL has a user name or a password; "
            "set OTEL_EXPORTER_OTLP_HEADERS to authenticate instead"
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(f"otlp: {text.partition('?')[0]!r} is not such a URL; {expected}")
    path = parts.path.rstrip("/")
    path = path if path.endswith(_PATH) else path + _PATH
    return parts._replace(path=path).geturl()


def find_endpoint(settings: Settings) -> tuple[Endpoint | None, str | None]:
    """Return where spans go, and why they do not go where a variable says.

    Without the setting, the variables of OpenTelemetry decide. They often apply to all programs of
    a host, so what this server cannot do is no error.
    """
    url = check_endpoint(settings)
    if _variable("OTEL_SDK_DISABLED").lower() == "true":
        return None, None
    if url is not None:
        return Endpoint("otlp", url), None
    source = next((name for name in _ENDPOINTS if _variable(name)), None)
    if source is None or _variable("OTEL_TRACES_EXPORTER") not in ("", "otlp"):
        return None, None
    for name in _PROTOCOLS:
        protocol = _variable(name)
        if protocol and protocol != _HTTP:
            return None, f"{name} is {protocol!r}, and the server exports by {_HTTP} only"
        if protocol:
            break
    return Endpoint(source, None), None


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


if TYPE_CHECKING:
    from .spans import Tracer
else:
    Tracer = object


def open_tracer(settings: Settings, process: str) -> Tracer | None:
    """Return the tracer of a process; None if the server records no traces."""
    endpoint, reason = find_endpoint(settings)
    if reason is not None:
        get_logger("daemon").warning("no traces are recorded", reason=reason)
    if endpoint is None:
        return None
    try:
        from .spans import Tracer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("splitarrow"):
            raise
        message = (
            f"{endpoint.source}: traces need the package {error.name}, which is not installed; "
            f"run: {install_hint('otel')}"
        )
        if endpoint.url is not None:
            raise MissingExtraError(message) from None
        get_logger("daemon").warning("no traces are recorded", reason=message)
        return None
    return Tracer(endpoint.url, process)
