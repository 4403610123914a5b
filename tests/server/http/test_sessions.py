"""Functions that run on the event loop of the daemon, for a caller on another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import anyio
import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import DatasetError, UnavailableError
from splitarrow.server.http.sessions import run_session


@pytest.fixture
def server() -> Iterator[splitarrow.Server]:
    with splitarrow.serve({"t": pa.table({"n": [1]})}) as server:
        yield server


def run(server: splitarrow.Server, function: Callable[[], Awaitable[object]]) -> object:
    return asyncio.run(run_session(server._daemon.context, function))


def test_a_session_runs_on_the_thread_of_the_daemon(server: splitarrow.Server) -> None:
    async def find_thread() -> int:
        return threading.get_ident()

    assert run(server, find_thread) != threading.get_ident()


def test_the_first_of_our_own_errors_is_raised(server: splitarrow.Server) -> None:
    async def fail() -> None:
        raise ExceptionGroup("both", [ValueError("other"), DatasetError("ours")])

    with pytest.raises(DatasetError, match="ours"):
        run(server, fail)


def test_cancelling_the_caller_cancels_the_session(server: splitarrow.Server) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def cancel() -> None:
        session = asyncio.ensure_future(run_session(server._daemon.context, wait))
        await asyncio.to_thread(begun.wait, 30)
        session.cancel()
        with pytest.raises(asyncio.CancelledError):
            await session
        assert await asyncio.to_thread(ended.wait, 30)

    asyncio.run(cancel())


def test_a_daemon_that_ends_ends_its_sessions() -> None:
    async def begin() -> None:
        server = splitarrow.serve({"t": pa.table({"n": [1]})}, drain_seconds=0)
        context = server._daemon.context
        session = asyncio.ensure_future(run_session(context, anyio.sleep_forever))
        await run_session(context, anyio.lowlevel.checkpoint)
        await asyncio.to_thread(server.close)
        with pytest.raises(UnavailableError, match="has ended"):
            await session
        with pytest.raises(UnavailableError, match="has ended"):
            await run_session(context, anyio.sleep_forever)

    asyncio.run(begin())
