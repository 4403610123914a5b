"""Signed tickets: what one principal may read once, and until when.

A ticket is ``sa1.`` and the request as JSON in base64url, a full stop, and an HMAC-SHA256 of all
before it in base64url. A reader passes it on unread.
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
from .keys import TicketKeys
from .principal import is_name, unauthenticated
from .replay import NONCE_BYTES, ReplayMemory

TICKET_BYTES = 64 << 10
"""The largest ticket, in bytes; readers and servers take no larger one."""
_VERSION = re.compile(rb"sa([0-9]{1,4})\.")
_SHAPE = re.compile(rb"(sa1\.[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")
_USES = ("both", "metadata", "body")
_PRINCIPAL, _EXPIRES, _NONCE = "p", "e", "n"
_AGAIN = "ask the control plane for a new one"


@dataclass(frozen=True, slots=True)
class SealedRequest:
    """What a ticket says, after its signature was checked."""

    request: Request
    """What is to be read."""
    principal: str
    """The name of whom the ticket was made for."""
    nonce: bytes = field(repr=False)
    """What tells it from every other ticket: 128 random bits."""
    expires: int = 0
    """Until when it is good, in seconds since 1970."""


class TicketOffice:
    """Makes tickets, and takes them back once.

    Parameters
    ----------
    keys : sequence of bytes or TicketKeys
        The first key signs, all verify: to change keys, put the new one first, and take the
        old one away after the life of a ticket.
    ttl_seconds : float
        How long a ticket is good for a stream to begin, in seconds.
    clock : callable
        The time in seconds since 1970.
    replay : ReplayMemory, optional
        Where used tickets are remembered.

    Raises
    ------
    ConfigError
        If a key is too short.
    UsageError
        If `ttl_seconds` is not positive.

    Notes
    -----
    It can be handed to a worker process that is being started; the two then have the same keys
    and the same memory. It pickles for nobody else.

    Examples
    --------
    >>> office = TicketOffice([bytes(range(32))])
    >>> ticket = office.seal(Request("flights"), "training")
    >>> office.open(ticket, "both").request.dataset
    'flights'
    >>> office.open(ticket, "both")
    Traceback (most recent call last):
    splitarrow.errors.DeniedError: this ticket was used already; ask the control plane for a new one
    """

    def __init__(
        self,
        keys: Sequence[bytes] | TicketKeys | None = None,
        ttl_seconds: float = 300.0,
        clock: Callable[[], float] = time.time,
        replay: ReplayMemory | None = None,
    ) -> None:
        if not 0 < ttl_seconds < math.inf:
            raise UsageError("tickets have to be good for more than 0 seconds")
        self._keys = keys if isinstance(keys, TicketKeys) else TicketKeys(keys)
        self._ttl = ttl_seconds
        self._clock = clock
        self._replay = ReplayMemory() if replay is None else replay

    def seal(self, request: Request, principal: str) -> bytes:
        """Return a ticket for one reading of `request`.

        Parameters
        ----------
        request : Request
            What may be read; whether `principal` may is for the caller to know.
        principal : str
            Whom it is for, by name.

        Raises
        ------
        InvalidRequestError
            If the request is too large for a ticket.
        UsageError
            If the principal's name is unfit for a log.
        """
        if not is_name(principal):
            raise UsageError("the name of a principal is short, and has no control characters")
        values = _values(request)
        values[_PRINCIPAL] = principal
        values[_EXPIRES] = math.ceil(self._clock() + self._ttl)
        values[_NONCE] = secrets.token_hex(NONCE_BYTES)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        signed = SIGNED_PREFIX + _b64(text.encode())
        ticket = signed + b"." + _mac(self._keys.current()[0], signed)
        if len(ticket) > TICKET_BYTES:
            raise InvalidRequestError(
                f"the request makes a ticket of {len(ticket)} bytes, and at most "
                f"{TICKET_BYTES} are allowed: ask for fewer columns or a shorter filter"
            )
        return ticket

    def open(self, ticket: bytes, use: str) -> SealedRequest:
        """Check a ticket and take it: the same one is refused from then on.

        Parameters
        ----------
        ticket : bytes
            What the reader sent.
        use : {"both", "metadata", "body"}
            Which streams are to be read. A ticket is good for each of the two once.

        Returns
        -------
        SealedRequest
            What may be read, by whom.

        Raises
        ------
        DeniedError
            If it is forged, altered, of a foreign key, expired or used, with the code
            UNAUTHENTICATED. No error quotes it.
        ExhaustedError
            If no more used tickets can be remembered; this one stays good.
        """
        if use not in _USES:
            raise UsageError(f"use={use!r}; it is one of {', '.join(_USES)}")
        values = self._verified(ticket)
        now = self._clock()
        principal, expires, nonce = (
            values.pop(name, None) for name in (_PRINCIPAL, _EXPIRES, _NONCE)
        )
        if (
            not is_name(principal)
            or type(expires) is not int
            or not isinstance(nonce, str)
            or re.fullmatch(r"[0-9a-f]{32}", nonce) is None
        ):
            raise _not_understood()
        if now >= expires:
            raise unauthenticated(f"this ticket expired {now - expires:.0f} s ago; {_AGAIN}")
        sealed = SealedRequest(_request(values), principal, bytes.fromhex(nonce), expires)
        if not self._replay.use(sealed.nonce, use, expires, now):
            raise unauthenticated(f"this ticket was used already; {_AGAIN}")
        return sealed

    def _verified(self, ticket: bytes) -> dict[str, Any]:
        if len(ticket) > TICKET_BYTES:
            raise unauthenticated(
                f"a ticket of {len(ticket)} bytes; the largest has {TICKET_BYTES}"
            )
        shape = _SHAPE.fullmatch(ticket)
        if shape is None:
            raise _misshapen(ticket)
        signed, given = shape.groups()
        good = False
        for key in self._keys.current():
            good |= hmac.compare_digest(_mac(key, signed), given)
        if not good:
            raise unauthenticated(f"this ticket was not made by this server; {_AGAIN}")
        try:
            payload = signed[len(SIGNED_PREFIX) :]
            values = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except (ValueError, RecursionError):
            raise _not_understood() from None
        if not isinstance(values, dict):
            raise _not_understood()
        return values

    def close(self) -> None:
        """Forget which tickets were used. Idempotent."""
        self._replay.close()

    def __repr__(self) -> str:
        return f"<TicketOffice, tickets good for {self._ttl:g} s>"

    def __reduce__(self) -> tuple[Any, ...]:
        return TicketOffice, (self._keys, self._ttl, self._clock, self._replay)


def _values(request: Request) -> dict[str, Any]:
    """Return the fields of a request that say something, whatever fields there are."""
    return {
        field.name: value
        for field in fields(request)
        if (value := getattr(request, field.name)) is not None
    }


def _request(values: dict[str, Any]) -> Request:
    try:
        return Request.parse(json.dumps(values).encode())
    except InvalidRequestError:
        raise _not_understood() from None


def _mac(key: bytes, signed: bytes) -> bytes:
    return _b64(hmac.digest(key, signed, hashlib.sha256))


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def is_signed(ticket: bytes) -> bool:
    """Tell whether a ticket looks like a signed one, of any version."""
    return _VERSION.match(ticket) is not None


def _misshapen(ticket: bytes) -> Exception:
    version = _VERSION.match(ticket)
    if version is None:
        return unauthenticated(
            "this server takes signed tickets only, and this is none: connect to its control plane"
        )
    if ticket.startswith(SIGNED_PREFIX):
        return unauthenticated(f"this ticket is damaged; {_AGAIN}")
    number = int(version.group(1))
    return unauthenticated(f"a ticket of version {number}; this server reads version 1: {_AGAIN}")


def _not_understood() -> Exception:
    return unauthenticated(
        f"this ticket says what this version of the server does not know; {_AGAIN}"
    )
