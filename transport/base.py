"""The interface of a transport.

A transport moves untagged and tagged frames between two processes. There is one `Transport` for
each URI scheme. Its channels are non-blocking: they send or return what they can at once and name
the file descriptor to wait for. Two thin drivers, `blocking` and `aio`, do the waiting for all
schemes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from socket import socket
from typing import Protocol

from ..protocol.frames import IncomingFrame, OutgoingFrame
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator
from ..protocol.tags import BodyType
from ..protocol.uri import DataUri
from .memory.files import SourceFile
from .memory.mapped_region import MappedRegion
from .proxy_protocol import Network
from .tls_options import TlsOptions, TlsServerOptions, check_tls

FileMapper = Callable[[SourceFile], MappedRegion | None]
"""Returns the mapping of a file in this process, or None if the file cannot be mapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a scheme, which servers and clients plan with."""

    default_port: int | None = None
    """The port of URIs that name none. None if the scheme has no ports."""
    local_only: bool = False
    """Whether only processes on the same host can connect."""
    encrypted: bool = False
    """Whether connections are encrypted."""
    shares_socket: bool = False
    """Whether several processes can accept connections on one socket (`ListenOptions.socket`)."""
    leases_memory: bool = False
    """Whether a server may lease its memory to readers. Its URIs then need ``free_data``."""
    descriptors: int = 3
    """The descriptors that a connection takes on the server while it streams a file."""
    location_rank: int | None = None
    """The position of the scheme among the locations of a Flight endpoint, lowest first. None
    keeps its URIs out of endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Properties of one connection."""

    offset_bodies: bool = False
    """Whether bodies of type 1 may travel on it."""
    remote_reads: bool = False
    """Whether the reader's channel copies bodies of type 1 into its own memory and frees their
    leases. Otherwise the reader maps the memory and frees the leases itself."""
    is_reused: bool = False
    """Whether the connection has carried a stream before. The peer may have left since then."""
    devices: frozenset[int] = frozenset()
    """The types of devices, as in DLPack, whose memory this end can use.

    A server sends from it: `DeviceSpan`. A reader receives into it: `DeviceBody`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Options for listening. A transport ignores those that do not concern it."""

    limits: Limits = DEFAULT_LIMITS
    """Bounds on the frames of clients."""
    socket: socket | None = None
    """A socket that listens already, instead of the URI's address. See `Traits.shares_socket`."""
    users: frozenset[int] = frozenset()
    """Ids of users that may connect to a local socket, besides this process's user and root."""
    tls: TlsServerOptions | None = None
    """The certificate of an encrypted listener. None reads it from the environment."""
    handshake_seconds: float | None = None
    """The time that a client has until the listener can accept it, where a library connects it or
    a PROXY header precedes it. None disables the limit."""
    max_waiting: int | None = None
    """The number of such clients. None disables the limit."""
    proxies: tuple[Network, ...] = ()
    """The networks of proxies whose PROXY headers are believed."""
    map_file: FileMapper | None = None
    """Maps the files that bodies are sent from. Without it, files are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """Options for connecting. A transport ignores those that do not concern it."""

    limits: Limits = DEFAULT_LIMITS
    """Bounds on the frames of the server."""
    timeout: float = 10.0
    """The longest time to wait for the connection, in seconds."""
    allocator: Allocator = DEFAULT_ALLOCATOR
    """Supplies the memory that bodies are received into."""
    tls: TlsOptions | None = None
    """Certificates for encrypted connections. None reads them from the environment."""
    reuse: bool = False
    """Whether the connection may be one that has carried a stream, and may be kept for another.

    It is kept only if it is closed, not aborted, after the proven end of its only stream."""

    def __post_init__(self) -> None:
        check_tls(self.tls)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of a transport on this host, for ``splitarrow doctor``."""

    problem: str | None = None
    """The reason why the transport cannot be used. None if it can."""
    detail: str | None = None
    """The versions and devices in use."""
    hints: Sequence[str] | None = None
    """Advice for better performance, one sentence each."""


def list_request_tags(uri: DataUri, body_type: BodyType = BodyType.PACKED) -> dict[int, BodyType]:
    """Return the request tags of a listener whose only such tag is its ``want_data``."""
    return {} if uri.want_data is None else {uri.want_data: body_type}


