"""The transport object of the scheme ``ucx``."""

from __future__ import annotations

import select
import threading
import time
from typing import Any

from ...errors import ConnectError, SplitArrowError, TransportError, UriError
from ...protocol.limits import Limits
from ...protocol.uri import DataUri
from . import addresses, endpoint
from .channel import CAPABILITIES, Remote, UcxChannel
from .hints import hints
from .lanes import offer_remote_reads
from .library import (
    IN_PROGRESS,
    OK,
    describe,
    ffi,
    status_of,
    ucp,
    version,
)
from .listener import DEFAULT_PORT, HANDLE_BYTES, UcxListener, spin_of
from .sending import Mapped
from .worker import Worker


class UcxTransport:
    """The scheme ``ucx``.

    Parameters
    ----------
    mapped : callable, optional
        Returns where a file lies that a server sends from; see `UcxListener`.
    """

    scheme = "ucx"
    capabilities = CAPABILITIES

    def __init__(self, mapped: Mapped | None = None) -> None:
        self._mapped = mapped

    def detail(self) -> str:
        """Return the version of UCX, and the lanes (transport/device) between processes here."""
        try:
            found = self._lanes_within()
        except SplitArrowError as error:
            return f"UCX {version()}: {error.message}"
        return f"UCX {version()}; lanes on this host: {', '.join(found)}"

    def hints(self) -> list[str]:
        """Return why faster lanes are not used between processes here, a sentence each."""
        try:
            return hints(self._lanes_within())
        except SplitArrowError as error:
            return [error.message]

    def _lanes_within(self) -> list[str]:
        """Make a connection with this process itself, and look at it."""
        uri = DataUri(self.scheme, "127.0.0.1", 0, want_data=1 << 40)
        listener = UcxListener(uri, Limits(), lambda file: None)
        found = threading.Event()
        thread = threading.Thread(target=_answer, args=(listener, found))
        thread.start()
        try:
            channel = self.connect(listener.uri, Limits(), 5)
            try:
                return channel.lanes
            finally:
                channel.abort()
        finally:
            found.set()
            thread.join()
            listener.close()

    def listen(self, uri: DataUri, limits: Limits) -> UcxListener:
        """Bind an address; see `Transport.listen` and `UcxListener`."""
        if uri.path.strip("/"):
            raise UriError(f"{uri.redacted()}: a {uri.scheme} address has no path")
        return UcxListener(uri, limits, self._mapped)

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> UcxChannel:
        """Connect; see `Transport.connect`."""
        if not uri.host:
            raise UriError(f"{uri.redacted()}: a {uri.scheme} address needs a host")
        # A server with the same settings says so by a remote_handle.
        return _connect(uri, limits, timeout, plain=uri.remote_handle is None)


def _connect(uri: DataUri, limits: Limits, timeout: float, *, plain: bool) -> UcxChannel:
    failed = f"cannot connect to {uri.address}"
    port = DEFAULT_PORT if uri.port is None else uri.port
    spin = spin_of(uri)
    try:
        host, _ = addresses.resolve(uri.host, port)
        sockaddr = addresses.pack(host, port)
        loopback = addresses.is_loopback(host)
        worker = Worker(limits.metadata_bytes, plain=plain, loopback=loopback)
    except TransportError as error:
        raise ConnectError(f"{failed}: {error.message}") from None
    except (OSError, ValueError) as error:
        raise ConnectError(f"{failed}: {getattr(error, 'strerror', None) or error}") from None
    made: Any = None
    try:
        status, made = endpoint.connect(worker, sockaddr)
        if status == OK:
            status = _established(worker, made, timeout)
        if status == IN_PROGRESS:
            raise ConnectError(f"{failed}: no answer within {timeout:g} s")
        if status != OK:
            raise ConnectError(f"{failed}: {describe(status)}")
        return UcxChannel(
            worker,
            made,
            limits,
            server=False,
            peer=addresses.shown(uri.host, port),
            is_local=addresses.is_local(host),
            remote=_remote(uri, endpoint.lanes(made)),
            spin=spin,
        )
    except BaseException as error:
        if made is not None:
            worker.close_endpoint(made)
        worker.destroy()
        if isinstance(error, OSError):
            raise ConnectError(f"{failed}: {error.strerror or error}") from None
        raise


def _remote(uri: DataUri, lanes: list[str]) -> Remote | None:
    """Return how to ask for bodies of type 1; None where they are not wanted.

    Raises
    ------
    UriError
        If the URI asks for them, and the server does not offer them.
    ConnectError
        If it does, and no lane can read the server's memory.
    """
    tag, free_data = uri.remote_tag, uri.free_data
    if not uri.stream.body or uri.body == "packed":
        return None
    if tag is None or free_data is None:
        if uri.body == "remote":
            raise UriError(
                f"{uri.redacted()}: body=remote needs a remote_handle and free_data, as a server "
                "gives them that offers its memory"
            )
        return None
    if len(uri.remote_handle or b"") != HANDLE_BYTES:
        raise UriError(
            f"{uri.redacted()}: the remote_handle of a ucx address has {HANDLE_BYTES} bytes"
        )
    if not offer_remote_reads(lanes):
        if uri.body == "remote":
            raise ConnectError(
                f"body=remote: no lane to {uri.address} reads remote memory; there are "
                f"{', '.join(lanes) or 'none'}"
            )
        return None
    return Remote(uri.require_want_data(), tag, free_data)


def _answer(listener: UcxListener, found: threading.Event) -> None:
    """Accept one connection, and keep it going until its lanes are found."""
    channel: UcxChannel | None = None
    try:
        while not found.wait(0.001):
            channel = channel or listener.accept()
            if channel is not None:
                channel.receive_some()
    except (OSError, SplitArrowError):
        pass  # the other end tells
    finally:
        if channel is not None:
            channel.abort()


def _established(worker: Worker, made: Any, timeout: float) -> int:
    """Wait for a connection; return why it failed, OK, or IN_PROGRESS when the time is over."""
    deadline = time.monotonic() + timeout
    request = ucp.ucp_ep_flush_nbx(made, ffi.new("ucp_request_param_t *"))
    status = status_of(request)
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
            left = deadline - time.monotonic()
            if status != IN_PROGRESS or left <= 0:
                return status
            if worker.arm():
                poll.poll(left * 1000)
    finally:
        ucp.ucp_request_free(request)


TRANSPORT = UcxTransport()
