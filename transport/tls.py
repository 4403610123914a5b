"""The scheme ``tcp+tls``: the frames of ``tcp`` over TLS 1.3.

Errors of OpenSSL become those of splitarrow, which state what either side did.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

from ..errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    NotAPeerError,
    SplitArrowError,
    TransportError,
)
from ..protocol.frames import IncomingFrame
from ..protocol.limits import Limits
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator
from ..protocol.uri import TCP_PORT, DataUri
from .base import ConnectOptions, Diagnosis, ListenOptions, Traits
from .framing import PREFACE
from .memory.files import FileSpan
from .proxy_protocol import begins_header, refuse_header
from .socket_channel import MAX_RECEIVE_BYTES, TURN_BYTES, SocketChannel
from .tcp import (
    SERVER_STAGING,
    TcpListener,
    check_address,
    choose_staging,
    connect_socket,
    format_peer,
    is_local,
    keep_when_idle,
    make_key,
    take_idle,
)
from .tls_options import (
    TlsOptions,
    TlsServerOptions,
    explain_expiry,
    load_client_context,
    load_server_context,
)

SCHEME = "tcp+tls"
_WRITE_BYTES = 256 << 10
"""The bytes that are encrypted before they are sent, which bounds the ciphertext in memory."""
_RECORD_BYTES = 16 << 10
_RETRY_SECONDS = 0.01
_HANDSHAKE, _ALERT = 22, 21
_PROTOCOL_VERSION = b"\x15\x03\x03\x00\x02\x02\x46"
"""The alert for a client that does not begin with TLS."""
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate",
    "UNKNOWN_CA": "it does not trust the certificate authority of our certificate",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "CERTIFICATE_REVOKED": "our certificate was revoked",
    "PROTOCOL_VERSION": "it does not support TLS 1.3",
    "HANDSHAKE_FAILURE": "it has no cipher in common with us",
    "ACCESS_DENIED": "it denies access",
}
"""The meanings of a peer's alerts, by the last words of their names in OpenSSL."""
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_NOT_TRUSTED = "is not trusted"
_TOO_OLD = ("UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION", "VERSION_TOO_LOW")


def map_ssl_error(
    error: ssl.SSLError, peer: str, *, server: bool, established: bool, preface_received: bool
) -> TransportError:
    """Return the error that corresponds to an error of OpenSSL.

    With TLS 1.3, a server can refuse a client's certificate after the client has finished the
    handshake, but not after its preface.
    """
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = error.verify_message.rstrip(".")
        return ConnectError(f"the certificate of {peer} {_NOT_TRUSTED}: {problem}")
    if server and reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ConnectError(f"{peer} sent no client certificate; this server requires one")
    if not preface_received and "ALERT" in reason:
        meaning = next((text for end, text in _ALERTS.items() if reason.endswith(end)), reason)
        return ConnectError(f"{peer} refuses the TLS connection: {meaning}")
    if not established and reason in _TOO_OLD:
        return ConnectError(f"{peer} does not support TLS 1.3")
    if not established and reason in _NO_TLS:
        return NotAPeerError(f"{peer} does not use TLS")
    problem = reason.replace("_", " ").lower() or str(error)
    if established:
        return ConnectionLostError(f"the TLS connection with {peer} broke: {problem}")
    return ConnectError(f"the TLS handshake with {peer} failed: {problem}")


