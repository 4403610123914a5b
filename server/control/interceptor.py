"""Everything that a call of the Flight service needs around its method.

It authenticates the caller, limits and counts calls, and turns errors into gRPC statuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import anyio

from ...errors import SplitArrowError, UnavailableError, exhausted_error
from ..auth.principal import ANYONE
from ..context import ServerContext
from ..logs import get_logger
from ..refusals import describe_status, flatten_errors
from .call import AddressCalls, Call
from .grpc_server import Aborted, Method, ServerCall, StatusCode

Handler = Callable[[Call, Any], Awaitable[bytes | None]]
"""Serves a method; see `Method`."""

FLIGHT_SERVICE = "arrow.flight.protocol.FlightService"
"""The service whose methods are called."""
_ARROW_TOKEN_HEADER = "auth-token-bin"
"""The header in which Flight clients send the token from a handshake."""


class CallInterceptor:
    """Makes methods of a gRPC server from the handlers of the service."""

    def __init__(self, server: ServerContext, address_calls: AddressCalls) -> None:
        self._server = server
        self._address_calls = address_calls
        self._log = get_logger("control")
        self._running = 0
        self._idle = anyio.Event()

    async def wait_idle(self) -> None:
        """Return when no call is running."""
        while self._running:
            self._idle = anyio.Event()
            await self._idle.wait()

    def method(
        self,
        name: str,
        handler: Handler,
        *,
        reads_one: bool = True,
        authenticates: bool = False,
        for_reads: bool = False,
    ) -> Method:
        """Return the method of a name.

        A method that authenticates needs no token. A method for reads also runs while the server
        drains: it calls `Call.check_draining`.
        """

        async def serve(context: ServerCall) -> bytes | None:
            call = Call(context, self._server, _read_headers(context), ANYONE)
            run = partial(self._run, call, handler, reads_one, authenticates, for_reads)
            tracer = self._server.tracer
            if tracer is None:
                return await run()
            with tracer.call(f"{FLIGHT_SERVICE}/{name}", call.headers, call.peer) as call.span:
                response = await run()
                self._end_span(call, "OK")
                return response

        return Method(serve, reads_one=reads_one)

    async def _run(
        self, call: Call, handler: Handler, reads_one: bool, authenticates: bool, for_reads: bool
    ) -> bytes | None:
        self._running += 1
        try:
            with self._address_calls.count(call.peer):
                if self._server.draining.is_set() and not (for_reads and self._server.reads):
                    raise UnavailableError("the server is draining")
                if not authenticates:
                    call.principal = await self._server.access.authenticate(call.headers)
                request = await call.context.read_request() if reads_one else None
                return await handler(call, request)
        except Aborted:
            raise
        except Exception as error:
            errors = list(flatten_errors(error))
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        await self._abort(call, errors)

    async def _abort(self, call: Call, errors: list[BaseException]) -> NoReturn:
        """End a call with the status for the first of our own errors, or with INTERNAL."""
        candidates = (exhausted_error(error) or error for error in errors)
        ours = next((error for error in candidates if isinstance(error, SplitArrowError)), None)
        if ours is not None:
            subject = call.subject
            location = None if subject is None else self._server.catalog.location(subject)
            name, text = describe_status(ours, subject, location)
            code = StatusCode.__members__.get(name, StatusCode.UNKNOWN)
            self._server.refusals.record(code.name, "control", subject, "grpc")
            self._log.info(
                "call refused", code=code.name, reason=str(ours), dataset=subject, peer=call.peer
            )
        elif any(map(call.is_lost, errors)):
            self._end_span(call, "CANCELLED")
            raise Aborted(StatusCode.CANCELLED, "the client has disconnected")
        else:
            code, text = StatusCode.INTERNAL, "internal error; see the server's log"
            self._log.error("call failed", exc_info=errors[0], dataset=call.subject, peer=call.peer)
        self._end_span(call, code.name)
        await call.context.abort(code, text)

    def _end_span(self, call: Call, status: str) -> None:
        """Record how a call ended. The name of a dataset that does not exist may be anything."""
        if call.span is not None:
            exists = call.subject is not None and call.subject in self._server.catalog
            call.span.end(call.subject if exists else None, status)


def _read_headers(context: ServerCall) -> dict[str, str]:
    headers = dict(context.invocation_metadata())
    if _ARROW_TOKEN_HEADER in headers:
        headers.setdefault("authorization", f"Bearer {headers.pop(_ARROW_TOKEN_HEADER)}")
    return headers