class Channel(Protocol):
    """One end of a connection.

    At most one thread or task may send, and one receive, at a time. If a method raises a
    `TransportError` or a `ProtocolError`, the channel must be aborted.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Properties of this connection."""
        ...

    @property
    def peer(self) -> str:
        """The address of the other end, for logs and errors."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the other end is on this host and its data may be trusted."""
        ...

    @property
    def user(self) -> int | None:
        """The id of the user at the other end, or None if the transport does not know it."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why the server refuses every request of the user at the other end; None if it does not.

        Always None at the reader's end.
        """
        ...

    @property
    def lanes(self) -> Sequence[str]:
        """The devices that carry the connection, where the transport chooses among several."""
        ...

    @property
    def bytes_sent(self) -> int:
        """The number of bytes handed to the kernel or the peer."""
        ...

    @property
    def bytes_received(self) -> int:
        """The number of bytes received."""
        ...

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes received so far end with a complete frame."""
        ...

    @property
    def wake_at(self) -> float | None:
        """The time (`time.monotonic`) to call `receive_some` at even without an event, or None."""
        ...

    @property
    def delays_writer(self) -> bool:
        """Whether a process waits to write to a file that the peer may not have read yet.

        The server gives the peer a little time, and then aborts the connection.
        """
        ...

    @property
    def unread_bytes(self) -> int:
        """The memory of sent data that the peer has not read yet, in bytes.

        It is 0 where the transport does not know it.
        """
        ...

    @property
    def peer_silence(self) -> float:
        """The seconds for which the peer's host has not acknowledged data or probes.

        It is 0 where the host answers, nothing is sent to it, or the transport does not know it.
        """
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when data arrives."""
        ...

    def send_fileno(self) -> int:
        """Return the descriptor that becomes ready when there is room to send."""
        ...

    @property
    def send_waits_readable(self) -> bool:
        """Whether `send_fileno` becomes readable, not writable, when there is room to send."""
        ...

    def queue(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames. Their buffers must not change until `send_some` returns True."""
        ...

    def send_some(self) -> bool:
        """Send as much of the queue as possible and return whether the queue is empty.

        If it is not, wait for `send_fileno` and call again.

        Raises `ConnectionLostError` if the peer is gone.
        """
        ...

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived. If there are none, wait for `fileno`.

        Raises `ConnectionLostError` if the peer is gone. `at_boundary` is False if it left within a
        frame. Raises `NotAPeerError` if the peer does not speak the protocol of this transport.
        Raises `ProtocolError` if the peer violates that protocol.
        """
        ...

    def interrupt(self) -> None:
        """End a wait for this channel, from any thread. The channel is unusable afterwards."""
        ...

    def close(self) -> None:
        """Close. Data that the kernel or the peer has accepted is still delivered. Idempotent."""
        ...

    def abort(self) -> None:
        """Close at once, so that the peer sees an error. Idempotent."""
        ...


class Listener(Protocol):
    """An address that accepts connections."""

    @property
    def uri(self) -> DataUri:
        """The bound address, with its actual port or path."""
        ...

    @property
    def request_tags(self) -> Mapping[int, BodyType]:
        """The tags of data requests, each with the type of the bodies that it requests."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a client connects."""
        ...

    def accept(self) -> Channel | None:
        """Return the channel of the next client, or None if no client is waiting.

        Raises `OSError` if the process is out of descriptors or memory.
        """
        ...

    def reject(self) -> bool:
        """Disconnect the next client at once, and return whether one was waiting.

        Raises `OSError` as for `accept`.
        """
        ...

    def close(self) -> None:
        """Stop listening. Idempotent."""
        ...


class Transport(Protocol):
    """The transport of one URI scheme. `registry` finds it by the scheme."""

    @property
    def scheme(self) -> str:
        """The scheme, in lower case."""
        ...

    @property
    def traits(self) -> Traits:
        """Properties of the scheme."""
        ...

    def listen(self, uri: DataUri, options: ListenOptions) -> Listener:
        """Bind an address. A URI without a host binds an address that only this host reaches.

        Raises `ConfigError` if the address cannot be bound. Raises `UriError` if the URI does not
        suit the scheme.
        """
        ...

    def connect(self, uri: DataUri, options: ConnectOptions) -> Channel:
        """Connect to an address.

        Raises `ConnectError` if the connection cannot be made. Raises `UriError` if the URI does
        not suit the scheme.
        """
        ...

    def diagnose(self) -> Diagnosis:
        """Return the state of the transport on this host."""
        ...
