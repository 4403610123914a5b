"""The transport object of the scheme ``ucx``: listening and connecting."""

from __future__ import annotations

import errno
import select
import threading
import time
from typing import Any
from weakref import WeakValueDictionary

from ...errors import ConfigError, ConnectError, SplitArrowError, TransportError, UriError
from ...protocol.devices import DeviceAllocator, StagingAllocator
from ...protocol.limits import Limits
from ...protocol.memory import Allocator
from ...protocol.uri import UCX_PORT, DataUri, Streams
from ..base import ConnectOptions, Diagnosis, ListenOptions, Traits
from ..port_guard import Address, PortGuard, make_address
from .channel import UcxReaderChannel, UcxServerChannel
from .context import Reach, has_peer_settings
from .endpoint import (
    accept_endpoint,
    connect_endpoint,
    find_reach,
    format_address,
    is_loopback_address,
    list_lanes,
    pack_address,
    resolve_address,
    unpack_address,
)
from .ffi import IN_PROGRESS, OK, describe, ffi, get_status, ucp, version
from .lanes import lanes_read_remotely, list_performance_hints
from .links import IDLE_LINKS, Link, ServerKey
from .memory import list_direct_types
from .uri import (
    RemoteTags,
    UcxOptions,
    check_handle,
    create_handle,
    find_remote_request_tag,
    find_request_tags,
)
from .worker import Wakeup, Worker, on_connection_request

_FIELD_SOCKADDR, _FIELD_HANDLER = 1, 1 << 2
_QUERY_SOCKADDR = 1
_QUERY_CLIENT = 1
_ACCEPT_POLL_SECONDS = 0.001


