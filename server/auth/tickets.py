"""Signed tickets: what one principal may read once, before a certain time.

`TicketKeys` are the keys that sign them. All workers of a server share the `ReplayCache` of used
tickets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import mmap
import os
import re
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.context import assert_spawning
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from ...errors import (
    ConfigError,
    DeniedError,
    ExhaustedError,
    InvalidRequestError,
    UnavailableError,
    UsageError,
)
from ...protocol.request import SIGNED_PREFIX, Request
from ...protocol.uri import Streams
from ...transport.credential_files import Reloadable, is_world_readable
from ..logs import get_logger
from ..shared_lock import SharedLock
from .principal import is_principal_name, unauthenticated

NONCE_BYTES = 16
"""The size of a nonce, in bytes."""
_SLOT = struct.Struct("<16sQQ")
"""The nonce of a ticket, its expiry in seconds, and the bits of the streams that were read."""
_BUCKET_SLOTS = 64
_BUCKET_BYTES = _BUCKET_SLOTS * _SLOT.size
_STREAM_BITS = {Streams.METADATA: 1, Streams.BODY: 2, Streams.BOTH: 3}


class ReplayCache:
    """Remembers used tickets until they expire.

    The table is an anonymous memory file. The kernel allocates only the pages that were written.
    A process that dies at any point leaves the table consistent. The table can be full a little
    before its `capacity`, when one of its buckets is. It never forgets a ticket that has not
    expired.

    Notes
    -----
    A cache pickles only for a worker process that is being started. Both processes then share it.
    """

    def __init__(self, capacity: int = 1 << 18, *, _descriptor: int | None = None) -> None:
        if capacity < 1:
            raise UsageError(f"capacity={capacity}: a replay cache needs at least 1")
        self._buckets = -(-capacity // _BUCKET_SLOTS)
        nbytes = self._buckets * _BUCKET_BYTES
        if _descriptor is None:
            _descriptor = os.memfd_create("splitarrow-tickets", os.MFD_CLOEXEC)
            os.ftruncate(_descriptor, nbytes)
        self._descriptor = _descriptor
        self._table = mmap.mmap(_descriptor, nbytes)
        self._lock = SharedLock(_descriptor)
        self._threads = threading.Lock()
        self._close = weakref.finalize(self, os.close, _descriptor)

    def add(self, nonce: bytes, stream: Streams, expires: int, now: float) -> bool:
        """Record the use of a ticket, and return whether this is its first use for the stream.

        The ticket is forgotten once it expires, in seconds on the clock of `now`. Raises
        `ExhaustedError` if the table is full, and `UnavailableError` after `close`, or while
        another process is stopped that changes the table.
        """
        bits = _STREAM_BITS[stream]
        bucket = int.from_bytes(nonce[:8], "little") % self._buckets
        with self._threads:
            if not self._close.alive:
                raise UnavailableError("the server is shutting down")
            with self._lock.take() as is_alone:
                if not is_alone:
                    raise UnavailableError(
                        "a process of the server is stopped while it records a ticket"
                    )
                return self._add(bucket * _BUCKET_BYTES, nonce, bits, expires, now)

    def _add(self, start: int, nonce: bytes, bits: int, expires: int, now: float) -> bool:
        bucket = self._table[start : start + _BUCKET_BYTES]
        free: int | None = None
        for offset in range(0, _BUCKET_BYTES, _SLOT.size):
            slot_nonce, slot_expires, used = _SLOT.unpack_from(bucket, offset)
            if slot_nonce == nonce and used and slot_expires > now:
                if used & bits:
                    return False
                _SLOT.pack_into(self._table, start + offset, nonce, slot_expires, used | bits)
                return True
            if free is None and slot_expires <= now:
                free = offset
            if not used:
                break  # slots are filled from the front and never emptied
        if free is None:
            raise ExhaustedError("too many tickets are in use; retry after some have expired")
        _SLOT.pack_into(self._table, start + free, nonce, expires, bits)
        return True

    def close(self) -> None:
        """Release the table. Idempotent."""
        with self._threads:
            if self._close.alive:
                self._table.close()
                self._close()

    def __repr__(self) -> str:
        return f"<ReplayCache {self._buckets * _BUCKET_SLOTS} tickets>"

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _unpickle_cache, (self._buckets * _BUCKET_SLOTS, DupFd(self._descriptor))


def _unpickle_cache(capacity: int, descriptor: Any) -> ReplayCache:
    return ReplayCache(capacity, _descriptor=descriptor.detach())


MIN_KEY_BYTES = 32
"""The shortest key, in bytes."""
_MAX_FILE_BYTES = 64 << 10
_MIN_DISTINCT_BYTES = 8
_MAKE_ONE = "make one with: openssl rand -hex 32"


class TicketKeys:
    """Signing keys of one server, or of several that accept each other's tickets.

    The first key signs. All keys verify. They come from a file, which is read again after a change
    (see `read_keys`), from the arguments, or there is one random key.

    Notes
    -----
    Keys pickle only as arguments of a ``multiprocessing.Process`` that is being started, so that
    all workers of a server sign and verify alike.
    """

    def __init__(
        self,
        keys: Sequence[bytes] | None = None,
        *,
        path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._file: Reloadable[tuple[bytes, ...]] | None = None
        self._keys: tuple[bytes, ...] = ()
        if path is not None:
            self._file = Reloadable(
                [path], lambda: read_keys(path), on_failure=_log_failed_reload, clock=clock
            )
        else:
            self._keys = (secrets.token_bytes(MIN_KEY_BYTES),) if keys is None else tuple(keys)
            if not self._keys:
                raise ConfigError("signing tickets needs at least one key")
            for key in self._keys:
                check_key(key, "a ticket key")

    def current(self) -> tuple[bytes, ...]:
        """Return the keys; the first one signs."""
        return self._keys if self._file is None else self._file.current()

    def __repr__(self) -> str:
        return f"<TicketKeys {self._path or 'of this process'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _unpickle_keys, (self._path, self._keys)


def _unpickle_keys(path: Path | None, keys: tuple[bytes, ...]) -> TicketKeys:
    return TicketKeys(keys) if path is None else TicketKeys(path=path)


def _log_failed_reload(reason: str) -> None:
    get_logger("auth").error("cannot reload the ticket keys; keeping the old ones", reason=reason)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys of a file.

    A binary file is one key. A text file has one key per line, in hex or base64; blank lines and
    lines that begin with ``#`` are ignored. A file that every user can read causes a warning.

    Raises `ConfigError` if the file cannot be read, or holds no valid key. The error never quotes
    the file.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"cannot read the ticket keys in {str(path)!r}: {reason}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has {len(data)} bytes; a file of ticket keys has at most {_MAX_FILE_BYTES}"
        )
    if is_world_readable(path):
        get_logger("auth").warning("every user can read the ticket keys", path=str(path))
    if not data.isascii() or not _is_text(data):
        check_key(data, str(path))
        return (data,)
    keys: list[bytes] = []
    for number, line in enumerate(data.decode("ascii").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            key = _decode_key(text)
        except ValueError:
            raise ConfigError(
                f"{path}, line {number}: a ticket key must be hex or base64"
            ) from None
        check_key(key, f"{path}, line {number}")
        keys.append(key)
    if not keys:
        raise ConfigError(f"{path} holds no ticket key; {_MAKE_ONE}")
    return tuple(keys)


def check_key(key: bytes, source: str) -> None:
    """Raise if a key is too short or has too few distinct bytes to be random.

    Raises `ConfigError`, which never quotes the key.
    """
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"{source}: the ticket key has {len(key)} bytes; it needs at least {MIN_KEY_BYTES}; "
            f"{_MAKE_ONE}"
        )
    if len(set(key)) < _MIN_DISTINCT_BYTES:
        raise ConfigError(f"{source}: the ticket key is not random; {_MAKE_ONE}")


def _is_text(data: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data)


def _decode_key(text: str) -> bytes:
    """Return the key of a line; raise ValueError if it is neither hex nor base64."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    padded = text.rstrip("=").replace("+", "-").replace("/", "_")
    padded += "=" * (-len(padded) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True)


