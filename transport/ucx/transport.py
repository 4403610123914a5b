"""The transport object of the scheme ``ucx``, and connecting."""

from __future__ import annotations

import select
import threading
import time
from typing import Any

from ...errors import ConnectError, SplitArrowError, TransportError, UriError
from ...protocol.devices import DeviceAllocator, StagingAllocator
from ...protocol.limits import Limits
from ...protocol.memory import Allocator
from ...protocol.uri import DataUri, Streams
from ..base import ConnectOptions, Diagnosis, ListenOptions, Traits
from . import addresses, endpoint
from .device_memory import list_device_types
from .diagnostics import list_performance_hints
from .ffi import (
    IN_PROGRESS,
    OK,
    describe,
    ffi,
    get_status,
    ucp,
    version,
)
from .idle_links import IDLE_LINKS, Link, ServerKey
from .lanes import lanes_read_remotely
from .listener import DEFAULT_PORT, UcxListener
from .options import UcxOptions
from .reader_channel import UcxReaderChannel
from .request_tags import RemoteTags, find_remote_request_tag
from .server_channel import UcxServerChannel
from .worker import Worker

_ACCEPT_POLL_SECONDS = 0.001


class UcxTransport:
    """The scheme ``ucx``."""

    scheme = "ucx"
    traits = Traits(default_port=DEFAULT_PORT, leases_memory=True, descriptors=18, location_rank=40)

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

        Raises
        ------
        ConnectError
            If the connection cannot be made, or the URI requires remote bodies and no lane can
            read them.
        UriError
            If the URI has no host, or requires remote bodies that the server does not offer.
        """
        if not uri.host:
            raise UriError(f"{uri.redacted()} has no host: a {uri.scheme} address needs one")
        failure = f"cannot connect to {uri.address}"
        port = DEFAULT_PORT if uri.port is None else uri.port
        limits, parameters = options.limits, UcxOptions.from_uri(uri)
        created: Any = None
        try:
            host, _ = addresses.resolve(uri.host, port)
            sockaddr = addresses.pack(host, port)
            key = _make_key(uri, sockaddr) if options.reuse else None
            idle = None if key is None else IDLE_LINKS.take(key)
            if idle is not None:
                worker, created = idle.worker, idle.endpoint
                worker.events.limit = limits.metadata_bytes
            else:
                worker = _create_worker(uri, host, limits)
        except TransportError as error:
            raise ConnectError(f"{failure}: {error.message}") from None
        except (OSError, ValueError) as error:
            raise ConnectError(f"{failure}: {getattr(error, 'strerror', None) or error}") from None
        try:
            if idle is None:
                status, created = endpoint.connect(worker, sockaddr)
                if status == OK:
                    status = _wait_for_connection(worker, created, options.timeout)
                if status == IN_PROGRESS:
                    raise ConnectError(f"{failure}: no answer within {options.timeout:g} s")
                if status != OK:
                    raise ConnectError(f"{failure}: {describe(status)}")
            link = Link(
                worker,
                created,
                peer=addresses.format_address(uri.host, port),
                is_local=addresses.is_local(host),
                spin_seconds=parameters.busy_poll,
                is_reused=idle is not None,
            )
            device = _find_device(worker, options.allocator)
            body = parameters.body or ("packed" if device is not None else None)
            tags = _remote_tags(uri, body, endpoint.list_lanes(created))
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


def _create_worker(uri: DataUri, host: str, limits: Limits) -> Worker:
    """Return a worker for a new connection. If descriptors are scarce, idle connections end."""
    # A server with this package's settings has a remote_handle.
    plain, loopback = uri.remote_handle is None, addresses.is_loopback(host)
    try:
        return Worker(limits.metadata_bytes, plain=plain, loopback=loopback)
    except TransportError:
        if not IDLE_LINKS.close():
            raise
    return Worker(limits.metadata_bytes, plain=plain, loopback=loopback)


def _find_device(worker: Worker, allocator: Allocator) -> DeviceAllocator | None:
    """Return what supplies the memory of a device, if bodies go there and the library knows it.

    They are then requested packed: the library chooses how to read them remotely.
    """
    if not isinstance(allocator, StagingAllocator):
        return None
    device = allocator.device
    return device if device.type_code in list_device_types(worker.context) else None


def _remote_tags(uri: DataUri, body: str | None, lanes: list[str]) -> RemoteTags | None:
    """Return the tags by which to request remote bodies, or None to request packed ones.

    Raises
    ------
    UriError
        If the URI requires remote bodies that the server does not offer.
    ConnectError
        If the URI requires remote bodies and no lane can read the server's memory.
    """
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
