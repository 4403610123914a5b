"""grpc.health.v1: whether the server serves. Its three messages are small enough for bytes."""

from __future__ import annotations

from typing import Any

import anyio
import grpc

from ...errors import SplitArrowError
from .call import Context
from .wire import fields

HEALTH_SERVICE = "grpc.health.v1.Health"
_SERVICE_FIELD = 1
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


class Health:
    """Serves Check and Watch; no caller has to say who it is.

    Parameters
    ----------
    services : tuple of str
        The services that there are; the empty name stands for the server.
    """

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = ("", *services)
        self._drained = anyio.Event()

    def drain(self) -> None:
        """Say from now on that nothing is served, and tell those who watch."""
        self._drained.set()

    def handler(self) -> Any:
        """Return gRPC's handler for the service."""
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    async def _check(self, request: bytes, context: Context) -> bytes:
        name = await _service(request, context)
        if name not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {name[:80]!r}")
        return self._status()

    async def _watch(self, request: bytes, context: Context) -> None:
        name = await _service(request, context)
        known = name in self._services
        await context.write(self._status() if known else _SERVICE_UNKNOWN)
        if not self._drained.is_set():
            await self._drained.wait()
            if known:
                await context.write(self._status())

    def _status(self) -> bytes:
        return _NOT_SERVING if self._drained.is_set() else _SERVING


async def _service(request: bytes, context: Context) -> str:
    name = b""
    try:
        for number, value in fields(request):
            if number == _SERVICE_FIELD and not isinstance(value, int):
                name = bytes(value)
        return name.decode()
    except (SplitArrowError, UnicodeDecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no HealthCheckRequest")
        raise AssertionError from None  # abort raises