TICKET_BYTES = 64 << 10
"""The largest ticket, in bytes, that readers and servers accept."""
_VERSION = re.compile(rb"sa([0-9]{1,4})\.")
_FORMAT = re.compile(rb"(sa1\.[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")
_NONCE_HEX = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}")
_PRINCIPAL, _EXPIRES, _NONCE = "p", "e", "n"
_MAX_EXPIRES = (1 << 63) - 1
_GET_ANOTHER = "get a new one from the control plane"


@dataclass(frozen=True, slots=True)
class TicketClaims:
    """The contents of a verified ticket."""

    request: Request
    """The data to read."""
    principal: str
    """The name of the principal that the ticket was issued to."""
    nonce: bytes = field(default=b"", repr=False)
    """Random bytes that identify a signed ticket; empty for an unsigned one."""
    expires: int = 0
    """The expiry of a signed ticket, in seconds since 1970."""

    @property
    def signed(self) -> bool:
        """Whether the ticket was signed, and is good for one use only."""
        return bool(self.nonce)


class TicketSigner:
    """Signs tickets, and redeems each of them once.

    To rotate keys, add the new key in front, and remove the old one after the lifetime of a ticket,
    `ttl_seconds`. A stream that began in time may take longer.

    Notes
    -----
    A signer pickles only for a worker process that is being started. The two then share the keys
    and the replay cache.

    Examples
    --------
    >>> signer = TicketSigner([bytes(range(32))])
    >>> ticket = signer.sign(Request("flights"), "training")
    >>> signer.redeem(ticket, Streams.BOTH).request.dataset
    'flights'
    >>> signer.redeem(ticket, Streams.BOTH)
    Traceback (most recent call last):
    splitarrow.errors.DeniedError: the ticket was already used; get a new one from the control plane
    """

    def __init__(
        self,
        keys: Sequence[bytes] | TicketKeys | None = None,
        ttl_seconds: float = 300.0,
        clock: Callable[[], float] = time.time,
        used: ReplayCache | None = None,
    ) -> None:
        if not 0 < ttl_seconds < math.inf:
            raise UsageError(f"ttl_seconds={ttl_seconds}: the lifetime of tickets must be positive")
        self._keys = keys if isinstance(keys, TicketKeys) else TicketKeys(keys)
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._used = ReplayCache() if used is None else used

    def use_keys(self, keys: TicketKeys) -> None:
        """Sign and verify with other keys from now on. Used tickets stay used."""
        self._keys = keys

    def next_expiry(self) -> int:
        """Return the expiry of a ticket that is signed now, in seconds since 1970."""
        return math.ceil(self._clock() + self._ttl_seconds)

    def sign(self, request: Request, principal: str) -> bytes:
        """Return a ticket for reading a request once.

        The caller must have checked that the principal may read the dataset.
        """
        if not is_principal_name(principal):
            raise UsageError("the name of a principal must be short printable text")
        values = _list_request_values(request)
        values[_PRINCIPAL] = principal
        values[_EXPIRES] = self.next_expiry()
        values[_NONCE] = secrets.token_hex(NONCE_BYTES)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        signed = SIGNED_PREFIX + _encode_base64(text.encode())
        ticket = signed + b"." + _compute_mac(self._keys.current()[0], signed)
        if len(ticket) > TICKET_BYTES:
            raise InvalidRequestError(
                f"the ticket for the request has {len(ticket)} bytes; the limit is {TICKET_BYTES}; "
                "request fewer columns or use a shorter filter"
            )
        return ticket

    def redeem(self, ticket: bytes, stream: Streams, owner: str | None = None) -> TicketClaims:
        """Verify a ticket and record its use, so that it cannot be used again.

        A ticket is good once for each of the two streams. Raises `DeniedError` with the code
        UNAUTHENTICATED if the ticket is forged, altered, signed with another key, expired or used,
        and never quotes it. Raises `DeniedError` if it was issued to another principal than the
        owner, if given. Raises `ExhaustedError` if the replay cache is full. The ticket stays
        unused in both cases.
        """
        values = self._verify(ticket)
        now = self._clock()
        principal, expires, nonce = (
            values.pop(name, None) for name in (_PRINCIPAL, _EXPIRES, _NONCE)
        )
        if (
            not is_principal_name(principal)
            or type(expires) is not int
            or not 0 <= expires <= _MAX_EXPIRES
            or not isinstance(nonce, str)
            or _NONCE_HEX.fullmatch(nonce) is None
        ):
            raise _make_contents_error()
        if now >= expires:
            raise unauthenticated(f"the ticket expired {now - expires:.0f} s ago; {_GET_ANOTHER}")
        claims = TicketClaims(_parse_request(values), principal, bytes.fromhex(nonce), expires)
        if owner not in (None, principal):
            dataset = claims.request.dataset
            raise DeniedError("the ticket was issued to another principal", stream=dataset)
        if not self._used.add(claims.nonce, stream, expires, now):
            raise unauthenticated(f"the ticket was already used; {_GET_ANOTHER}")
        return claims

    def _verify(self, ticket: bytes) -> dict[str, Any]:
        """Return the payload of a ticket with a valid signature."""
        if len(ticket) > TICKET_BYTES:
            raise unauthenticated(
                f"the ticket has {len(ticket)} bytes; the limit is {TICKET_BYTES}"
            )
        match = _FORMAT.fullmatch(ticket)
        if match is None:
            raise _make_format_error(ticket)
        signed, mac = match.groups()
        valid = False
        for key in self._keys.current():  # all of them, so that the time taken is constant
            valid |= hmac.compare_digest(_compute_mac(key, signed), mac)
        if not valid:
            raise unauthenticated(f"the ticket was not signed by this server; {_GET_ANOTHER}")
        try:
            payload = signed[len(SIGNED_PREFIX) :]
            values = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except (ValueError, RecursionError):
            raise _make_contents_error() from None
        if not isinstance(values, dict):
            raise _make_contents_error()
        return values

    def close(self) -> None:
        """Forget the used tickets. Idempotent."""
        self._used.close()

    def __repr__(self) -> str:
        return f"<TicketSigner, lifetime {self._ttl_seconds:g} s>"

    def __reduce__(self) -> tuple[Any, ...]:
        return TicketSigner, (self._keys, self._ttl_seconds, self._clock, self._used)


