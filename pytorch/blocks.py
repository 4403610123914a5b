"""Reading blocks ahead of the batches that need them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from ..client.connect import AnyClient
from ..client.dataset.backoff import draw_pause
from ..client.dataset.replicas import TRANSIENT
from ..errors import DatasetError
from .order import EpochOrder, Piece
from .plan import Block, DatasetPlan

_Rows = pa.RecordBatch | pa.Table
CONNECT_ATTEMPTS = 8
"""The attempts to start reading a block. `Client.read` itself continues reads that break."""


class BatchPlan(NamedTuple):
    """A batch that a worker delivers."""

    number: int
    """The number of the batch in the rank's share."""
    lane: int
    """The lane that it belongs to."""
    pieces: list[Piece]
    """Its rows."""


class BlockReader:
    """Reads the blocks of an epoch, `depth` at a time and ahead of their use: a context manager.

    A block stays in memory while a lane is in it.

    Parameters
    ----------
    client : Client or ClusterClient
        The client that reads. The caller closes it.
    plan : DatasetPlan
        The blocks.
    order : EpochOrder
        The order of the rows.
    depth : int
        The number of blocks to read ahead of their use, and the number of threads.
    """

    def __init__(self, client: AnyClient, plan: DatasetPlan, order: EpochOrder, depth: int) -> None:
        self._client = client
        self._plan = plan
        self._order = order
        self._depth = depth
        self._threads = ThreadPoolExecutor(depth, "splitarrow-block")
        self._rows: dict[int, Future[_Rows]] = {}
        self._unused: set[int] = set()
        self._users: Counter[int] = Counter()
        self._lanes: dict[int, int] = {}
        self._stopped = threading.Event()

    def read(self, batches: Iterator[BatchPlan]) -> Iterator[tuple[BatchPlan, pa.RecordBatch]]:
        """Yield each batch with its rows.

        Raises
        ------
        SplitArrowError
            If a block cannot be read.
        """
        ahead: deque[BatchPlan] = deque()
        while True:
            while len(self._unused) < self._depth and (batch := next(batches, None)) is not None:
                ahead.append(batch)
                self._request(batch)
            if not ahead:
                return
            batch = ahead.popleft()
            self._unused.difference_update(piece.block for piece in batch.pieces)
            parts = [
                self._rows[piece.block].result().slice(piece.begin, piece.end - piece.begin)
                for piece in batch.pieces
            ]
            self._release(batch)
            yield batch, _join(parts)

    def _request(self, batch: BatchPlan) -> None:
        """Start reading the blocks of a batch, unless they are in memory."""
        for block in {piece.block for piece in batch.pieces}:
            self._users[block] += 1
            if block not in self._rows:
                self._unused.add(block)
                self._rows[block] = self._threads.submit(self._read_block, block)

    def _release(self, batch: BatchPlan) -> None:
        """Drop the blocks that neither a lane nor a batch ahead is in any more."""
        last = batch.pieces[-1]
        is_finished = last.end == self._plan.blocks[last.block].rows
        left = self._lanes.pop(batch.lane, None)
        if not is_finished:
            self._lanes[batch.lane] = last.block
            self._users[last.block] += 1
        for block in {piece.block for piece in batch.pieces}:
            self._drop(block)
        if left is not None:
            self._drop(left)

    def _drop(self, block: int) -> None:
        self._users[block] -= 1
        if not self._users[block]:
            del self._users[block], self._rows[block]

    def _read_block(self, index: int) -> _Rows:
        """Return the rows of a block, in the order of the epoch.

        A record batch is sliced in a fraction of the time that a table takes.
        """
        block = self._plan.blocks[index]
        table = self._fetch(block)
        if table.num_rows != block.rows:
            raise DatasetError(
                f"record batches {block.first}:{block.end} of shard {block.shard} have "
                f"{table.num_rows} rows; expected {block.rows}",
                stream=self._plan.selection.name,
            )
        permutation = self._order.permutation(index)
        if permutation is None:
            batches = table.to_batches()
            return batches[0] if len(batches) == 1 else table
        (batch,) = table.unify_dictionaries().combine_chunks().to_batches()
        return batch.take(permutation)

    def _fetch(self, block: Block) -> pa.Table:
        selection = self._plan.selection
        for attempt in range(CONNECT_ATTEMPTS - 1):
            try:
                return selection.read(self._client, block)
            except TRANSIENT:
                if self._stopped.wait(draw_pause(attempt)):
                    raise
        return selection.read(self._client, block)

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._threads.shutdown(cancel_futures=True)
        self._rows.clear()


def _join(parts: list[_Rows]) -> pa.RecordBatch:
    """Return rows as one record batch, without a copy if they are consecutive in one."""
    first = parts[0]
    if len(parts) == 1 and isinstance(first, pa.RecordBatch):
        return first
    table = pa.concat_tables(
        pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        for part in parts
    )
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.unify_dictionaries().combine_chunks().to_batches()
    return batches[0]
