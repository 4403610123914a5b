"""The listeners of a daemon, and the URIs by which readers reach them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from socket import socket

from ..errors import ConfigError, UsageError
from ..protocol.limits import Limits
from ..protocol.uri import DataUri, Streams
from ..transport.base import Listener, ListenOptions
from ..transport.registry import find_transport
from ..transport.tls_options import TlsServerOptions
from .auth.access_control import AccessControl
from .config import DEFAULT_LISTEN, ServerSettings
from .config.uris import listener_uri
from .logs import get_logger
from .shares import Descriptors, count_listeners, reserved_share
from .shm.shared_regions import SharedRegions

_MAX_FRAME_BYTES = 1 << 20
"""The largest frame of a reader: a ticket, or the offsets that it frees."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def bind_listeners(
    settings: ServerSettings,
    access: AccessControl,
    regions: SharedRegions,
    sockets: Mapping[str, socket] | None = None,
    *,
    traced: bool = False,
) -> list[Listener]:
    """Bind every listener of the settings, or none if one of them fails.

    Parameters
    ----------
    settings : ServerSettings
        The settings of the server.
    access : AccessControl
        Refuses listeners that other machines could read from without a ticket.
    regions : SharedRegions
        The regions that readers map or read remotely.
    sockets : mapping, optional
        Bound sockets, by the URI in the settings, for the processes that share them. Other
        listeners are bound here.
    traced : bool
        Whether the server records traces.

    Raises
    ------
    ConfigError
        If an address cannot be bound, or would be open to other machines.
    """
    uris = [listener_uri(text, traced=traced) for text in settings.listen]
    access.check_exposure(
        uris,
        None,
        client_certificates=settings.tls_client_ca is not None,
        insecure=settings.insecure,
    )
    listeners: list[Listener] = []
    try:
        for text, uri in zip(settings.listen, uris, strict=True):
            try:
                sock = None if sockets is None else sockets.get(text)
                listeners.append(_bind(uri, settings, regions, sock))
            except ConfigError as error:
                # The default settings also listen for readers on this host. The server starts
                # without that listener where it cannot be bound.
                local_only = find_transport(uri).traits.local_only
                if not local_only or settings.listen != DEFAULT_LISTEN:
                    raise
                get_logger("daemon").warning("shared memory is disabled", reason=error.message)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(
    uri: DataUri, settings: ServerSettings, regions: SharedRegions, sock: socket | None
) -> Listener:
    limits = Limits(body_bytes=_MAX_FRAME_BYTES, metadata_bytes=_MAX_FRAME_BYTES)
    tls = None
    if settings.tls_cert is not None:
        tls = TlsServerOptions(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    options = ListenOptions(
        limits=limits,
        socket=sock,
        users=frozenset(settings.shm_users),
        tls=tls,
        map_file=regions.mappings.map,
        handshake_seconds=settings.handshake_seconds,
        max_waiting=reserved_share(Descriptors().capacity, count_listeners(settings)),
    )
    return find_transport(uri).listen(uri, options)


def select_listener(
    uris: Iterable[DataUri], scheme: str | None = None, stream: str | None = None
) -> DataUri:
    """Return the URI of the first listener of a scheme that carries a stream.

    Parameters
    ----------
    uris : iterable of DataUri
        The URIs that are bound.
    scheme : str, optional
        The transport. None accepts any.
    stream : {"both", "metadata", "body"}, optional
        The streams that the listener carries. None prefers both.

    Raises
    ------
    UsageError
        If there is no such listener.
    """
    matches = [
        uri for uri in uris if scheme in (None, uri.scheme) and stream in (None, uri.stream.value)
    ]
    if not matches:
        requested = [scheme or "any transport", *([f"stream={stream}"] if stream else [])]
        raise UsageError(f"the server does not listen on {' with '.join(requested)}")
    matches.sort(key=lambda uri: uri.stream is not Streams.BOTH)
    return matches[0].replace(host=_LOOPBACK.get(matches[0].host, matches[0].host))


def schemes_of(uris: Sequence[DataUri]) -> list[str]:
    """Return the schemes of listeners, each once, in order."""
    return list(dict.fromkeys(uri.scheme for uri in uris))