class UcxListener:
    """A bound port. Each client gets its own worker.

    Port 0 selects a free port. Without `options.map_file`, the listener offers no remote bodies.

    Raises `ConfigError` if the address cannot be bound, and `UriError` if the URI is not one of
    this scheme.
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
        port = UCX_PORT if uri.port is None else uri.port
        failure = f"cannot listen on {uri.scheme}://{format_address(host, port)}"
        try:
            address = resolve_address(host, port)
            sockaddr = pack_address(address, port)
            self._is_loopback = is_loopback_address(address)
            self._worker = Worker(0, reach=Reach.LOOPBACK if self._is_loopback else Reach.HOST)
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
                keeps_alive=True,
            )
            self._poll()
        except BaseException:
            self.close()
            raise

    def _find_reach(self, address: str) -> Reach:
        """Return where an address is, for the context of its worker."""
        if self._is_loopback:
            return Reach.LOOPBACK
        reach = find_reach(address)
        return Reach.HOST if reach is Reach.LOOPBACK else reach

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
        return unpack_address(attributes.sockaddr)[1]

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits; -1 once closed."""
        return -1 if self._wakeup is None else self._wakeup.fileno()

    def accept(self) -> UcxServerChannel | None:
        """Return the channel of the next client, or None if no client waits.

        Raises `OSError` if there are not enough descriptors or memory. The client is turned away.
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
            client = self._worker.events.connection_requests.popleft()
            ucp.ucp_listener_reject(self._handle, client)
            return True

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
        reach = Reach.NETWORK if host == "?" else self._find_reach(host)
        try:
            worker = Worker(self._limits.metadata_bytes, reach=reach)
        except TransportError as error:
            ucp.ucp_listener_reject(self._handle, connection_request)
            raise OSError(errno.ENOBUFS, error.message) from None
        except OSError:
            ucp.ucp_listener_reject(self._handle, connection_request)
            raise
        status, created = accept_endpoint(worker, connection_request)
        if status != OK:
            worker.destroy()
            return None
        link = Link(
            worker,
            created,
            peer=format_address(host, port),
            reach=reach,
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
    return unpack_address(attributes.client_address)


class UcxTransport:
    """The scheme ``ucx``."""

    scheme = "ucx"
    traits = Traits(default_port=UCX_PORT, leases_memory=True, descriptors=18, location_rank=40)

    def diagnose(self) -> Diagnosis:
        """Return the version of UCX, the lanes of this host, and why faster ones are not used."""
        try:
            lanes = self._local_lanes()
        except SplitArrowError as error:
            return Diagnosis(detail=f"UCX {version()}: {error.message}", hints=[error.message])
        detail = f"UCX {version()}; lanes on this host: {', '.join(lanes)}"
        return Diagnosis(detail=detail, hints=list_performance_hints(lanes))

    def _local_lanes(self) -> list[str]:
        """Return the lanes of a connection that this process makes with itself."""
        uri = DataUri(self.scheme, "127.0.0.1", 0, want_data=1 << 40)
        listener = UcxListener(uri, ListenOptions(map_file=lambda file: None))
        done = threading.Event()
        thread = threading.Thread(target=_accept_one, args=(listener, done))
        thread.start()
        try:
            channel = self.connect(listener.uri, ConnectOptions(timeout=5))
            try:
                return channel.lanes
            finally:
                channel.abort()
        finally:
            done.set()
            thread.join()
            listener.close()

    def listen(self, uri: DataUri, options: ListenOptions) -> UcxListener:
        """Bind an address; see `Transport.listen` and `UcxListener`."""
        if uri.path.strip("/"):
            raise UriError(
                f"{uri.redacted()} has a path: a {uri.scheme} address is a host and port"
            )
        return UcxListener(uri, options)

    def connect(self, uri: DataUri, options: ConnectOptions) -> UcxReaderChannel:
        """Connect, or take an idle connection to the same server; see `Transport.connect`.

        Raises `ConnectError` if the connection cannot be made, or the URI requires remote bodies
        and no lane can read them. Raises `UriError` if the URI has no host, or requires remote
        bodies that the server does not offer.
        """
        if not uri.host:
            raise UriError(f"{uri.redacted()} has no host: a {uri.scheme} address needs one")
        failure = f"cannot connect to {uri.address}"
        port = UCX_PORT if uri.port is None else uri.port
        limits, parameters = options.limits, UcxOptions.from_uri(uri)
        created: Any = None
        try:
            host = resolve_address(uri.host, port)
            reach = find_reach(host)
            sockaddr = pack_address(host, port)
            key = _make_key(uri, sockaddr) if options.reuse else None
            idle = None if key is None else IDLE_LINKS.take(key)
            if idle is not None:
                worker, created = idle.worker, idle.endpoint
                worker.events.limit = limits.metadata_bytes
            else:
                worker = _create_worker(uri, reach, limits)
        except TransportError as error:
            raise ConnectError(f"{failure}: {error.message}") from None
        except (OSError, ValueError) as error:
            raise ConnectError(f"{failure}: {getattr(error, 'strerror', None) or error}") from None
        try:
            if idle is None:
                status, created = connect_endpoint(worker, sockaddr)
                if status == OK:
                    status = _wait_for_connection(worker, created, options.timeout)
                if status == IN_PROGRESS:
                    raise ConnectError(f"{failure}: no answer within {options.timeout:g} s")
                if status != OK:
                    raise ConnectError(f"{failure}: {describe(status)}")
            link = Link(
                worker,
                created,
                peer=format_address(uri.host, port),
                reach=reach,
                spin_seconds=parameters.busy_poll,
                is_reused=idle is not None,
            )
            device = _find_device(worker, options.allocator)
            body = parameters.body or ("packed" if device is not None else None)
            tags = _remote_tags(uri, body, list_lanes(created))
            return UcxReaderChannel(link, limits, tags, options.allocator, device, key)
        except BaseException as error:
            if created is not None:
                worker.close_endpoint(created)
            worker.destroy()
            if isinstance(error, OSError):
                raise ConnectError(f"{failure}: {error.strerror or error}") from None
            raise


def _make_key(uri: DataUri, sockaddr: bytes) -> ServerKey | None:
    """Return what finds an idle connection to a server; None if the server may not expect reuse.

    A server with this package's settings has a remote_handle. Others may serve one stream on each
    connection.
    """
    handle = uri.remote_handle
    return None if handle is None else ServerKey(sockaddr, uri.want_data, handle)


def _create_worker(uri: DataUri, reach: Reach, limits: Limits) -> Worker:
    """Return a worker for a new connection. If descriptors are scarce, idle connections end."""
    # A server with this package's settings has a remote_handle.
    plain = uri.remote_handle is None
    try:
        return Worker(limits.metadata_bytes, plain=plain, reach=reach)
    except TransportError:
        if not IDLE_LINKS.close():
            raise
    return Worker(limits.metadata_bytes, plain=plain, reach=reach)


def _find_device(worker: Worker, allocator: Allocator) -> DeviceAllocator | None:
    """Return what supplies the memory of a device, if bodies go there and the library knows it.

    They are then requested packed: the library chooses how to read them remotely.
    """
    if not isinstance(allocator, StagingAllocator):
        return None
    device = allocator.device
    return device if device.type_code in list_direct_types(worker.context) else None


def _remote_tags(uri: DataUri, body: str | None, lanes: list[str]) -> RemoteTags | None:
    """Return the tags by which to request remote bodies, or None to request packed ones."""
    if not uri.stream.carries_bodies or body == "packed":
        return None
    if body is None and uri.stream is not Streams.BOTH:
        return None  # the metadata on the other connection describes bodies as they are stored
    request = None if uri.free_data is None else find_remote_request_tag(uri)
    if request is None or uri.free_data is None:
        if body == "remote":
            raise UriError(
                f"{uri.redacted()}: body=remote needs a remote_handle and free_data; use a URI of "
                "a server that offers remote bodies"
            )
        return None
    if not lanes_read_remotely(lanes):
        if body == "remote":
            raise ConnectError(
                f"body=remote: no lane to {uri.address} reads remote memory; the lanes are "
                f"{', '.join(lanes) or 'unknown'}"
            )
        return None
    return RemoteTags(uri.require_want_data(), request, uri.free_data)


def _accept_one(listener: UcxListener, done: threading.Event) -> None:
    """Accept one connection, and keep it alive until `done` is set."""
    channel: UcxServerChannel | None = None
    try:
        while not done.wait(_ACCEPT_POLL_SECONDS):
            channel = channel or listener.accept()
            if channel is not None:
                channel.receive_some()
    except (OSError, SplitArrowError):
        pass  # the other end reports it
    finally:
        if channel is not None:
            channel.abort()


def _wait_for_connection(worker: Worker, created: Any, timeout: float) -> int:
    """Return OK once the connection is made, the status of a failure, or IN_PROGRESS in the end."""
    deadline = time.monotonic() + timeout
    request = ucp.ucp_ep_flush_nbx(created, ffi.new("ucp_request_param_t *"))
    status = get_status(request)
    if status != IN_PROGRESS:
        return status
    poll = select.poll()
    poll.register(worker.descriptor, select.POLLIN)
    try:
        while True:
            while worker.progress():
                pass
            if worker.events.error != OK:
                return worker.events.error
            status = ucp.ucp_request_check_status(request)
            remaining = deadline - time.monotonic()
            if status != IN_PROGRESS or remaining <= 0:
                return status
            if worker.arm():
                poll.poll(remaining * 1000)
    finally:
        ucp.ucp_request_free(request)


TRANSPORT = UcxTransport()
