"""Letting calls in, and telling their errors."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import anyio
import grpc
from anyio import to_thread

from ...errors import SplitArrowError, UnavailableError
from ..auth.principal import ANYONE, Principal
from ..logs import get_logger
from .call import Call, Context
from .failures import leaves, status_of
from .ports import DaemonPort, Guard, OpenGuard

Unary = Callable[[Call, bytes], Awaitable[bytes]]
Streaming = Callable[[Call, bytes], Awaitable[None]]
Conversing = Callable[[Call], Awaitable[None]]

_ARROW_TOKEN = "auth-token-bin"
"""The header in which Flight clients send the token that a handshake gave them."""


class Reception:
    """Lets calls in, and tells their errors.

    Parameters
    ----------
    daemon : DaemonPort
        The daemon.
    guard : Guard
        Who knows who calls.
    """

    def __init__(self, daemon: DaemonPort, guard: Guard) -> None:
        self._daemon = daemon
        self._guard = guard
        self._log = get_logger("control")
        self._running = 0
        self._idle = anyio.Event()

    async def wait_idle(self) -> None:
        """Return when no call runs; those that come from now on are not waited for."""
        while self._running:
            self._idle = anyio.Event()
            await self._idle.wait()

    def unary(self, method: Unary) -> Any:
        """Return gRPC's handler for a method with one request and one answer."""

        async def serve(request: bytes, context: Context) -> bytes:
            return await self._serve(context, lambda call: method(call, request))

        return grpc.unary_unary_rpc_method_handler(serve)

    def streaming(self, method: Streaming) -> Any:
        """Return gRPC's handler for a method with one request and many answers."""

        async def serve(request: bytes, context: Context) -> None:
            await self._serve(context, lambda call: method(call, request))

        return grpc.unary_stream_rpc_method_handler(serve)

    def conversing(self, method: Conversing, *, greets: bool = False) -> Any:
        """Return gRPC's handler for a method with many requests and many answers.

        Parameters
        ----------
        method : coroutine function
            The method.
        greets : bool
            Whether it is the one by which callers say who they are.
        """

        async def serve(requests: object, context: Context) -> None:
            del requests
            await self._serve(context, method, greets=greets)

        return grpc.stream_stream_rpc_method_handler(serve)

    async def _serve(
        self, context: Context, method: Callable[[Call], Awaitable[Any]], *, greets: bool = False
    ) -> Any:
        call = Call(context, self._daemon, _headers(context), ANYONE)
        self._running += 1
        try:
            return await self._answer(call, method, greets=greets)
        except Exception as error:
            found = list(leaves(error))
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        await self._fail(call, found)

    async def _answer(
        self, call: Call, method: Callable[[Call], Awaitable[Any]], *, greets: bool
    ) -> Any:
        if self._daemon.draining.is_set():
            raise UnavailableError("the server is draining")
        if not greets:
            call.principal = await self.authenticate(call.headers)
        return await method(call)

    async def _fail(self, call: Call, errors: list[BaseException]) -> NoReturn:
        """Tell the client of the error that says most."""
        told = [error for error in errors if isinstance(error, SplitArrowError)]
        if told:
            code, text = status_of(told[0], call.subject)
            self._log.info("call refused", code=code.name, dataset=call.subject, peer=call.peer)
        elif call.context.done():
            raise CancelledError  # the client is gone: whatever failed, nobody is to be told
        else:
            code, text = grpc.StatusCode.INTERNAL, "internal error; the server's log tells"
            self._log.error("call failed", exc_info=errors[0], dataset=call.subject, peer=call.peer)
        await call.context.abort(code, text)
        raise AssertionError  # abort raises

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Return who calls.

        Raises
        ------
        DeniedError
            If the headers do not say, or not credibly.
        """
        if isinstance(self._guard, OpenGuard):
            return self._guard.authenticate(headers)
        return await to_thread.run_sync(self._guard.authenticate, headers)


def _headers(context: Context) -> dict[str, str]:
    headers: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        headers[key] = value.decode("latin-1") if isinstance(value, bytes) else value
    if _ARROW_TOKEN in headers:
        headers.setdefault("authorization", f"Bearer {headers.pop(_ARROW_TOKEN)}")
    return headers