class TlsChannel(SocketChannel):
    """One end of a connection with TLS.

    OpenSSL works on memory buffers, and this class moves their contents to and from the socket.
    OpenSSL therefore never waits, and callers wait for the socket's descriptor. `receive_some` and
    `send_some` continue the handshake step by step.

    The channel owns the socket. A client needs the `server_name` that the server's certificate must
    have. The buffers for frames and for ciphertext have `staging` bytes each.
    """

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        context: ssl.SSLContext,
        *,
        server: bool,
        peer: str,
        is_local: bool,
        server_name: str | None = None,
        staging: int = 256 << 10,
        allocator: Allocator = DEFAULT_ALLOCATOR,
    ) -> None:
        super().__init__(
            sock,
            limits,
            server=server,
            peer=peer,
            is_local=is_local,
            staging=staging,
            allocator=allocator,
        )
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server, server_hostname=server_name
        )
        self._ciphertext = memoryview(bytearray(staging))
        self._unsent = memoryview(b"")
        self._file_bytes: memoryview | None = None
        self._lock = threading.RLock()  # only one thread at a time may use a connection
        self._has_received = False
        self._established = False

    @property
    def established(self) -> bool:
        """Whether this end has finished the handshake."""
        return self._established

    @property
    def has_unsent_bytes(self) -> bool:
        """Whether ciphertext waits for room in the socket."""
        return bool(self._unsent.nbytes or self._outgoing.pending)

    def shake_hands(self) -> None:
        """Continue the handshake until it is finished.

        Raises `BlockingIOError` if it has to wait until `fileno` is readable or, with
        `has_unsent_bytes`, writable. Raises `TransportError` if it fails.
        """
        try:
            with self._lock:
                while not self._established:
                    try:
                        self._tls.do_handshake()
                    except ssl.SSLWantReadError:
                        self._flush()
                        if not self._receive_ciphertext():
                            raise self._explain_end() from None
                    else:
                        self._established = True
                self._flush()
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._explain_loss(error) from None

    def send_some(self) -> bool:
        """Send as much of the queue as possible; see `Channel.send_some`."""
        with self._lock:
            try:
                self.shake_hands()
                turn = self.bytes_sent + TURN_BYTES
                while self._parts:
                    if self.bytes_sent >= turn:
                        return False
                    self._encrypt()
                    self._flush()
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._find_refusal() or self._explain_loss(error) from None
        return True

    @property
    def send_waits_readable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether sending waits for the peer's part of the handshake."""
        return not self._established and not self.has_unsent_bytes

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived; see `Channel.receive_some`."""
        with self._lock:
            return super().receive_some()

    def _set_low_water(self) -> None:
        """Wake up for every byte: the size of the remaining ciphertext is unknown."""

    def _receive_into(self, targets: list[memoryview]) -> int:
        self.wake_at = None
        if not self._established:
            try:
                self.shake_hands()
            except BlockingIOError:
                if self.has_unsent_bytes:  # the caller waits only until the socket is readable
                    self.wake_at = time.monotonic() + _RETRY_SECONDS
                raise
        total = 0
        try:
            for view in targets:
                rest = view
                while rest.nbytes and total < MAX_RECEIVE_BYTES:
                    count = self._decrypt_into(rest)
                    if not count:
                        return total
                    total += count
                    rest = rest[count:]
        except BlockingIOError:
            if not total:
                raise
        finally:
            if self._outgoing.pending:  # a key update, or an alert
                with contextlib.suppress(OSError):
                    self._flush()
        return total

    def _decrypt_into(self, view: memoryview) -> int:
        """Decrypt into `view` and return the number of bytes: 0 at the end of the connection."""
        while True:
            try:
                return self._tls.read(view.nbytes, view)  # pyright: ignore[reportReturnType]
            except ssl.SSLWantReadError:
                self._receive_ciphertext()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0  # without an alert too, because the protocol proves each stream's end

    def _receive_ciphertext(self) -> bool:
        """Receive ciphertext; return False at the end of the connection."""
        count = self._socket.recv_into(self._ciphertext)
        if not count:
            self._incoming.write_eof()
            return False
        if not self._has_received:
            self._has_received = True
            self._check_first_bytes(bytes(self._ciphertext[: min(count, 32)]))
        self.bytes_received += count
        self._incoming.write(self._ciphertext[:count])
        return True

    def _check_first_bytes(self, data: bytes) -> None:
        if data[0] in (_HANDSHAKE, _ALERT):
            return
        if not self._server:
            raise NotAPeerError(f"{self.peer} does not use TLS: it answered {data!r}")
        if begins_header(data):
            raise refuse_header(self.peer)
        if data.startswith(PREFACE[:7]):
            with contextlib.suppress(OSError):
                self._socket.send(_PROTOCOL_VERSION, socket.MSG_NOSIGNAL)
            raise NotAPeerError(f"{self.peer} uses plain tcp; its URI must begin with tcp+tls")
        raise NotAPeerError(f"{self.peer} does not use TLS")

    def _encrypt(self) -> None:
        """Move up to `_WRITE_BYTES` from the front of the queue into OpenSSL's buffer."""
        parts = self._parts
        room = _WRITE_BYTES
        while parts and room > 0:
            part = parts[0]
            if type(part) is FileSpan:
                room -= self._encrypt_bytes(self._read_span(part))
                if not part.nbytes:
                    parts.popleft()
            elif part.nbytes < _RECORD_BYTES:
                room -= self._encrypt_bytes(self._take_small_parts())
            else:
                piece = part[:room]
                room -= self._encrypt_bytes(piece)
                if piece.nbytes < part.nbytes:
                    parts[0] = part[piece.nbytes :]
                else:
                    parts.popleft()

    def _take_small_parts(self) -> bytes:
        """Remove and return small parts that fit into one record together."""
        parts = self._parts
        small: list[memoryview] = []
        size = 0
        while parts and type(parts[0]) is not FileSpan:
            size += parts[0].nbytes
            if small and size > _RECORD_BYTES:
                break
            small.append(parts.popleft())
        return b"".join(small)

    def _read_span(self, span: FileSpan) -> memoryview:
        """Read the next bytes of a span into a buffer that all spans share."""
        if self._file_bytes is None:
            self._file_bytes = memoryview(bytearray(_WRITE_BYTES))
        count = min(span.nbytes, self._file_bytes.nbytes)
        data = self._file_bytes[:count]
        FileSpan(span.file, span.offset, count).read_into(data)
        span.offset += count
        span.nbytes -= count
        return data

    def _encrypt_bytes(self, data: bytes | memoryview) -> int:
        """Encrypt all of `data` and return its size."""
        done = 0
        while done < len(data):
            done += self._tls.write(data[done:])
        return done

    def _flush(self) -> None:
        """Send all ciphertext; raise BlockingIOError if the socket is full."""
        while True:
            if not self._unsent.nbytes:
                if not self._outgoing.pending:
                    return
                self._unsent = memoryview(self._outgoing.read())
            sent = self._socket.send(self._unsent, socket.MSG_NOSIGNAL)
            self.bytes_sent += sent
            self._unsent = self._unsent[sent:]

    def close(self) -> None:
        """Close with a TLS alert; see `Channel.close`."""
        with self._lock:
            super().close()

    def _send_preface(self) -> None:
        if self._established:
            super()._send_preface()

    def _send_farewell(self) -> None:
        if self._established:
            with contextlib.suppress(OSError):  # the peer's alert has not arrived yet
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self._flush()

    def _find_refusal(self) -> Exception | None:
        """Return the error for an alert that the peer sent before it closed, or None."""
        if self.preface_received or self._server:
            return None
        try:
            while self._receive_ciphertext():
                self._tls.read(1)
        except ssl.SSLWantReadError:
            return None
        except OSError as error:
            return self._explain_loss(error) if isinstance(error, ssl.SSLError) else None
        return None

    def _explain_end(self) -> TransportError:
        if self._established:
            return super()._explain_end()
        if self._server:
            return ConnectionLostError(
                f"{self.peer} closed the connection during the TLS handshake"
            )
        return NotAPeerError(
            f"{self.peer} closed the connection during the TLS handshake; does it use plain tcp://?"
        )

    def _explain_loss(self, error: OSError) -> TransportError:
        if isinstance(error, ssl.SSLError):
            with contextlib.suppress(OSError):
                self._flush()  # the alert that informs the peer
            return map_ssl_error(
                error,
                self.peer,
                server=self._server,
                established=self._established,
                preface_received=self.preface_received,
            )
        if not self._established and not self._closed and not self._server:
            return self._explain_end()
        return super()._explain_loss(error)


