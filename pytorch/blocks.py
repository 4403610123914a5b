"""Reading blocks ahead of the batches that need them, and the rows of blocks that are in memory."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import accumulate, groupby, islice
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from ..client.connect import AnyClient
from ..client.dataset.endpoints import TRANSIENT, draw_pause
from ..errors import SplitArrowError
from .metrics import Stage, count, inherit_recorder
from .order import EpochOrder, Piece
from .plan import BlockBatches, Categories, DatasetPlan
from .record_batches import join_batches, take_rows

if TYPE_CHECKING:
    from .device_tensors import DeviceRows
    from .tensors import BatchTensors, TensorOptions, Tensors

CONNECT_ATTEMPTS = 8
"""The attempts to start reading a block. `Client.read` itself continues reads that break."""
_READ_BYTES = 32 << 20
"""The largest size of blocks that are read together, in bytes, of all lanes of a worker."""
_MAPPED_READ_BYTES = 128 << 20
"""The same over shared memory, where a read takes no memory of the worker."""
_GROWTH = 4
_MAX_GROWTH = 16
_Key = tuple[int, int]
"""The number of a source, and the index of a block."""
_MAX_PLANNED = 2048
"""The batches that are planned ahead to find out which blocks are needed next."""


class BlockRows:
    """The rows of a block, at least one, in the order of the epoch. Any thread may use it."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))
        self._tensors: dict[int, BatchTensors] = {}
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._ends[-1]

    def slice(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `begin` to `end`, in slices of the record batches."""
        index = bisect_right(self._ends, begin)
        while begin < end:
            batch, last = self._batches[index], min(end, self._ends[index])
            yield batch.slice(begin - self._ends[index] + batch.num_rows, last - begin)
            begin = last
            index += 1

    def tensors(
        self, begin: int, end: int, options: TensorOptions, categories: Categories
    ) -> Tensors | None:
        """Return the rows from `begin` to `end` as tensors; None if in several record batches."""
        from .tensors import BatchTensors  # needs PyTorch

        index = bisect_right(self._ends, begin)
        if end > self._ends[index]:
            return None
        batch = self._batches[index]
        with self._lock:
            tensors = self._tensors.get(index)
            if tensors is None:
                tensors = self._tensors[index] = BatchTensors(batch, options, categories)
        first = self._ends[index] - batch.num_rows
        return tensors.slice(begin - first, end - first)


class Part(NamedTuple):
    """Consecutive rows of a block in memory."""

    block: BlockRows | DeviceRows
    """The block."""
    begin: int
    """The first row."""
    end: int
    """The row after the last."""


class Rows:
    """The rows of one batch: one or more parts of blocks, in order."""

    __slots__ = ("gaps", "parts")

    def __init__(self, parts: list[Part], gaps: Mapping[int, int] | None = None) -> None:
        self.parts = parts
        """The parts."""
        self.gaps = gaps or {}
        """The number of rows that could not be read before each part, by its index."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(part.end - part.begin for part in self.parts)

    def split(self, counts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Rows]]:
        """Yield a key and the rows of so many parts, for pairs of a key and a number of parts.

        Parts that follow each other with the same key are together.
        """
        parts = iter(self.parts)
        for key, members in groupby(counts, key=itemgetter(0)):
            yield key, Rows(list(islice(parts, sum(count for _, count in members))))

    def to_record_batch(self) -> pa.RecordBatch:
        """Return the rows as one record batch, without a copy if they are consecutive in one.

        They must be in host memory.
        """
        parts: Any = self.parts
        batches = [each for part in parts for each in part.block.slice(part.begin, part.end)]
        if len(batches) == 1:
            return batches[0]
        with Stage("join"):
            return join_batches(batches)

    def to_tensors(self, options: TensorOptions, categories: Categories) -> Tensors:
        """Return the rows as tensors. Those of consecutive batches may share a storage."""
        from .tensors import convert_batch  # needs PyTorch

        block, begin, end = self.parts[0]
        if not isinstance(block, BlockRows):
            from .device_tensors import convert_parts

            return convert_parts(cast("Any", self.parts), options)
        if len(self.parts) == 1:
            tensors = block.tensors(begin, end, options, categories)
            if tensors is not None:
                return tensors
        return convert_batch(self.to_record_batch(), options, categories)