def is_signed(ticket: bytes) -> bool:
    """Return whether a ticket looks like a signed one, of any version."""
    return _VERSION.match(ticket) is not None


def _list_request_values(request: Request) -> dict[str, Any]:
    """Return the fields of a request that are set."""
    return {
        field.name: value
        for field in fields(request)
        if (value := getattr(request, field.name)) is not None
    }


def _parse_request(values: dict[str, Any]) -> Request:
    try:
        return Request.parse(json.dumps(values).encode())
    except InvalidRequestError:
        raise _make_contents_error() from None


def _compute_mac(key: bytes, signed: bytes) -> bytes:
    return _encode_base64(hmac.digest(key, signed, hashlib.sha256))


def _encode_base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _make_format_error(ticket: bytes) -> Exception:
    version = _VERSION.match(ticket)
    if version is None:
        return unauthenticated(
            "this server requires a signed ticket; get one from its control plane"
        )
    if ticket.startswith(SIGNED_PREFIX):
        return unauthenticated(f"the ticket is damaged; {_GET_ANOTHER}")
    number = int(version.group(1))
    return unauthenticated(
        f"the ticket has version {number}; this server reads version 1; {_GET_ANOTHER}"
    )


def _make_contents_error() -> Exception:
    return unauthenticated(
        f"this version of the server does not know the contents of the ticket; {_GET_ANOTHER}"
    )
