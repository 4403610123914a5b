"""Which module speaks which scheme."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError, UriError
from ..protocol.uri import DataUri
from .base import Transport

if TYPE_CHECKING:
    from .certificates import TlsOptions

_MODULES: dict[str, str] = {
    "inproc": ".inproc",
    "shm": ".shm",
    "tcp": ".tcp",
    "tcp+tls": ".tls",
    "ucx": ".ucx",
}
_EXTRAS: dict[str, str] = {"ucx": "ucx"}
"""The extra that brings what a scheme's module needs, where it needs one."""
_replaced: dict[str, Transport] = {}


def schemes() -> list[str]:
    """Return the names of the schemes that this version knows."""
    return sorted(_MODULES)


def transport_for(uri: DataUri, tls: TlsOptions | None = None) -> Transport:
    """Return the transport that a URI's scheme stands for.

    Parameters
    ----------
    uri : DataUri
        Its scheme counts.
    tls : TlsOptions, optional
        What to trust and to show, where the transport has a use for that.

    Raises
    ------
    UriError
        If the scheme is unknown.
    MissingExtraError
        If a package that it needs is not installed; the error names the extra.
    """
    transport = _transport(uri)
    secured: Any = getattr(transport, "secured", None)
    return transport if tls is None or secured is None else secured(tls)


def _transport(uri: DataUri) -> Transport:
    if uri.scheme in _replaced:
        return _replaced[uri.scheme]
    try:
        module = _MODULES[uri.scheme]
    except KeyError:
        raise UriError(
            f"unknown scheme {uri.scheme!r} in {uri.redacted()}; known are {', '.join(schemes())}"
        ) from None
    try:
        return import_module(module, __package__).TRANSPORT
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(uri.scheme)
        if extra is None:
            raise
        raise MissingExtraError(
            f"{uri.scheme}:// needs the package {error.name!r}: pip install 'splitarrow[{extra}]'"
        ) from None


@contextmanager
def replaced(transport: Transport) -> Generator[None]:
    """Let `transport` stand for its scheme while the context lasts."""
    before = _replaced.get(transport.scheme)
    _replaced[transport.scheme] = transport
    try:
        yield
    finally:
        if before is None:
            del _replaced[transport.scheme]
        else:
            _replaced[transport.scheme] = before
