"""grpc.health.v1: whether the server is serving. Its small messages are handled as bytes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from ...errors import ExhaustedError, InvalidRequestError
from .call import AddressCalls, read_field
from .grpc_server import Aborted, Method, ServerCall, StatusCode

HEALTH_SERVICE = "grpc.health.v1.Health"
_SERVICE_FIELD = 1
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


class HealthService:
    """Serves Check and Watch, without authentication, for services and the server as a whole.

    A Check counts as a call of its address only until its request has arrived: it ends then.
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

    async def _check(self, context: ServerCall) -> bytes:
        request = context.read_ready()
        if request is None:
            with self._count(context):
                request = await context.read_request()
        name = await _parse_service(request, context)
        if name not in self._services:
            await context.abort(StatusCode.NOT_FOUND, f"no service {name[:80]!r}")
        return self._status()

    async def _watch(self, context: ServerCall) -> None:
        with self._count(context):
            await self._report_changes(context)

    @contextmanager
    def _count(self, context: ServerCall) -> Generator[None]:
        """Count a call of its address while the context lasts."""
        try:
            with self._address_calls.count(context.peer()):
                yield
        except ExhaustedError as error:
            raise Aborted(StatusCode.RESOURCE_EXHAUSTED, error.message) from None

    async def _report_changes(self, context: ServerCall) -> None:
        name = await _parse_service(await context.read_request(), context)
        known = name in self._services
        status = self._status()
        await context.write(status if known else _SERVICE_UNKNOWN)
        if status is _SERVING:  # the server may start to drain while the message is written
            await self._draining.wait()
            if known:
                await context.write(_NOT_SERVING)

    def _status(self) -> bytes:
        return _NOT_SERVING if self._draining.is_set() else _SERVING


async def _parse_service(request: bytes | memoryview, context: ServerCall) -> str:
    try:
        return read_field(request, _SERVICE_FIELD).decode()
    except (InvalidRequestError, UnicodeDecodeError):
        message = "the message is not a valid HealthCheckRequest"
        await context.abort(StatusCode.INVALID_ARGUMENT, message)
