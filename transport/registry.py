"""The registry of transports, by URI scheme.

A package can add a scheme through the entry point group ``splitarrow.transports``. The entry
point is named after the scheme and refers to a `Transport` object::

    [project.entry-points."splitarrow.transports"]
    quic = "my_package.quic:TRANSPORT"

Built-in schemes take precedence.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import MissingExtraError, UriError, install_hint
from ..protocol.uri import DataUri
from .base import Transport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "splitarrow.transports"

_MODULES: Mapping[str, str] = {
    "inproc": ".inproc",
    "tcp": ".tcp",
    "tcp+tls": ".tls",
    "shm": ".shm",
    "ucx": ".ucx",
}
"""The modules of the built-in schemes. Each defines ``TRANSPORT``."""
_EXTRAS: Mapping[str, str] = {"ucx": "ucx"}
"""The extra that installs the dependencies of a scheme's module."""
_overrides: dict[str, Transport] = {}


def list_schemes() -> list[str]:
    """Return the known schemes: the built-in ones first, then those of other packages."""
    return [*_MODULES, *sorted(_find_entry_points().keys() - _MODULES.keys())]


def find_transport(uri: DataUri, others: Iterable[str] = ()) -> Transport:
    """Return the transport of a URI's scheme.

    Raises `UriError` if the scheme is unknown: it lists the transports, and `others`, which the
    caller accepts too. Raises it as well if the package that provides it cannot be loaded.
    Raises `MissingExtraError` if a dependency of the scheme is not installed. The error names the
    extra.
    """
    scheme = uri.scheme
    if scheme in _overrides:
        return _overrides[scheme]
    if scheme in _MODULES:
        return _import_built_in(scheme)
    transport = _load_entry_point(scheme)
    if transport is None:
        known = ", ".join((*others, *list_schemes()))
        raise UriError(f"unknown scheme {scheme!r} in {uri.redacted()}; known are {known}")
    return transport


@contextmanager
def override_transport(transport: Transport) -> Generator[None]:
    """Use `transport` for its scheme while the context lasts."""
    scheme = transport.scheme
    previous = _overrides.get(scheme)
    _overrides[scheme] = transport
    try:
        yield
    finally:
        if previous is None:
            del _overrides[scheme]
        else:
            _overrides[scheme] = previous


@cache
def _import_built_in(scheme: str) -> Transport:
    try:
        return import_module(_MODULES[scheme], __package__).TRANSPORT
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(scheme)
        if extra is None:
            raise
        raise MissingExtraError(
            f"{scheme}:// needs the package {error.name!r}: {install_hint(extra)}"
        ) from None


def _find_entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@lru_cache
def _load_entry_point(scheme: str) -> Transport | None:
    point = _find_entry_points().get(scheme)
    if point is None:
        return None
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UriError(
            f"cannot load the transport of {scheme}:// from {point.value}: {error}"
        ) from None
