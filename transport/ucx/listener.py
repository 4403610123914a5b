"""A UCX listener: a port that readers connect to."""

from __future__ import annotations

import errno
from typing import Any
from weakref import WeakValueDictionary

from ...errors import ConfigError, TransportError
from ...protocol.uri import DataUri
from ..base import ListenOptions
from ..port_guard import Address, PortGuard, make_address
from . import addresses, endpoint
from .context import has_peer_settings
from .ffi import OK, describe, ffi, ucp
from .idle_links import Link
from .options import UcxOptions
from .request_tags import check_handle, create_handle, find_request_tags
from .server_channel import UcxServerChannel
from .wakeup import Wakeup
from .worker import Worker, on_connection_request

DEFAULT_PORT = 8817
_FIELD_SOCKADDR, _FIELD_HANDLER = 1, 1 << 2
_QUERY_SOCKADDR = 1
_QUERY_CLIENT = 1


class UcxListener:
    """A bound port. Each client gets its own worker.

    Parameters
    ----------
    uri : DataUri
        The address to bind. Port 0 chooses a free one.
    options : ListenOptions
        The limits, and a function that maps files that are sent; see `Sender`. Without that
        function, the listener offers no remote bodies.

    Raises
    ------
    ConfigError
        If the address cannot be bound.
    UriError
        If the URI is not one of this scheme.
    """

    def __init__(self, uri: DataUri, options: ListenOptions) -> None:
        parameters = UcxOptions.from_uri(uri)
        self._limits = options.limits
        self._map_file = options.map_file
        # The remote_handle also informs clients that the server has this package's settings.
        self._offers_remote_bodies = (
            options.map_file is not None
            and uri.stream.carries_bodies
            and parameters.body != "packed"
            and has_peer_settings()
        )
        self._spin_seconds = parameters.busy_poll
        check_handle(uri)
        self._handle: Any = None
        self._wakeup: Wakeup | None = None
        self._guard: PortGuard | None = None
        self._channels: WeakValueDictionary[Address, UcxServerChannel] = WeakValueDictionary()
        host = uri.host or "127.0.0.1"
        port = DEFAULT_PORT if uri.port is None else uri.port
        failure = f"cannot listen on {uri.scheme}://{addresses.format_address(host, port)}"
        try:
            address, _ = addresses.resolve(host, port)
            sockaddr = addresses.pack(address, port)
            self._loopback = addresses.is_loopback(address)
            self._worker = Worker(0, loopback=self._loopback)
        except TransportError as error:
            raise ConfigError(f"{failure}: {error.message}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{failure}: {getattr(error, 'strerror', None) or error}") from None
        try:
            status, self._handle = self._bind(sockaddr)
            if status != OK:
                raise ConfigError(f"{failure}: {describe(status)}")
            port = self._bound_port()
            self.uri = uri.replace(port=port, remote_handle=self._remote_handle(uri))
            """The address, with the port that was bound and the handle of remote bodies."""
            self.request_tags = find_request_tags(self.uri)
            """The tags of data requests, each with the type of the bodies that it requests."""
            self._wakeup = Wakeup(self._worker.descriptor)
            self._guard = PortGuard(
                port,
                handshake_seconds=options.handshake_seconds,
                max_connections=options.max_waiting,
            )
            self._poll()
        except BaseException:
            self.close()
            raise

    def _remote_handle(self, uri: DataUri) -> bytes | None:
        if not self._offers_remote_bodies:
            return None
        return create_handle(uri.want_data or 0) if uri.remote_handle is None else uri.remote_handle

    def _bind(self, sockaddr: bytes) -> tuple[int, Any]:
        """Return a status and, if it is OK, the library's listener."""
        address = ffi.from_buffer(sockaddr)
        params = ffi.new("ucp_listener_params_t *")
        params.field_mask = _FIELD_SOCKADDR | _FIELD_HANDLER
        params.sockaddr.addr = address
        params.sockaddr.addrlen = len(sockaddr)
        params.conn_handler.cb = on_connection_request
        params.conn_handler.arg = self._worker.callback_argument
        created = ffi.new("ucp_listener_h *")
        status = ucp.ucp_listener_create(self._worker.handle, params, created)
        return status, created[0] if status == OK else None

    def _bound_port(self) -> int:
        attributes = ffi.new("ucp_listener_attr_t *")
        attributes.field_mask = _QUERY_SOCKADDR
        status = ucp.ucp_listener_query(self._handle, attributes)
        if status != OK:
            raise ConfigError(f"UCX does not report the port of a listener: {describe(status)}")
        return addresses.unpack(attributes.sockaddr)[1]

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits; -1 once closed."""
        return -1 if self._wakeup is None else self._wakeup.fileno()

    def accept(self) -> UcxServerChannel | None:
        """Return the channel of the next client, or None if no client waits.

        Raises
        ------
        OSError
            If there are not enough descriptors or memory. The client is turned away.
        """
        with self._worker.lock:
            while self._handle is not None and self._poll():
                channel = self._accept(self._worker.events.connection_requests.popleft())
                if channel is not None:
                    return channel
        return None

    def reject(self) -> bool:
        """Turn the next client away; return whether one was waiting."""
        with self._worker.lock:
            if self._handle is None or not self._poll():
                return False
            self._reject(self._worker.events.connection_requests.popleft())
            return True

    def _reject(self, connection_request: Any) -> None:
        ucp.ucp_listener_reject(self._handle, connection_request)

    def _poll(self) -> bool:
        """Return whether a client waits; if not, prepare to wait for `fileno`."""
        worker, wakeup, guard = self._worker, self._wakeup, self._guard
        assert wakeup is not None
        assert guard is not None
        wakeup.clear()
        guard.check_if_due(self._channels)
        requests = worker.events.connection_requests
        while not requests:
            if worker.progress():
                wakeup.reset_pause()
            elif requests or worker.arm_for(wakeup):
                break
        if not wakeup.is_set:
            wakeup.set(1 + int(guard.seconds_to_check * 1e9))
        return bool(requests)

    def _accept(self, connection_request: Any) -> UcxServerChannel | None:
        """Return a client's channel, or None if the client has left already."""
        host, port = _client_address(connection_request)
        try:
            worker = Worker(self._limits.metadata_bytes, loopback=self._loopback)
        except TransportError as error:
            self._reject(connection_request)
            raise OSError(errno.ENOBUFS, error.message) from None
        except OSError:
            self._reject(connection_request)
            raise
        status, created = endpoint.accept(worker, connection_request)
        if status != OK:
            worker.destroy()
            return None
        link = Link(
            worker,
            created,
            peer=addresses.format_address(host, port),
            is_local=host != "?" and addresses.is_local(host),
            spin_seconds=self._spin_seconds,
        )
        try:
            channel = UcxServerChannel(
                link,
                self._limits,
                map_file=self._map_file,
                offers_remote_bodies=self._offers_remote_bodies,
            )
        except OSError:
            worker.close_endpoint(created)
            worker.destroy()
            raise
        if host != "?":
            self._channels[make_address(host, port)] = channel
        return channel

    def close(self) -> None:
        """Stop listening, and turn waiting clients away. Idempotent."""
        with self._worker.lock:
            if self._wakeup is not None:
                self._wakeup.close()
            if self._guard is not None:
                self._guard.close()
            handle, self._handle = self._handle, None
            if handle is not None:
                requests = self._worker.events.connection_requests
                while requests:
                    ucp.ucp_listener_reject(handle, requests.popleft())
                ucp.ucp_listener_destroy(handle)
            self._worker.destroy()


def _client_address(connection_request: Any) -> tuple[str, int]:
    attributes = ffi.new("ucp_conn_request_attr_t *")
    attributes.field_mask = _QUERY_CLIENT
    if ucp.ucp_conn_request_query(connection_request, attributes) != OK:
        return "?", 0
    return addresses.unpack(attributes.client_address)
