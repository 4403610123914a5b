"""The garbage collector of a process that runs a server."""

from __future__ import annotations

import gc

import anyio
from anyio.abc import TaskGroup, TaskStatus

from splitarrow.server.signals import paused_collection, run_until_signalled


class Server:
    """A server that runs until it is drained."""

    def __init__(self) -> None:
        self.drained = anyio.Event()

    async def run(self, *, task_status: TaskStatus[object]) -> None:
        self.collects = gc.isenabled()
        task_status.started(None)
        await self.drained.wait()

    def drain(self) -> None:
        self.drained.set()

    cut = drain


def test_collections_begin_when_the_server_runs_without_what_it_has_loaded() -> None:
    found: list[tuple[bool, bool]] = []

    async def serve() -> bool:
        server = Server()

        def end(tasks: TaskGroup) -> None:
            found.append((gc.isenabled(), gc.get_freeze_count() > 0))
            server.drain()

        await run_until_signalled(server, [], end)
        return server.collects

    try:
        with paused_collection():
            assert not anyio.run(serve)
        assert found == [(True, True)]
        assert gc.isenabled()
    finally:
        gc.unfreeze()
