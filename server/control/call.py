"""One call of the Flight service.

`AddressCalls` limits the calls that run at a time for one client address.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import ExhaustedError, InvalidRequestError, ProtocolError
from ...formats.flight_data import iter_protobuf_fields
from ...protocol.uri import Streams
from ..addresses import find_client, parse_peer
from ..auth.principal import Principal
from ..auth.tickets import TicketClaims
from ..caller import Caller, run_in_thread
from ..context import ServerContext
from ..usage import KeyedCounter
from .grpc_server import ServerCall

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


class Call(Caller):
    """One call. It is valid while its handler runs.

    Attributes
    ----------
    peer : str
        The address of the client, as gRPC writes it; see `find_client`.
    span : CallSpan or None
        The span of the call, if the server records traces.
    """

    def __init__(
        self,
        context: ServerCall,
        server: ServerContext,
        headers: Mapping[str, str],
        principal: Principal,
    ) -> None:
        peer, proxies = context.peer(), server.settings.proxies
        if proxies:
            peer = find_client(peer, headers.get("x-forwarded-for"), proxies)
        super().__init__(server, principal, peer)
        self.context = context
        self.headers = headers
        self.span: CallSpan | None = None

    def is_lost(self, error: BaseException) -> bool:
        """Return whether the client has disconnected. `error` has ended the call."""
        del error
        return self.context.done()

    async def write(self, message: bytes) -> None:
        """Send a message. Return when the client can receive the next one."""
        await self.context.write(message)

    async def read(self) -> memoryview | None:
        """Return the client's next message, or None once it has sent all of them.

        The call is cancelled here if the client dies before.
        """
        return await self.context.read()

    async def redeem_ticket(self, ticket: bytes) -> TicketClaims:
        """Redeem a ticket of the caller; see `AccessControl.redeem_ticket`."""
        redeem = self.server.access.redeem_ticket
        claims = await run_in_thread(redeem, ticket, Streams.BOTH, self.principal)
        self.subject = claims.request.dataset
        return claims


def parse_message(message_type: Any, data: bytes | memoryview) -> Any:
    """Parse a protobuf message, which a client has sent."""
    try:
        return message_type.FromString(bytes(data))
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        name = message_type.DESCRIPTOR.name
        raise InvalidRequestError(f"the message is not a valid {name}") from None


def read_field(message: bytes | memoryview, field: int) -> bytes:
    """Return the last value of a protobuf field of bytes or text; empty if it is missing."""
    found = b""
    try:
        for number, value in iter_protobuf_fields(message):
            if number == field and not isinstance(value, int):
                found = bytes(value)
    except ProtocolError as error:
        raise InvalidRequestError(error.message) from None
    return found