class Run(NamedTuple):
    """Rows of a batch that come from one lane."""

    source: int
    """The number of the `BlockSource`."""
    lane: int
    """The lane of the source. Its rows are in the order of the epoch."""
    pieces: list[Piece]
    """The rows."""
    open_blocks: frozenset[int] = frozenset()
    """Blocks that the lane has left, of which later batches may need rows."""


class BatchPlan(NamedTuple):
    """A batch that a worker delivers."""

    number: int
    """The number of the batch in the rank's share."""
    runs: list[Run]
    """Its rows."""
    detail: Any = None
    """What the conversion needs to know of the batch beyond its rows."""


class _Read:
    """Blocks that are read together, each of which can be used as soon as it has arrived."""

    __slots__ = ("_blocks",)

    def __init__(self, first: int, end: int) -> None:
        self._blocks: dict[int, Future[BlockRows | DeviceRows | None]] = {
            index: Future() for index in range(first, end)
        }

    def run(self, source: BlockSource) -> None:
        """Read the blocks. Those that could not be read together are left to `wait`."""
        index, end = min(self._blocks), max(self._blocks) + 1
        try:
            for rows in source.read_blocks(index, end):
                self._blocks[index].set_result(rows)
                index += 1
        except BaseException as error:
            self._blocks[index].set_exception(error)
            index += 1
        for missing in range(index, end):
            self._blocks[missing].set_result(None)

    def wait(
        self, block: int, read_alone: Callable[[int], BlockRows | DeviceRows]
    ) -> BlockRows | DeviceRows:
        """Wait for a block, and return it; raise the error of the read if it failed.

        `read_alone` reads a block that could not be read together with the others.
        """
        found = self._blocks[block].result()
        if found is None:
            found = read_alone(block)
            self._blocks[block] = Future()
            self._blocks[block].set_result(found)
        return found

    def drop(self, block: int) -> None:
        """Drop a block that was used."""
        del self._blocks[block]


