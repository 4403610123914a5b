"""What the control plane needs of the rest of the server, and what it does without rights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from ...protocol.limits import Limits
from ...protocol.request import Request
from ...protocol.uri import DataUri
from ..auth.principal import ANYONE, Principal, unauthenticated
from ..catalog.base import Dataset, Encoding
from ..metrics import Counters

READ, WRITE = "read", "write"
"""What a principal may do with a dataset."""
EVERYTHING = "*"
"""Stands for all datasets where a right concerns the server as a whole."""
_SIGNED = b"sa1."


class CatalogPort(Protocol):
    """Named datasets."""

    def lookup(self, name: str) -> Dataset:
        """Return a dataset; raise `NotFoundError`."""
        ...

    def names(self) -> list[str]:
        """Return the names, sorted."""
        ...

    def add(self, name: str, source: Any) -> None:
        """Add a dataset; raise `ConfigError` if the name is taken."""
        ...

    def replace(self, name: str, source: Any) -> None:
        """Let another source stand for a name, from the next reader on."""
        ...

    def remove(self, name: str) -> None:
        """Take a dataset out; streams of it that run go on."""
        ...


class DaemonPort(Protocol):
    """The daemon, while it runs."""

    encoding: Encoding
    limits: Limits
    counters: Counters
    draining: anyio.Event
    threads: anyio.CapacityLimiter
    uris: list[DataUri]
    handshake_seconds: float
    idle_seconds: float

    @property
    def catalog(self) -> CatalogPort:
        """What is served."""
        ...

    def stats(self) -> dict[str, int]:
        """Return what is counted."""
        ...


class Guard(Protocol):
    """Knows who calls by the headers of a call. It may block."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Return who calls; raise `DeniedError` with the code UNAUTHENTICATED."""
        ...


class BasicGuard(Guard, Protocol):
    """A guard that knows passwords too."""

    def exchange(self, username: str, password: str) -> str:
        """Return a bearer token for a password; raise `DeniedError`."""
        ...


class Sealed(Protocol):
    """What a ticket says."""

    @property
    def request(self) -> Request:
        """What is asked for."""
        ...

    @property
    def principal(self) -> str:
        """For whom the ticket was made."""
        ...

    @property
    def nonce(self) -> object:
        """What tells this ticket from others like it; empty if nothing does."""
        ...


class Office(Protocol):
    """Makes tickets, and reads them."""

    def seal(self, request: Request, principal: str) -> bytes:
        """Return a ticket."""
        ...

    def open(self, ticket: bytes, use: str) -> Sealed:
        """Return what a ticket says; raise `DeniedError` if it is not good for that use."""
        ...


@dataclass(frozen=True, slots=True)
class PlainTicket:
    """What an unsigned ticket says."""

    request: Request
    """What is asked for."""
    principal: str = ANYONE.name
    """Nobody in particular."""
    nonce: bytes = b""
    """Nothing tells it from others like it."""


class OpenGuard:
    """Lets everybody in: the guard of a server without tokens."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Return the one principal that there is."""
        del headers
        return ANYONE


class OpenOffice:
    """Writes plain tickets: a dataset's name, or JSON."""

    def seal(self, request: Request, principal: str) -> bytes:
        """Return a plain ticket."""
        del principal
        return request.ticket()

    def open(self, ticket: bytes, use: str) -> PlainTicket:
        """Return what a plain ticket says.

        Raises
        ------
        InvalidRequestError
            If it cannot be understood.
        DeniedError
            If it is a signed one, of another server: it must not come back in an error.
        """
        del use
        if ticket.startswith(_SIGNED):
            raise unauthenticated("this server takes no signed tickets")
        return PlainTicket(Request.parse(ticket))
