"""A UCX listener: a port that readers connect to."""

from __future__ import annotations

import errno
import secrets
from typing import Any

from ...errors import ConfigError, TransportError, UriError
from ...protocol.limits import Limits
from ...protocol.uri import DataUri
from . import addresses, endpoint
from .channel import UcxChannel
from .context import has_own_settings
from .library import OK, describe, ffi, ucp
from .sending import Mapped
from .worker import Bell, Worker, on_request

DEFAULT_PORT = 8817
HANDLE_BYTES = 8
"""The size of a ``remote_handle`` in bytes; see `DataUri.remote_tag`."""
_FIELD_SOCKADDR, _FIELD_HANDLER = 1 << 0, 1 << 2
_MOST_SPIN = 1_000_000
_QUERY_SOCKADDR = 1 << 0
_QUERY_CLIENT = 1 << 0


def spin_of(uri: DataUri) -> float:
    """Return for how many seconds to look for work before waiting for it: ``busy_poll``.

    Raises
    ------
    UriError
        If it is no number of microseconds.
    """
    text = dict(uri.extra).get("busy_poll", "0")
    if not text.isascii() or not text.isdigit() or int(text) > _MOST_SPIN:
        raise UriError(f"busy_poll={text!r}: it is a number of microseconds, up to {_MOST_SPIN}")
    return int(text) / 1e6


def _new_handle(want_data: int) -> bytes:
    tag = secrets.randbits(48) | 0xFFFF << 48
    return (tag ^ want_data).to_bytes(HANDLE_BYTES, "little")


class UcxListener:
    """A bound port. Each client gets a worker of its own.

    Parameters
    ----------
    uri : DataUri
        Where to bind; port 0 picks a free one.
    limits : Limits
        Bounds for the connections.
    mapped : callable, optional
        Returns the mapping of a file that is sent; bodies of type 1 are offered only with it.
    """

    def __init__(self, uri: DataUri, limits: Limits, mapped: Mapped | None = None) -> None:
        self._limits = limits
        self._mapped = mapped
        # By a remote_handle clients know, too, that both sides have the same settings.
        wanted = uri.stream.body and uri.body != "packed"
        self._lends = mapped is not None and wanted and has_own_settings()
        self._spin = spin_of(uri)
        if uri.remote_handle is not None and len(uri.remote_handle) != HANDLE_BYTES:
            raise UriError(
                f"{uri.redacted()}: the remote_handle of a ucx address has {HANDLE_BYTES} bytes"
            )
        self._handle: Any = None
        self._bell: Bell | None = None
        host = uri.host or "127.0.0.1"
        port = DEFAULT_PORT if uri.port is None else uri.port
        place = f"{uri.scheme}://{addresses.shown(host, port)}"
        try:
            address, _ = addresses.resolve(host, port, passive=True)
            sockaddr = addresses.pack(address, port)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {place}: {reason}") from None
        try:
            self._loopback = addresses.is_loopback(address)
            self._worker = Worker(0, loopback=self._loopback)
        except TransportError as error:
            raise ConfigError(f"cannot listen on {place}: {error.message}") from None
        try:
            status, self._handle = self._bind(sockaddr)
            if status != OK:
                raise ConfigError(f"cannot listen on {place}: {describe(status)}")
            handle = uri.remote_handle
            if not self._lends:
                handle = None
            elif handle is None:
                handle = _new_handle(uri.want_data or 0)
            self.uri = uri.replace(port=self._port(), remote_handle=handle)
            """The address, with the port that was bound, and the tag for bodies of type 1."""
            self._bell = Bell(self._worker.descriptor)
            self._ready()
        except BaseException:
            self.close()
            raise

    def _bind(self, sockaddr: bytes) -> tuple[int, Any]:
        address = ffi.from_buffer(sockaddr)
        params = ffi.new("ucp_listener_params_t *")
        params.field_mask = _FIELD_SOCKADDR | _FIELD_HANDLER
        params.sockaddr.addr = address
        params.sockaddr.addrlen = len(sockaddr)
        params.conn_handler.cb = on_request
        params.conn_handler.arg = self._worker.argument
        made = ffi.new("ucp_listener_h *")
        status = ucp.ucp_listener_create(self._worker.handle, params, made)
        return status, made[0] if status == OK else None

    def _port(self) -> int:
        attributes = ffi.new("ucp_listener_attr_t *")
        attributes.field_mask = _QUERY_SOCKADDR
        status = ucp.ucp_listener_query(self._handle, attributes)
        if status != OK:
            raise ConfigError(f"the port of a listener is unknown: {describe(status)}")
        return addresses.unpack(attributes.sockaddr)[1]

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits; -1 once closed."""
        return -1 if self._bell is None else self._bell.fileno()

    def accept(self) -> UcxChannel | None:
        """Return the next client's channel, or None if none waits.

        Raises
        ------
        OSError
            If there are no descriptors or memory for it; the client is turned away.
        """
        with self._worker.lock:
            while self._handle is not None and self._ready():
                channel = self._accept(self._worker.events.requests.popleft())
                if channel is not None:
                    return channel
        return None

    def _ready(self) -> bool:
        """Tell whether a client waits; if not, the descriptor will tell."""
        worker, bell = self._worker, self._bell
        assert bell is not None
        bell.silence()
        while not worker.events.requests:
            if worker.progress():
                bell.moved()
            elif worker.events.requests or worker.arm():
                break
            elif not worker.progress():
                bell.ring_later()
                break
        return bool(worker.events.requests)

    def _accept(self, request: Any) -> UcxChannel | None:
        attributes = ffi.new("ucp_conn_request_attr_t *")
        attributes.field_mask = _QUERY_CLIENT
        host, port = "?", 0
        if ucp.ucp_conn_request_query(request, attributes) == OK:
            host, port = addresses.unpack(attributes.client_address)
        try:
            worker = Worker(self._limits.metadata_bytes, loopback=self._loopback)
        except TransportError as error:
            ucp.ucp_listener_reject(self._handle, request)
            raise OSError(errno.ENOBUFS, error.message) from None
        status, made = endpoint.accept(worker, request)
        if status != OK:  # it left already
            worker.destroy()
            return None
        try:
            return UcxChannel(
                worker,
                made,
                self._limits,
                server=True,
                peer=addresses.shown(host, port),
                is_local=host != "?" and addresses.is_local(host),
                mapped=self._mapped,
                lends=self._lends,
                spin=self._spin,
            )
        except OSError:
            worker.close_endpoint(made)
            worker.destroy()
            raise

    def close(self) -> None:
        """Stop listening. Idempotent."""
        with self._worker.lock:
            if self._bell is not None:
                self._bell.close()
            handle, self._handle = self._handle, None
            if handle is not None:
                requests = self._worker.events.requests
                while requests:
                    ucp.ucp_listener_reject(handle, requests.popleft())
                ucp.ucp_listener_destroy(handle)
            self._worker.destroy()
