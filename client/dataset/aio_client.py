"""The asynchronous client of one control plane. Worker threads make its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from ...errors import ClosedError
from ...protocol.limits import DEFAULT_LIMITS, Limits
from ...protocol.request import Request
from ..rpc.info import DatasetInfo
from ..rpc.results import PublishResult, ShardUploadResult, UploadResult
from ..rpc.upload import Progress
from ..stream.memory_argument import find_allocator, move_to_memory
from .aio_dataset import AsyncDataset
from .aio_stream import AsyncDatasetStream
from .base_client import BaseClient
from .client import Client
from .read_plan import AUTO
from .threads import open_in_thread, run_in_thread

C = TypeVar("C", bound=BaseClient)


def _same(client: C) -> C:
    """Return a client that is connected already."""
    return client


class AsyncBaseClient(Generic[C]):
    """The asynchronous form of `BaseClient`: an async context manager.

    Parameters
    ----------
    connect : callable
        Returns the blocking client, when the context is entered.
    """

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._client: C | None = None

    async def __aenter__(self) -> Self:
        self._client = await open_in_thread(self._connect)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _entered(self) -> C:
        if self._client is None:
            raise ClosedError("the client is not connected; enter it with 'async with'")
        return self._client

    @property
    def uri(self) -> str:
        """The address of the control plane; several are separated by commas."""
        return self._entered.uri

    async def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """List the datasets that the caller may read; see `Client.datasets`."""
        return await run_in_thread(partial(self._entered.datasets, glob))

    async def describe(self, request: Request) -> DatasetInfo:
        """Describe the selection of a dataset that a request makes; see `Client.describe`."""
        return await run_in_thread(partial(self._entered.describe, request))

    async def info(self, name: str) -> DatasetInfo:
        """Describe a dataset; see `Client.info`."""
        return await run_in_thread(partial(self._entered.info, name))

    async def dataset(self, name: str) -> AsyncDataset:
        """Look up a dataset; see `Client.dataset`."""
        return AsyncDataset(self.read, await self.info(name))

    async def __aiter__(self) -> AsyncIterator[str]:
        for info in await self.datasets():
            yield info.name

    async def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset; see `Client.schema`."""
        return await run_in_thread(partial(self._entered.schema, name))

    async def count_rows(
        self,
        name: str,
        *,
        filter: Any = None,
        version: str | None = None,
        timeout: float = 600.0,
    ) -> dict[int, list[int]]:
        """Count the rows of each stored record batch; see `Client.count_rows`."""
        count = self._entered.count_rows
        return await run_in_thread(
            partial(count, name, filter=filter, version=version, timeout=timeout)
        )

    def read(
        self,
        name: str | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        filter: Any = None,
        limit: int | None = None,
        batch_rows: int | None = None,
        compression: str | None = None,
        format: str | None = None,
        transport: str = AUTO,
        validate: str | None = None,
        connect_timeout: float = 10.0,
        location_timeout: float = 2.0,
        stall_timeout: float | None = 30.0,
        prefetch_bytes: int | None = None,
        max_decoded_bytes: int = 1 << 30,
        require_transport: str | None = None,
        window_bytes: int = 256 << 20,
        parallel: int = 4,
        resume_attempts: int = 8,
        limits: Limits = DEFAULT_LIMITS,
        shards: Iterable[int] | None = None,
        batches: tuple[int, int] | None = None,
        rows: tuple[int, int] | None = None,
        version: str | None = None,
        memory: Any = None,
        sql: str | None = None,
    ) -> AsyncDatasetStream:
        """Open a dataset for reading; the parameters are those of `Client.read`.

        Returns
        -------
        AsyncDatasetStream
            A stream that connects when it is entered with ``async with``. Entering it raises the
            errors of `Client.read`.
        """
        stream = AsyncDatasetStream(
            partial(
                self._entered.read,
                name,
                columns=columns,
                filter=filter,
                limit=limit,
                batch_rows=batch_rows,
                compression=compression,
                format=format,
                transport=transport,
                validate=validate,
                connect_timeout=connect_timeout,
                location_timeout=location_timeout,
                stall_timeout=stall_timeout,
                prefetch_bytes=prefetch_bytes,
                max_decoded_bytes=max_decoded_bytes,
                require_transport=require_transport,
                window_bytes=window_bytes,
                parallel=parallel,
                resume_attempts=resume_attempts,
                limits=limits,
                shards=shards,
                batches=batches,
                rows=rows,
                version=version,
                memory=None if memory is None else find_allocator(memory),
                sql=sql,
            )
        )
        return move_to_memory(stream, memory)

    async def sql(self, query: str) -> pa.Table:
        """Return the result of a SELECT statement over datasets; see `Client.sql`."""
        return await run_in_thread(partial(self._entered.sql, query))

    async def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published; see `Client.drop`."""
        await run_in_thread(partial(self._entered.drop, name))

    async def status(self) -> dict[str, Any]:
        """Return the figures of the server; see `Client.status`."""
        return await run_in_thread(self._entered.status)

    def close(self) -> None:
        """Close all connections to control planes. Idempotent."""
        if self._client is not None:
            self._client.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments. The copy connects when its context is entered."""
        return type(self), (self._connect,)

    def __repr__(self) -> str:
        state = "not connected" if self._client is None else f"of {self._client.uri}"
        return f"<splitarrow.{type(self).__name__} {state}>"


class AsyncClient(AsyncBaseClient[Client]):
    """The asynchronous form of `Client`: an async context manager.

    `splitarrow.aio.connect` returns it. It connects when the context is entered.
    """

    @classmethod
    def of(cls, client: Client) -> AsyncClient:
        """Return the asynchronous form of a client that is connected."""
        wrapper = cls(partial(_same, client))
        wrapper._client = client
        return wrapper

    async def put(
        self,
        name: str,
        data: Any,
        *,
        schema: pa.Schema | None = None,
        progress: Progress | None = None,
    ) -> UploadResult:
        """Upload a dataset; see `Client.put`."""
        return await run_in_thread(
            partial(self._entered.put, name, data, schema=schema, progress=progress)
        )

    async def put_shard(
        self,
        name: str,
        data: Any,
        *,
        job: str,
        ordinal: int,
        schema: pa.Schema | None = None,
        compression: str | None = None,
        progress: Progress | None = None,
    ) -> ShardUploadResult:
        """Upload a shard of a dataset; see `Client.put_shard`."""
        return await run_in_thread(
            partial(
                self._entered.put_shard,
                name,
                data,
                job=job,
                ordinal=ordinal,
                schema=schema,
                compression=compression,
                progress=progress,
            )
        )

    async def publish(
        self,
        name: str,
        *,
        job: str,
        ordinals: Iterable[int],
        shards_total: int | None = None,
        snapshot: str | None = None,
        mode: str = "overwrite",
        schema: pa.Schema | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> PublishResult:
        """Commit the shards of a job as a version of the dataset; see `Client.publish`."""
        return await run_in_thread(
            partial(
                self._entered.publish,
                name,
                job=job,
                ordinals=ordinals,
                shards_total=shards_total,
                snapshot=snapshot,
                mode=mode,
                schema=schema,
                properties=properties,
            )
        )

    async def discard(self, name: str, job: str) -> None:
        """Remove the shards of a job that was not published; see `Client.discard`."""
        await run_in_thread(partial(self._entered.discard, name, job))

    async def act(self, action: str, body: bytes = b"", *, dataset: str | None = None) -> bytes:
        """Perform an action of the Flight service; see `Client.act`."""
        return await run_in_thread(partial(self._entered.act, action, body, dataset=dataset))
