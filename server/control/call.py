"""One call of the Flight service: its caller, and its access to datasets.

`AddressCalls` limits the calls that run at a time for one client address.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import anyio
import grpc.aio
from anyio import CapacityLimiter, to_thread

from ...errors import (
    ExhaustedError,
    InvalidRequestError,
    NotFoundError,
    ProtocolError,
    UnavailableError,
)
from ...formats.flight_data import iter_protobuf_fields
from ...protocol.request import Request
from ...protocol.uri import Streams
from ..addresses import parse_peer
from ..auth.principal import Permission, Principal
from ..auth.tickets import TicketClaims
from ..catalog.dataset import ServedDataset
from ..catalog.suggestions import suggest_names
from ..context import ServerContext
from ..refusals import flatten_errors
from ..usage import KeyedCounter

if TYPE_CHECKING:
    from ..spans import CallSpan


class AddressCalls:
    """Bounds the calls that run at a time for one client address.

    One connection of gRPC carries many calls, so that a limit on connections does not bound them.

    Examples
    --------
    >>> calls = AddressCalls(lambda: 1)
    >>> with calls.count("ipv4:192.0.2.7:1001"), calls.count("ipv4:192.0.2.8:1001"):
    ...     with calls.count("ipv4:192.0.2.7:1002"):
    ...         pass
    Traceback (most recent call last):
    splitarrow.errors.ExhaustedError: the address 192.0.2.7 has reached its limit of 1 ...
    """

    def __init__(self, get_limit: Callable[[], int]) -> None:
        self._get_limit = get_limit
        self._running = KeyedCounter()

    @contextmanager
    def count(self, peer: str) -> Generator[None]:
        """Count a call while the context lasts. Refuse it beyond the limit of its address."""
        address, limit = str(parse_peer(peer) or ""), self._get_limit()
        if not self._running.take(address, limit):
            calls = "call" if limit == 1 else "calls"
            raise ExhaustedError(
                f"the address {address} has reached its limit of {limit} concurrent {calls}; "
                "retry later"
            )
        try:
            yield
        finally:
            self._running.release(address)


_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

Context = Any  # grpc.aio.ServicerContext is generic in types that are bytes here

_END: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]
_MAX_NAME_CHARACTERS = 1024

NO_UPLOADS = "this server accepts no uploads; start it with --writable FOLDER"
"""The error of a server without a folder for uploads."""


class Call:
    """One call. It is valid while its handler runs.

    Every handler gets its datasets here, and so checks the caller's grants in one place.

    Attributes
    ----------
    peer : str
        The address of the client, as gRPC writes it.
    subject : str or None
        The dataset of the call, once that is known. Errors and logs name it.
    span : CallSpan or None
        The span of the call, if the server records traces.
    """

    def __init__(
        self,
        context: Context,
        server: ServerContext,
        headers: Mapping[str, str],
        principal: Principal,
    ) -> None:
        self.context = context
        self.peer = str(context.peer())  # gRPC crashes the process after the end of the call
        self.server = server
        self.headers = headers
        self.principal = principal
        self.subject: str | None = None
        self.span: CallSpan | None = None

    def is_lost(self, error: BaseException) -> bool:
        """Return whether the client has disconnected. `error` has ended the call.

        gRPC may fail to send before it learns the reason.
        """
        return self.context.done() or any(
            isinstance(each, grpc.aio.InternalError) for each in flatten_errors(error)
        )

    async def write(self, message: bytes) -> None:
        """Send a message. Return when gRPC can take the next one."""
        await self.context.write(message)

    async def read(self) -> bytes | None:
        """Return the client's next message, or None when no more will come.

        None does not prove that the client sent everything: it may have died. Use
        `confirm_client` to find out.
        """
        message = await self.context.read()
        return None if message is _END else message

    async def confirm_client(self) -> None:
        """Return if the client is still connected. Otherwise gRPC cancels the call here.

        Cancelling this operation would lose gRPC's report, so it is shielded.
        """
        with anyio.CancelScope(shield=True):
            await self.context.send_initial_metadata(())

    def list_datasets(self) -> list[str]:
        """Return the names of the datasets that the caller may read."""
        may = self.principal.may
        return [name for name in self.server.catalog.names() if may(Permission.READ, name)]

    def authorize(self, permission: Permission, dataset: str) -> None:
        """Make a dataset the subject of the call, and check the caller's grants for it.

        Raises `DeniedError` if the caller lacks the permission, whether or not the dataset exists.
        """
        self.subject = dataset
        self.principal.require(permission, dataset)

    async def redeem_ticket(self, ticket: bytes) -> TicketClaims:
        """Redeem a ticket of the caller; see `AccessControl.redeem_ticket`."""
        redeem = self.server.access.redeem_ticket
        claims = await run_in_thread(redeem, ticket, Streams.BOTH, self.principal)
        self.subject = claims.request.dataset
        return claims

    def check_draining(self, request: Request) -> None:
        """Check that the server does not drain, unless the request continues a read in progress."""
        server = self.server
        if server.draining.is_set() and not server.reads.includes(request):
            raise UnavailableError("the server is draining", stream=request.dataset)

    def find_dataset(self, name: str) -> ServedDataset:
        """Return a dataset that the caller may read.

        Raises `DeniedError` if the caller may not read it, whether or not it exists. Raises
        `NotFoundError` if it does not exist. The error suggests similar names that the caller may
        read.
        """
        if len(name) > _MAX_NAME_CHARACTERS:
            raise NotFoundError(
                f"no dataset has a name of {len(name)} characters; "
                f"the limit is {_MAX_NAME_CHARACTERS}"
            )
        self.authorize(Permission.READ, name)
        try:
            return self.server.catalog.lookup(name)
        except NotFoundError:
            clause = suggest_names(name, self.list_datasets())
            raise NotFoundError(f"no dataset {name!r}{clause}", stream=name) from None


async def run_in_thread(
    function: Callable[[*_Arguments], _Result],
    *arguments: *_Arguments,
    limiter: CapacityLimiter | None = None,
) -> _Result:
    """Run a function on a worker thread, and wait for it even if gRPC cancels the call.

    gRPC cancels the task of the call itself, from which anyio does not shield. What the function
    uses, and the limits that count its thread, would then be released while it runs.
    """
    results: list[_Result] = []
    errors: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await to_thread.run_sync(function, *arguments, limiter=limiter))
        except Exception as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if errors:
        raise errors.pop()
    return results[0]


def parse_message(message_type: Any, data: bytes) -> Any:
    """Parse a protobuf message, which a client has sent."""
    try:
        return message_type.FromString(data)
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        name = message_type.DESCRIPTOR.name
        raise InvalidRequestError(f"the message is not a valid {name}") from None


def read_field(message: bytes, field: int) -> bytes:
    """Return the last value of a protobuf field of bytes or text; empty if it is missing."""
    found = b""
    try:
        for number, value in iter_protobuf_fields(message):
            if number == field and not isinstance(value, int):
                found = bytes(value)
    except ProtocolError as error:
        raise InvalidRequestError(error.message) from None
    return found
