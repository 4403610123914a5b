"""A channel over a connected socket with TLS between: the same frames, encrypted."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

from ..errors import ConnectionLostError, NotAPeerError
from ..protocol.frames import Incoming
from ..protocol.limits import Limits
from .base import Capabilities
from .framing import PREFACE
from .refusals import refusal
from .regions import FileRegion
from .sockets import RECEIVE_MOST, TURN_BYTES, SocketChannel

_WRITE_BYTES = 256 << 10
"""How much is encrypted before it is sent: what a connection holds of ciphertext, about."""
_RECORD_BYTES = 16 << 10
_RETRY_SECONDS = 0.01
_HANDSHAKE, _ALERT = 22, 21
_PROTOCOL_VERSION = b"\x15\x03\x03\x00\x02\x02\x46"
"""The alert that tells a client that it should have begun with TLS."""


class TlsChannel(SocketChannel):
    """One end of a connection with TLS.

    OpenSSL works on memory here, and this class moves what comes out of it: so a wait never
    happens inside OpenSSL, and one descriptor's readability and writability say all there is.
    The handshake takes place in `receive_some` and `send_some`, a piece at a time.

    Parameters
    ----------
    sock : socket.socket
        Connected. The channel owns it from here on and makes it non-blocking.
    limits : Limits
        Bounds on what is received.
    context : ssl.SSLContext
        Certificates and versions.
    server : bool
        Which end this is.
    server_name : str, optional
        For a client: what the server's certificate has to be for.
    peer : str
        The other end, for logs and errors.
    is_local : bool
        Whether the other end is on this host.
    staging : int
        The size of the receiving staging area in bytes, and of that for ciphertext.
    """

    capabilities = Capabilities()

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
    ) -> None:
        super().__init__(sock, limits, server=server, peer=peer, is_local=is_local, staging=staging)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server, server_hostname=server_name
        )
        self._ciphertext = memoryview(bytearray(staging))
        self._unsent = memoryview(b"")
        self._file_bytes: memoryview | None = None
        self._lock = threading.RLock()  # OpenSSL takes no two threads in one connection
        self._begun = False
        self._established = False

    @property
    def established(self) -> bool:
        """Whether the handshake is done, on this end."""
        return self._established

    @property
    def has_unsent(self) -> bool:
        """Whether ciphertext waits for room in the socket."""
        return bool(self._unsent.nbytes or self._outgoing.pending)

    def shake_hands(self) -> None:
        """Go on with the handshake, as far as it goes without waiting.

        Raises
        ------
        BlockingIOError
            If it has to wait: for `fileno` to be readable or, if there `has_unsent`, writable.
        TransportError
            If it fails.
        """
        try:
            with self._lock:
                while not self._established:
                    try:
                        self._tls.do_handshake()
                    except ssl.SSLWantReadError:
                        self._flush()
                        if not self._pull():
                            raise self._ended() from None
                    else:
                        self._established = True
                self._flush()
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._lost(error) from None

    def send_some(self) -> bool:
        """Send what was queued, as far as it goes; tell whether all of it went."""
        with self._lock:
            try:
                self.shake_hands()
                turn = self.bytes_sent + TURN_BYTES
                self._flush()
                while self._parts:
                    if self.bytes_sent >= turn:
                        return False
                    self._encrypt()
                    self._flush()
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._refused_meanwhile() or self._lost(error) from None
        return True

    @property
    def send_waits_readable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the handshake waits for the peer, before anything can be sent."""
        return not self._established and not self.has_unsent

    def receive_some(self) -> list[Incoming]:
        """Return what has arrived; an empty list means: wait until it is readable."""
        with self._lock:
            return super().receive_some()

    def _await_rest(self) -> None:
        """Be woken for whatever comes: how much ciphertext is still due nobody can tell."""

    def _receive_into(self, targets: list[memoryview]) -> int:
        self.wake_at = None
        if not self._established:
            try:
                self.shake_hands()
            except BlockingIOError:
                if self.has_unsent:  # the driver waits for the other direction only
                    self.wake_at = time.monotonic() + _RETRY_SECONDS
                raise
        total = 0
        try:
            for view in targets:
                rest = view
                while rest.nbytes and total < RECEIVE_MOST:
                    count = self._read(rest)
                    if not count:
                        return total
                    total += count
                    rest = rest[count:]
                if rest.nbytes:
                    break
        except BlockingIOError:
            if not total:
                raise
        finally:
            if self._outgoing.pending:  # the peer asked for new keys, or made a mistake
                with contextlib.suppress(OSError):
                    self._flush()
        return total

    def _read(self, view: memoryview) -> int:
        """Decrypt into `view`; return how much, which is 0 at the end of the stream."""
        while True:
            try:
                return self._tls.read(view.nbytes, view)  # pyright: ignore[reportReturnType]
            except ssl.SSLWantReadError:
                self._pull()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0  # how it ended does not count: the protocol proves its own end

    def _pull(self) -> bool:
        """Take ciphertext from the socket; tell whether there was any, or the end came."""
        count = self._socket.recv_into(self._ciphertext)
        if not count:
            self._incoming.write_eof()
            return False
        if not self._begun:
            self._begun = True
            self._check_beginning(bytes(self._ciphertext[: min(count, 32)]))
        self.bytes_received += count
        self._incoming.write(self._ciphertext[:count])
        return True

    def _check_beginning(self, data: bytes) -> None:
        if data[0] in (_HANDSHAKE, _ALERT):
            return
        if not self._server:
            raise NotAPeerError(f"{self.peer} does not speak TLS: it answered {data!r}")
        if data.startswith(PREFACE[:7]):
            with contextlib.suppress(OSError):
                self._socket.send(_PROTOCOL_VERSION, socket.MSG_NOSIGNAL)
            raise NotAPeerError(f"{self.peer} speaks plain tcp; its URI has to begin with tcp+tls")
        raise NotAPeerError(f"{self.peer} does not speak TLS")

    def _encrypt(self) -> None:
        """Encrypt some of what is queued: about as much as one call of the socket takes."""
        parts = self._parts
        room = _WRITE_BYTES
        while parts and room > 0:
            part = parts[0]
            if type(part) is FileRegion:
                room -= self._write(self._read_region(part))
                if not part.nbytes:
                    parts.popleft()
            elif part.nbytes < _RECORD_BYTES:
                room -= self._write(self._small_parts())
            else:
                piece = part[:room]
                room -= self._write(piece)
                if piece.nbytes < part.nbytes:
                    parts[0] = part[piece.nbytes :]
                else:
                    parts.popleft()

    def _small_parts(self) -> bytes:
        """Take small parts that fit one record together."""
        parts = self._parts
        small: list[memoryview] = []
        size = 0
        while parts and type(parts[0]) is not FileRegion:
            size += parts[0].nbytes
            if small and size > _RECORD_BYTES:
                break
            small.append(parts.popleft())
        return b"".join(small)

    def _read_region(self, region: FileRegion) -> memoryview:
        """Read the next stretch of a region into the memory that all regions share."""
        if self._file_bytes is None:
            self._file_bytes = memoryview(bytearray(_WRITE_BYTES))
        count = min(region.nbytes, self._file_bytes.nbytes)
        data = self._file_bytes[:count]
        FileRegion(region.file, region.offset, count).read_into(data)
        region.offset += count
        region.nbytes -= count
        return data

    def _write(self, data: bytes | memoryview) -> int:
        done = 0
        while done < len(data):
            done += self._tls.write(data[done:])
        return done

    def _flush(self) -> None:
        """Send ciphertext until there is none; raise BlockingIOError if the socket is full."""
        while True:
            if not self._unsent.nbytes:
                if not self._outgoing.pending:
                    return
                self._unsent = memoryview(self._outgoing.read())
            sent = self._socket.send(self._unsent, socket.MSG_NOSIGNAL)
            self.bytes_sent += sent
            self._unsent = self._unsent[sent:]

    def close(self) -> None:
        """Close, and say so; what the kernel has taken still reaches the peer."""
        with self._lock:
            if not self._closed and self._established:
                with contextlib.suppress(OSError):  # that the peer does not answer is one
                    self._tls.unwrap()
                with contextlib.suppress(OSError):
                    self._flush()
            super().close()

    def _refused_meanwhile(self) -> Exception | None:
        """Return why the peer closed, if it said so before."""
        if self.preface_received or self._server:
            return None
        try:
            while self._pull():
                self._tls.read(1)
        except ssl.SSLWantReadError:
            return None
        except OSError as error:
            return self._lost(error) if isinstance(error, ssl.SSLError) else None
        return None

    def _ended(self) -> Exception:
        if self._established:
            return super()._ended()
        if self._server:
            return ConnectionLostError(f"{self.peer} left during the TLS handshake")
        return NotAPeerError(
            f"{self.peer} closed the connection instead of a TLS handshake; "
            "does it speak plain tcp://?"
        )

    def _lost(self, error: OSError) -> Exception:
        if isinstance(error, ssl.SSLError):
            with contextlib.suppress(OSError):
                self._flush()  # the alert that tells the peer
            return refusal(
                error,
                self.peer,
                server=self._server,
                established=self._established,
                proven=self.preface_received,
            )
        if not self._established and not self._closed and not self._server:
            return self._ended()
        return super()._lost(error)