class BlockSource:
    """The blocks of one dataset in the order of one epoch. Any thread may read them.

    Without shuffling, blocks of one shard that follow each other are read together, up to a size.
    """

    def __init__(self, client: AnyClient, plan: DatasetPlan, order: EpochOrder, lanes: int) -> None:
        self._client = client
        self._plan = plan
        self._order = order
        self._lanes = lanes
        self._is_mapped = False
        self._reads_together = not order.is_shuffled
        self._crosses_shards = bool(plan.starts)
        self._row_bytes = _find_row_bytes(plan.schema)
        self._started = 0
        self._stopped = threading.Event()

    def name(self, block: int) -> str:
        """Return a name of a block, for messages."""
        shard, first, end, _ = self._plan.blocks[block]
        return f"record batches {first}:{end} of shard {shard} of {self._plan.selection.name!r}"

    def is_last(self, piece: Piece) -> bool:
        """Return whether a block ends with a piece."""
        return piece.end == self._plan.blocks[piece.block].rows

    def find_end(
        self, first: int, needed: Iterator[int], depth: int, known: Callable[[int], bool]
    ) -> int:
        """Return the end of the blocks to read together with the first one.

        `needed` are the blocks that the lane needs, from the first one on, with repetitions. The
        blocks for which `known` is true are read already. `depth` is the number of threads.
        """
        blocks, end = self._plan.blocks, first + 1
        # The first reads are small, so that threads share a small dataset.
        most = (
            len(blocks) if self._is_mapped else _GROWTH ** min(self._started // depth, _MAX_GROWTH)
        )
        self._started += 1
        if not self._reads_together or self._row_bytes is None:
            return end
        most_bytes = _MAPPED_READ_BYTES if self._is_mapped else _READ_BYTES
        room = most_bytes / self._lanes / self._row_bytes - blocks[first].rows
        for block in needed:
            if block < end:
                continue
            room -= blocks[block].rows
            is_near = block == end and (
                self._crosses_shards or blocks[block].shard == blocks[first].shard
            )
            if not is_near or room < 0 or end - first == most or known(block):
                break
            end += 1
        return end

    def read_blocks(self, first: int, end: int) -> Generator[BlockRows | DeviceRows]:
        """Yield the rows of blocks that follow each other, in the order of the epoch.

        If they cannot be read together, the last one is the first that could not: it was read
        alone. The others are read when they are needed, so that leases for one of them are enough.
        Raises `SplitArrowError` if a block cannot be read.
        """
        try:
            for rows in self._read(first, end):
                first += 1
                yield rows
                del rows  # its memory may be leased
        except SplitArrowError:
            if end - first <= 1:
                raise
            count("retries")
            if self._plan.blocks[first].shard != self._plan.blocks[end - 1].shard:
                self._crosses_shards = False
            else:
                self._reads_together = False
            yield self.read_alone(first)

    def read_alone(self, index: int) -> BlockRows | DeviceRows:
        """Return the rows of a block; raise `SplitArrowError` if it cannot be read."""
        (rows,) = self._read(index, index + 1)
        return rows

    def _read(self, first: int, end: int) -> Generator[BlockRows | DeviceRows]:
        """Yield the rows of blocks, over new connections if some break."""
        attempt = 0
        while first < end and not self._stopped.is_set():
            try:
                for found in self._read_once(first, end):
                    yield self._arrange(first, found.batches)
                    del found
                    first += 1
                    attempt = 0
            except TRANSIENT:
                attempt += 1
                if attempt == CONNECT_ATTEMPTS:
                    raise
                count("retries")
                if self._stopped.wait(draw_pause(attempt - 1)):
                    raise

    def _read_once(self, first: int, end: int) -> Generator[BlockBatches]:
        count("reads")
        resumed = 0
        with closing(self._plan.read(self._client, self._plan.blocks[first:end])) as blocks:
            while True:
                with Stage("read"):
                    found = next(blocks, None)
                if found is None:
                    return
                self._is_mapped = found.is_mapped
                if self._row_bytes is None:
                    self._row_bytes = max(1.0, found.nbytes / found.rows)
                count("read_rows", found.rows)
                count("read_bytes", found.nbytes)
                count("retries", found.resumed - resumed)
                resumed = found.resumed
                yield found
                del found

    def _arrange(self, index: int, batches: list[Any]) -> BlockRows | DeviceRows:
        """Return the rows of a block in the order of the epoch."""
        with Stage("shuffle"):
            permutation = self._order.permutation(index)
            if not isinstance(batches[0], pa.RecordBatch):
                from .device_tensors import DeviceRows  # needs PyTorch

                return DeviceRows(batches, permutation)
            if permutation is None:
                return BlockRows(batches)
            return BlockRows([take_rows(join_batches(batches), permutation)])

    def stop(self) -> None:
        """End the pauses between attempts."""
        self._stopped.set()


class BlockReader:
    """Reads the blocks of an epoch ahead of their use: a context manager.

    A block stays in memory while a lane is in it. The caller closes the clients of the sources. If
    there is a `report`, it is called for rows that cannot be read, and they are left out.
    """

    def __init__(
        self,
        find_source: Callable[[int], BlockSource],
        depth: int,
        report: Callable[[int, Exception, str], None] | None = None,
    ) -> None:
        self._report = report
        self._sources: dict[int, BlockSource] = {}
        self._find_source = find_source
        self._depth = depth
        self._threads = ThreadPoolExecutor(depth, "splitarrow-block", inherit_recorder())
        self._batches: Iterator[BatchPlan] = iter(())
        self._planned: deque[BatchPlan] = deque()
        self._reads: dict[_Key, _Read] = {}
        self._unused: set[_Read] = set()
        self._users: Counter[_Key] = Counter()
        self._lanes: dict[tuple[int, int], Collection[_Key]] = {}

    def read(self, batches: Iterator[BatchPlan]) -> Iterator[tuple[BatchPlan, Rows]]:
        """Yield each batch with its rows; raise `SplitArrowError` if a block cannot be read."""
        self._batches = batches
        ahead: deque[BatchPlan] = deque()
        while True:
            with Stage("plan"):
                while len(self._unused) < self._depth and (batch := self._take_plan()) is not None:
                    ahead.append(batch)
                    self._request(batch)
            if not ahead:
                return
            batch = ahead.popleft()
            parts: list[Part] = []
            gaps: Counter[int] = Counter()
            with Stage("wait"):
                for run in batch.runs:
                    source = self._source(run.source)
                    for block, begin, end in run.pieces:
                        read = self._reads[run.source, block]
                        self._unused.discard(read)
                        try:
                            parts.append(Part(read.wait(block, source.read_alone), begin, end))
                        except SplitArrowError as error:
                            if self._report is None:
                                raise
                            place = f"{end - begin} rows of {source.name(block)}"
                            self._report(end - begin, error, place)
                            gaps[len(parts)] += end - begin
            self._release(batch)
            yield batch, Rows(parts, gaps)

    def _source(self, number: int) -> BlockSource:
        source = self._sources.get(number)
        if source is None:
            source = self._sources[number] = self._find_source(number)
        return source

    def _take_plan(self) -> BatchPlan | None:
        return self._planned.popleft() if self._planned else next(self._batches, None)

    def _request(self, batch: BatchPlan) -> None:
        """Start reading the blocks of a batch, unless they are in memory."""
        hits = 0
        for run in batch.runs:
            number, source = run.source, self._source(run.source)
            for block in dict.fromkeys(piece.block for piece in run.pieces):
                self._users[number, block] += 1
                if (number, block) not in self._reads:
                    needed = self._list_blocks(run, block)
                    end = source.find_end(
                        block, needed, self._depth, partial(self._is_read, number)
                    )
                    read = _Read(block, end)
                    self._threads.submit(read.run, source)
                    self._unused.add(read)
                    self._reads.update(((number, each), read) for each in range(block, end))
                else:
                    hits += 1
        count("block_hits", hits)

    def _is_read(self, number: int, block: int) -> bool:
        return (number, block) in self._reads

    def _list_blocks(self, run: Run, first: int) -> Iterator[int]:
        """Yield the blocks that the lane of a run needs from `first` on, with repetitions."""
        yield from (piece.block for piece in run.pieces if piece.block >= first)
        for number in range(_MAX_PLANNED):
            if number == len(self._planned):
                plan = next(self._batches, None)
                if plan is None:
                    return
                self._planned.append(plan)
            for other in self._planned[number].runs:
                if (other.source, other.lane) == (run.source, run.lane):
                    yield from (piece.block for piece in other.pieces)

    def _release(self, batch: BatchPlan) -> None:
        """Drop the blocks that neither a lane nor a batch ahead is in any more."""
        for run in batch.runs:
            last, lane = run.pieces[-1], (run.source, run.lane)
            left = self._lanes.pop(lane, ())
            held = {(run.source, block) for block in run.open_blocks}.intersection(self._reads)
            if not self._source(run.source).is_last(last):
                held.add((run.source, last.block))
            if held:
                self._lanes[lane] = held
                self._users.update(held)
            for block in {piece.block for piece in run.pieces}:
                self._drop((run.source, block))
            for key in left:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._reads.pop(key).drop(key[1])

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for source in self._sources.values():
            source.stop()
        self._threads.shutdown(cancel_futures=True)
        self._reads.clear()


def _find_row_bytes(schema: pa.Schema) -> float | None:
    """Return the size of a row, or None if it depends on the row."""
    try:
        return max(1.0, sum(field.type.bit_width for field in schema) / 8)
    except ValueError:
        return None
