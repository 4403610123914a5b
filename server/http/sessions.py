"""Reads and uploads over HTTP as sessions of the daemon, on its event loop.

The HTTP listener has a thread and an event loop of its own, which answers health checks even while
the daemon is busy. What uses the limits, threads and memory that all readers share runs on the
event loop of the daemon. It is one of the daemon's sessions, so that a daemon that drains waits
for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import anyio

from ...errors import ConnectionLostError, SplitArrowError, UnavailableError, exhausted_error
from ...protocol.request import Request
from ..caller import Caller
from ..chunks import run_stream
from ..context import ServerContext
from ..refusals import flatten_errors
from ..streams import RunningStream

_T = TypeVar("_T")


TRANSPORT = "http"
"""The name of this transport."""


def run_http_stream(caller: Caller, request: Request) -> AbstractContextManager[RunningStream]:
    """Register a stream over HTTP while the context lasts; see `run_stream`."""
    requires_token = caller.server.access.requires_token
    return run_stream(
        caller.server,
        request,
        principal=caller.principal.name,
        peer=caller.peer,
        transport=TRANSPORT,
        # There is no ticket. As with one, the streams of a principal are limited.
        signed_ticket=secrets.token_bytes(16) if requires_token else None,
        is_lost=_is_lost,
    )


def _is_lost(error: BaseException) -> bool:
    return any(isinstance(each, ConnectionLostError) for each in flatten_errors(error))


async def run_session(context: ServerContext, function: Callable[[], Awaitable[_T]]) -> _T:
    """Run a function on the event loop of the daemon, and return its result.

    If the calling task is cancelled, the function is, too. Raises `UnavailableError` if the daemon
    has ended, or ends before the function does.
    """
    future: Future[_T] = Future()
    scope: anyio.CancelScope | None = None

    async def run() -> None:
        nonlocal scope
        try:
            with anyio.CancelScope() as scope:
                if not future.cancelled():
                    result = await function()
                    with suppress(InvalidStateError):
                        future.set_result(result)
        except Exception as error:
            with suppress(InvalidStateError):
                future.set_exception(_choose_error(error))
        finally:
            with suppress(InvalidStateError):
                future.set_exception(_ended())

    async def start() -> None:
        try:
            context.sessions.start_soon(run)
        except RuntimeError:  # the daemon accepts no sessions any more
            with suppress(InvalidStateError):
                future.set_exception(_ended())

    def cancel() -> None:
        if scope is not None:
            scope.cancel()

    coroutine = start()
    try:
        asyncio.run_coroutine_threadsafe(coroutine, context.loop)
    except RuntimeError:  # the event loop is closed
        coroutine.close()
        raise _ended() from None
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.cancel()
        with suppress(RuntimeError):
            context.loop.call_soon_threadsafe(cancel)
        raise


async def run_elsewhere(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine that another thread's event loop runs."""
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise _ended() from None
    return await asyncio.wrap_future(future)


def _choose_error(error: Exception) -> BaseException:
    """Return the first of our own errors in a group, or else the first one."""
    errors = [exhausted_error(each) or each for each in flatten_errors(error)]
    return next((each for each in errors if isinstance(each, SplitArrowError)), errors[0])


def _ended() -> UnavailableError:
    return UnavailableError("the server has ended; connect to another one")
