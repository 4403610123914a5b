"""grpc.health.v1: whether the server is serving. Its small messages are handled as bytes."""

from __future__ import annotations

import anyio

from ...errors import ExhaustedError, InvalidRequestError
from .call import AddressCalls, read_field
from .grpc_server import Method, ServerCall, StatusCode

HEALTH_SERVICE = "grpc.health.v1.Health"
_SERVICE_FIELD = 1
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


class HealthService:
    """Serves Check and Watch, without authentication, for services and the server as a whole.

    Only watches count as calls of their address: a Check ends at once.
    """

    def __init__(self, services: tuple[str, ...], address_calls: AddressCalls) -> None:
        self._address_calls = address_calls
        self._services = ("", *services)
        self._draining = anyio.Event()

    def drain(self) -> None:
        """Report NOT_SERVING from now on, also to running watches, which then end."""
        self._draining.set()

    def methods(self) -> dict[str, Method]:
        """Return the methods of the service by their paths."""
        return {
            f"/{HEALTH_SERVICE}/Check": Method(self._check, reads_one=True),
            f"/{HEALTH_SERVICE}/Watch": Method(self._watch, reads_one=True),
        }

    async def _check(self, request: bytes, context: ServerCall) -> bytes:
        name = await _parse_service(request, context)
        if name not in self._services:
            await context.abort(StatusCode.NOT_FOUND, f"no service {name[:80]!r}")
        return self._status()

    async def _watch(self, request: bytes, context: ServerCall) -> None:
        try:
            with self._address_calls.count(context.peer()):
                await self._report_changes(request, context)
        except ExhaustedError as error:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, error.message)

    async def _report_changes(self, request: bytes, context: ServerCall) -> None:
        name = await _parse_service(request, context)
        known = name in self._services
        status = self._status()
        await context.write(status if known else _SERVICE_UNKNOWN)
        if status is _SERVING:  # the server may start to drain while the message is written
            await self._draining.wait()
            if known:
                await context.write(_NOT_SERVING)

    def _status(self) -> bytes:
        return _NOT_SERVING if self._draining.is_set() else _SERVING


async def _parse_service(request: bytes, context: ServerCall) -> str:
    try:
        return read_field(request, _SERVICE_FIELD).decode()
    except (InvalidRequestError, UnicodeDecodeError):
        message = "the message is not a valid HealthCheckRequest"
        await context.abort(StatusCode.INVALID_ARGUMENT, message)
