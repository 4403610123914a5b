"""Signed tickets: what one principal may read once, before a certain time.

A signed ticket is ``sa1.PAYLOAD.MAC``. The payload is JSON with the fields of the request, the
principal (``p``), the expiry in seconds since 1970 (``e``) and a nonce (``n``). The MAC is
HMAC-SHA256 over ``sa1.PAYLOAD``. Both are base64url without padding. Clients treat a ticket as
opaque.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import InvalidRequestError, UsageError
from ...protocol.request import SIGNED_PREFIX, Request
from ...protocol.uri import Streams
from .principal import is_principal_name, unauthenticated
from .replay_cache import NONCE_BYTES, ReplayCache
from .ticket_keys import TicketKeys

TICKET_BYTES = 64 << 10
"""The largest ticket, in bytes, that readers and servers accept."""
_VERSION = re.compile(rb"sa([0-9]{1,4})\.")
_FORMAT = re.compile(rb"(sa1\.[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")
_NONCE_HEX = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}")
_PRINCIPAL, _EXPIRES, _NONCE = "p", "e", "n"
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

    Parameters
    ----------
    keys : sequence of bytes or TicketKeys, optional
        The signing keys; see `TicketKeys`. To rotate keys, add the new key in front, and remove
        the old one after the lifetime of a ticket.
    ttl_seconds : float
        The lifetime of a ticket, in seconds. A stream that began in time may take longer.
    clock : callable
        Returns the time in seconds since 1970.
    used : ReplayCache, optional
        Remembers used tickets.

    Raises
    ------
    ConfigError
        If a key is too short or not random.
    UsageError
        If `ttl_seconds` is not positive and finite.

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

    def sign(self, request: Request, principal: str) -> bytes:
        """Return a ticket for reading a request once.

        The caller must have checked that the principal may read the dataset.

        Parameters
        ----------
        request : Request
            The data to read.
        principal : str
            The name of the principal.

        Raises
        ------
        InvalidRequestError
            If the ticket would be too large.
        UsageError
            If the principal's name is too long or not printable.
        """
        if not is_principal_name(principal):
            raise UsageError("the name of a principal must be short printable text")
        values = _list_request_values(request)
        values[_PRINCIPAL] = principal
        values[_EXPIRES] = math.ceil(self._clock() + self._ttl_seconds)
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

    def redeem(self, ticket: bytes, stream: Streams) -> TicketClaims:
        """Verify a ticket and record its use, so that it cannot be used again.

        Parameters
        ----------
        ticket : bytes
            The ticket.
        stream : Streams
            The stream to read. A ticket is good once for each of the two streams.

        Raises
        ------
        DeniedError
            With the code UNAUTHENTICATED, if the ticket is forged, altered, signed with another
            key, expired or used. The error never quotes the ticket.
        ExhaustedError
            If the replay cache is full. The ticket stays unused.
        """
        values = self._verify(ticket)
        now = self._clock()
        principal, expires, nonce = (
            values.pop(name, None) for name in (_PRINCIPAL, _EXPIRES, _NONCE)
        )
        if (
            not is_principal_name(principal)
            or type(expires) is not int
            or not isinstance(nonce, str)
            or _NONCE_HEX.fullmatch(nonce) is None
        ):
            raise _make_contents_error()
        if now >= expires:
            raise unauthenticated(f"the ticket expired {now - expires:.0f} s ago; {_GET_ANOTHER}")
        claims = TicketClaims(_parse_request(values), principal, bytes.fromhex(nonce), expires)
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
