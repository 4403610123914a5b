"""Which module speaks which scheme."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module

from ..errors import MissingExtraError, UriError
from ..protocol.uri import DataUri
from .base import Transport

_MODULES: dict[str, str] = {
    "inproc": ".inproc",
    "tcp": ".tcp",
}
_EXTRAS: dict[str, str] = {}
"""The extra that brings what a scheme's module needs, where it needs one."""
_replaced: dict[str, Transport] = {}


def schemes() -> list[str]:
    """Return the names of the schemes that this version knows."""
    return sorted(_MODULES)


def transport_for(uri: DataUri) -> Transport:
    """Return the transport that a URI's scheme stands for.

    Raises
    ------
    UriError
        If the scheme is unknown.
    MissingExtraError
        If a package that it needs is not installed; the error names the extra.
    """
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