class TlsListener(TcpListener):
    """A bound TCP port whose clients use TLS.

    New connections use files that have changed. Raises `ConfigError` if a file is invalid, or the
    address cannot be bound.
    """

    def __init__(
        self,
        uri: DataUri,
        options: ListenOptions,
        tls: TlsServerOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contexts = load_server_context(tls, clock=clock)
        super().__init__(uri, options)

    def _make_channel(self, sock: socket.socket, peer: str, *, is_local: bool) -> TlsChannel:
        return TlsChannel(
            sock,
            self._limits,
            self._contexts.current(),
            server=True,
            peer=peer,
            is_local=is_local,
            staging=SERVER_STAGING,
        )


class TlsTransport:
    """The scheme ``tcp+tls``."""

    scheme = SCHEME
    traits = Traits(default_port=TCP_PORT, encrypted=True, shares_socket=True, location_rank=20)

    def listen(self, uri: DataUri, options: ListenOptions) -> TlsListener:
        """Bind an address; see `Transport.listen` and `TlsListener`."""
        check_address(uri)
        tls = options.tls or TlsServerOptions.from_environment()
        if tls is None:
            raise ConfigError(f"{uri.address} needs a certificate: set tls_cert and tls_key")
        return TlsListener(uri, options, tls)

    def connect(self, uri: DataUri, options: ConnectOptions) -> TlsChannel:
        """Connect, including the handshake; see `Transport.connect`.

        Raises `ConnectError` if the connection cannot be made, or one end refuses the other. Raises
        `NotAPeerError` if the server does not use TLS. Raises `UsageError` if a file of the options
        is invalid.
        """
        deadline = time.monotonic() + options.timeout
        tls = options.tls or TlsOptions.from_environment()
        context, server_name = load_client_context(tls).current(), _find_server_name(uri, tls)
        key = make_key(uri, context, server_name)
        kept = take_idle(key, uri, options)
        if kept is not None:
            assert isinstance(kept, TlsChannel)
            return kept
        sock = connect_socket(uri, options.timeout)
        try:
            channel = TlsChannel(
                sock,
                options.limits,
                context,
                server=False,
                server_name=server_name,
                peer=format_peer(sock.getpeername()),
                is_local=is_local(sock),
                staging=choose_staging(uri),
                allocator=options.allocator,
            )
        except BaseException as error:
            sock.close()
            # A UsageError is a ValueError that already names the problem.
            if isinstance(error, SplitArrowError) or not isinstance(error, (OSError, ValueError)):
                raise
            # The peer is gone, or the host is not a valid server name.
            raise ConnectError(f"cannot connect to {uri.address}: {error}") from None
        try:
            _shake_hands(channel, deadline)
        except TimeoutError:
            channel.close()
            raise ConnectError(
                f"cannot connect to {uri.address}: no TLS handshake within {options.timeout:g} s"
            ) from None
        except TransportError as error:
            channel.close()
            reason = error.message
            if _NOT_TRUSTED in reason:
                left = max(0.1, deadline - time.monotonic())
                reason = explain_expiry(uri.host, uri.port or TCP_PORT, left) or reason
            raise type(error)(f"cannot connect to {uri.address}: {reason}") from None
        except BaseException:
            channel.close()
            raise
        keep_when_idle(channel, key, options)
        return channel

    def diagnose(self) -> Diagnosis:
        """Return the state of the transport, which works on every host."""
        return Diagnosis()


def _find_server_name(uri: DataUri, options: TlsOptions) -> str:
    parameter = uri.parameter("server_name")
    return options.server_name or parameter or uri.host.partition("%")[0]


def _shake_hands(channel: TlsChannel, deadline: float) -> None:
    poll = select.poll()
    while True:
        try:
            channel.shake_hands()
            return
        except BlockingIOError:
            pass
        poll.register(
            channel.fileno(), select.POLLOUT if channel.has_unsent_bytes else select.POLLIN
        )
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise TimeoutError


TRANSPORT = TlsTransport()
