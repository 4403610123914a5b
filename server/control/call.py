"""One call of the service: who makes it, and what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import grpc.aio

from ...errors import DeniedError, InvalidRequestError, NotFoundError
from ..auth.principal import ANYONE, Principal
from ..catalog.base import Dataset
from ..catalog.names import nearest
from .ports import READ, DaemonPort, Sealed

Context = Any  # grpc.aio.ServicerContext is generic in types that are bytes here

_END: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]
_LONGEST_NAME = 1024


class Call:
    """One call. It is valid while its handler runs.

    Parameters
    ----------
    context : grpc.aio.ServicerContext
        gRPC's side of it.
    daemon : DaemonPort
        The daemon.
    headers : mapping of str to str
        What the client sent, names in lower case.
    principal : Principal
        Who calls.

    Attributes
    ----------
    subject : str or None
        The dataset that the call is about, once that is known; errors name it.
    """

    def __init__(
        self, context: Context, daemon: DaemonPort, headers: Mapping[str, str], principal: Principal
    ) -> None:
        self.context = context
        self.daemon = daemon
        self.headers = headers
        self.principal = principal
        self.subject: str | None = None

    @property
    def peer(self) -> str:
        """The address of the client, as gRPC writes it."""
        return str(self.context.peer())

    async def write(self, message: bytes) -> None:
        """Send a message; return when gRPC has room for the next one."""
        await self.context.write(message)

    async def read(self) -> bytes | None:
        """Return the next message of the client; None when there will be none.

        None does not mean that the client said all that it had to say: it may be gone. Only
        `confirm` tells.
        """
        message = await self.context.read()
        return None if message is _END else message

    async def confirm(self) -> None:
        """Return if the client is still there; otherwise the call is cancelled here.

        gRPC cannot tell of an error while this is under way, so it is not to be interrupted.
        """
        with anyio.CancelScope(shield=True):
            await self.context.send_initial_metadata(())

    def visible(self) -> list[str]:
        """Return the names of the datasets that the caller may read."""
        may = self.principal.may
        return [name for name in self.daemon.catalog.names() if may(name, READ)]

    def require(self, name: str, action: str) -> None:
        """Check that the caller may do this.

        Raises
        ------
        DeniedError
            If not.
        """
        if not self.principal.may(name, action):
            raise DeniedError(f"{self.principal.name!r} may not {action} {name!r}", stream=name)

    def require_own(self, ticket: Sealed) -> None:
        """Check that a ticket was made for the caller; without tokens it is anybody's.

        Raises
        ------
        DeniedError
            If it was made for somebody else.
        """
        if self.principal is not ANYONE and ticket.principal != self.principal.name:
            raise DeniedError("the ticket was made for somebody else")

    def dataset(self, name: str) -> Dataset:
        """Return a dataset that the caller may read.

        Raises
        ------
        DeniedError
            If the caller may not, whether or not there is such a dataset.
        NotFoundError
            If there is none; the error names the nearest of those that the caller may read.
        """
        if len(name) > _LONGEST_NAME:
            raise NotFoundError(f"no dataset has a name of {len(name)} characters")
        self.subject = name
        self.require(name, READ)
        try:
            return self.daemon.catalog.lookup(name)
        except NotFoundError:
            clause = nearest(name, self.visible())
            raise NotFoundError(f"no dataset {name!r}{clause}", stream=name) from None


def parsed(kind: Any, data: bytes) -> Any:
    """Return a protobuf message.

    Raises
    ------
    InvalidRequestError
        If the bytes are none of its kind.
    """
    try:
        return kind.FromString(data)
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        raise InvalidRequestError(f"the message is no {kind.DESCRIPTOR.name}") from None
