"""`StreamDataset`: a dataset of daemons as batches of tensors, for PyTorch's loaders."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, TypeVar, cast

import pyarrow as pa

from ..client.connect import connect
from ..errors import UsageError
from ..protocol.uri import DataUri
from ..transport.registry import list_schemes
from ..transport.tls_options import TlsOptions
from .blocks import BatchPlan, BlockReader, Rows
from .device_tensors import (
    check_device,
    check_device_schema,
    find_memory_device,
    move,
    wait_for_stream,
)
from .order import Division, EpochOrder, Even, Share
from .plan import DatasetPlan, Selection, plan_dataset
from .position import Order, Position, Progress, find_dataset_state
from .shared_batch import SharedBatch, pass_regions
from .tensors import Decode, OnNull, Strings, TensorOptions, check_schema, convert_batch, torch

DEFAULT_INTERLEAVE = 24
"""The lanes of a shuffled dataset. Many numbers of workers divide it: 1, 2, 3, 4, 6, 8, 12, 24."""
_OTHER_TRANSPORTS = ("auto", "flight")
_IterableDataset: Any = torch.utils.data.IterableDataset
Item = TypeVar("Item")
Result = TypeVar("Result")


def check_columns(columns: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns to read, or None for all; raise `UsageError` if there are none."""
    if columns is None:
        return None
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise UsageError("columns is empty; expected one column or more, or None for all")
    return names


def check_seed(seed: Any) -> int:
    """Return a seed as an integer; raise `UsageError` if it is not one."""
    try:
        return operator.index(seed)
    except TypeError:
        raise UsageError(f"seed is {seed!r}; expected an integer") from None


def check_transport(transport: str) -> str:
    """Return the name of a transport; raise `UsageError` if none has it."""
    known = [*_OTHER_TRANSPORTS, *list_schemes()]
    if transport not in known:
        raise UsageError(f"transport is {transport!r}; expected {', '.join(known)}")
    return transport


def find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks.

    Raises `UsageError` if one of them is given without the other, or the rank does not exist.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size belong together; pass both or neither")
    if rank is None or world_size is None:
        rank, world_size = _detect_rank()
    if not 0 <= rank < world_size:
        raise UsageError(f"rank is {rank}; expected 0 to {world_size - 1} for {world_size} ranks")
    return rank, world_size


def _detect_rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _read_number("RANK", 0), _read_number("WORLD_SIZE", 1)


def _read_number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise UsageError(f"the variable {name} is {text!r}; expected a number")
    return int(text)


def map_in_threads(
    function: Callable[[Item], Result], items: Iterator[Item], threads: int
) -> Generator[Result]:
    """Yield the results of a function in the order of the items.

    The caller's thread takes the items, at most `threads` ahead, and calls the function itself if
    `threads` is 0. Exceptions arrive in order. Closing the generator waits for the calls that are
    running, and drops the others.
    """
    if not threads:
        for item in items:
            result = function(item)
            del item  # it may refer to leased memory
            yield result
            del result
        return
    pool = ThreadPoolExecutor(threads, "splitarrow-convert")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            del item
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class StreamDataset(_IterableDataset):
    """A dataset of one or more daemons, as batches of tensors, for PyTorch's loaders.

    Use it with ``batch_size=None``: it yields whole batches. Over all ranks and workers, each row
    is delivered exactly once in an epoch. The order depends on the seed and the epoch, not on the
    number of workers. It can be pickled. A batch is a dict of tensors, with lists for texts and for
    tensors of different shapes. Lists become their values and offsets for each level, from
    ``NAME.offsets`` to ``NAME.offsets.1`` and so on: a nested tensor has one ragged dimension.

    Parameters
    ----------
    uri : str or sequence of str
        The control planes, as in `splitarrow.connect`.
    name : str
        The dataset.
    columns : str or sequence of str, optional
        The columns to read. `None` reads all.
    filter : str, tuples, or expression, optional
        The rows to read, as in `Client.read`. The daemon counts the rows that it selects when the
        dataset is made.
    batch_rows : int
        The number of rows in a batch. The last batch of an epoch may have fewer.
    shuffle : bool
        Whether to shuffle the blocks of the dataset, and the rows in each block. Without it, the
        rows of a rank are in the order of the dataset.
    seed : int
        It determines the order. All ranks need the same one.
    window_rows : int
        The number of rows that are read and shuffled together: a block has consecutive record
        batches of one shard with at least as many rows.
    interleave : int, optional
        The number of positions of the dataset that batches come from in turn. If the number of
        workers divides it, each row crosses the network once; otherwise several workers read the
        same blocks. The default is 24 with `shuffle`, and otherwise 1.
    rank, world_size : int, optional
        The rank of this process and the number of ranks. The default is that of
        ``torch.distributed``, then that of the variables RANK and WORLD_SIZE, then 0 and 1.
    even : {"drop", "pad", "uneven"}
        What happens to the rows that remain when all ranks have the same number: they are left out,
        or rows are repeated so that all ranks have as many, or some ranks get one row more.
    on_null : {"error", "mask", "fill"}
        What happens to nulls. ``error`` raises. ``mask`` adds a tensor ``NAME.mask`` for each
        column that may have nulls, which is true where there is a value. ``fill`` takes 0, NaN or
        an empty value.
    strings : {"list", "bytes"}
        Whether texts and binary values become a list, or a tensor of bytes with ``NAME.offsets``.
    categories : mapping of str to sequence, optional
        All values of dictionary columns. The default are those of the first record batch of each
        shard.
    decode : {"image"} or mapping of str to {"image"}, optional
        Decodes the images in all binary columns, or in those of a mapping such as
        ``{"picture": "image"}``, with torchvision or else Pillow. A column becomes a list of
        tensors of uint8: channels (RGB), height, width. A null is an image without pixels.
    transform : callable, optional
        Receives each ``pyarrow.RecordBatch``, and returns the one to convert.
    collate : callable, optional
        Receives each dict of tensors, and returns what the dataset yields.
    device : str or torch.device, optional
        Where to move the tensors. It needs a loader without workers.
    version : str, optional
        The version of the dataset. `None` takes the current one. It does not change afterwards.
    token, tls
        As in `splitarrow.connect`.
    transport : str
        As in `Client.read`.
    prefetch_blocks : int
        The number of reads of each worker that are ahead of their use, each in a thread. A read is
        one block, or several that follow each other if `shuffle` is off.
    threads : int
        The number of threads that convert batches, and call `transform` and `collate`, ahead of the
        training loop. As many reads are ahead at least. With 0, the thread that iterates
        converts. The order and the state do not depend on it.
    memory : str, PinnedMemory, CudaMemory or Allocator, optional
        Where record batches are received; see `splitarrow.open`. In host memory, a batch whose
        rows are consecutive in one record batch stays there, and all others are put together in
        pageable memory. A loader with spawned workers needs ``"pinned"``, or one that can be
        pickled. With ``"cuda:0"``, the tensors are on the device, which shuffles and joins rows
        itself. That needs a loader without workers, columns of fixed width, and no `transform`.

    Raises
    ------
    UsageError
        If an argument is invalid, or a column does not become a tensor.
    SplitArrowError
        As `Client.read` does.
    """

    def __init__(
        self,
        uri: str | Sequence[str],
        name: str,
        *,
        columns: str | Sequence[str] | None = None,
        filter: Any = None,
        batch_rows: int = 4096,
        shuffle: bool = False,
        seed: int = 0,
        window_rows: int = 65536,
        interleave: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        even: Even = "drop",
        on_null: OnNull = "error",
        strings: Strings = "list",
        categories: Mapping[str, Sequence[Any]] | None = None,
        decode: Decode | None = None,
        transform: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
        collate: Callable[[dict[str, Any]], Any] | None = None,
        device: Any = None,
        version: str | None = None,
        token: str | None = None,
        tls: TlsOptions | None = None,
        transport: str = "auto",
        prefetch_blocks: int = 2,
        threads: int = 0,
        memory: Any = None,
    ) -> None:
        super().__init__()
        if interleave is None:
            interleave = DEFAULT_INTERLEAVE if shuffle else 1
        for label, value in (("window_rows", window_rows), ("prefetch_blocks", prefetch_blocks)):
            if value < 1:
                raise UsageError(f"{label} is {value}; expected 1 or more")
        if threads < 0:
            raise UsageError(f"threads is {threads}; expected 0 or more")
        self.rank, world_size = find_rank(rank, world_size)
        self._division = Division(world_size, batch_rows, interleave, even)
        self._connect = partial(connect, cast("str | DataUri", uri), token, tls=tls)
        self._tensor_options = TensorOptions(on_null, strings, decode)
        self._transform = transform
        self._collate = collate
        self._device = check_device(device)
        self._prefetch_blocks = max(prefetch_blocks, threads)
        self._threads = threads
        self._seed = check_seed(seed)
        self._shuffle = shuffle
        options = {"transport": check_transport(transport)}
        selection = Selection(name, check_columns(columns), filter, version or "", options)
        self._memory_device = find_memory_device(memory)
        if self._memory_device is not None and transform is not None:
            raise UsageError(
                "transform needs record batches in host memory; pass collate to change tensors on "
                f"the device, or device={str(self._memory_device)!r} in place of memory"
            )
        plan = plan_dataset(self._connect, selection, window_rows, categories or {})
        self._plan = plan.with_options(memory=memory)
        if transform is None:
            check_schema(self._plan.schema, self._tensor_options, self._plan.categories)
        if self._memory_device is not None:
            check_device_schema(self._plan.schema, str(self._memory_device))
        # Workers that persist get a new epoch through shared memory.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._resumed: Position | None = None
        self._next_batch: int | None = None
        """Where this worker of a loader continues, if that follows from its own state."""
        self._progress: Progress | None = None

    @property
    def plan(self) -> DatasetPlan:
        """The blocks of the dataset: what is read at a time."""
        return self._plan

    @property
    def version(self) -> str:
        """The version of the dataset. Pass it to all ranks if the dataset may change meanwhile."""
        return self._plan.selection.version

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        return self._plan.schema

    @property
    def categories(self) -> dict[str, list[Any]]:
        """The values that the codes of each dictionary column refer to."""
        return {name: values.to_pylist() for name, values in self._plan.categories.items()}

    @property
    def rows(self) -> int:
        """The number of rows in an epoch, of all ranks together."""
        return sum(block.rows for block in self._plan.blocks)

    @property
    def epoch(self) -> int:
        """The number of the epoch; see `set_epoch`."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration delivers.

        Call it before each epoch, on all ranks. Without it, each iteration delivers the same
        batches in the same order. A position that `load_state_dict` set applies to its own epoch
        only.
        """
        self._epoch[0] = epoch

    def __len__(self) -> int:
        """Return the number of batches that this rank delivers in an iteration."""
        position = self._start()
        return max(0, self._share(position).batches - position.current.steps)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, or of this worker of a loader.

        Raises `UsageError` if the loader has workers, and ``device`` is set, or they were forked
        while this process used gRPC. Raises `SplitArrowError` as `Client.read` does.
        """
        position, worker = self._start(), torch.utils.data.get_worker_info()
        number, workers = (None, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is not None and self._device is not None:
            raise UsageError(
                f"device={str(self._device)!r} needs a loader without workers; move the batches in "
                "the training loop instead"
            )
        if worker is not None and self._memory_device is not None:
            raise UsageError(
                f"memory is that of {self._memory_device}, which workers of a loader cannot pass "
                "on; pass num_workers=0 to the loader, and threads=4 to the dataset, or leave out "
                "memory and move the batches in the training loop"
            )
        if worker is not None and self._collate is None:
            pass_regions()
        first = position.current.steps + (number or 0)
        if self._next_batch is not None:
            first, self._next_batch = self._next_batch, None
        self._progress = Progress(position, number, workers, first)
        return self._iterate(position, first, workers)

    def _iterate(self, position: Position, first: int, workers: int) -> Iterator[Any]:
        block_rows = [block.rows for block in self._plan.blocks]
        order = EpochOrder(block_rows, self._seed, position.epoch, shuffle=self._shuffle)
        share = self._share(position)
        batches = (
            BatchPlan(number, number % share.lanes, list(order.locate(share.batch(number))))
            for number in range(first, share.batches, workers)
        )
        lanes = -(-share.lanes // workers)
        with (
            self._connect() as client,
            BlockReader(client, self._plan, order, self._prefetch_blocks, lanes) as reader,
            closing(map_in_threads(self._convert, reader.read(batches), self._threads)) as results,
        ):
            for number, result in results:
                assert self._progress is not None
                self._progress = self._progress.advanced(number + workers)
                yield result
                del result  # its memory may be leased

    def _convert(self, batch: tuple[BatchPlan, Rows]) -> tuple[int, Any]:
        """Return the number of a batch and what the dataset yields for it."""
        result = self._make_batch(batch[1])
        if self._threads and self._memory_device is not None:
            wait_for_stream(self._memory_device)  # the training loop may use another one
        return batch[0].number, result

    def _make_batch(self, rows: Rows) -> Any:
        worker = torch.utils.data.get_worker_info()
        options, categories = self._tensor_options, self._plan.categories
        if self._transform is not None:
            batch = self._transform(rows.to_record_batch())
            result = convert_batch(batch, options, categories)
        elif worker is not None and self._collate is not None:
            # PyTorch sends the whole storage of each tensor, so it must not be shared.
            result = convert_batch(rows.to_record_batch(), options, categories)
        else:
            result = rows.to_tensors(options, categories)
        if self._device is not None:
            result = {name: move(value, self._device) for name, value in result.items()}
        if self._collate is not None:
            return self._collate(result)
        return result if worker is None else SharedBatch(result)

    def state_dict(self, steps: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch as a dict of plain values.

        A ``StatefulDataLoader`` calls this in its workers. With any other loader that has workers,
        pass `steps`.

        Parameters
        ----------
        steps : int, optional
            The number of batches that the training loop has taken in this iteration. `None` takes
            those that the last iterator of this process has yielded.
        """
        state = self._order.encode()
        if steps is not None:
            position = self._start()
            return {**state, **position.after(position.current.steps + steps).encode()}
        progress = self._progress
        if progress is None:
            return {**state, **self._start().encode()}
        return {**state, **progress.encode()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position, also with other numbers of workers and ranks than before.

        The next iteration, and each further one of that epoch, begins at the position.

        Parameters
        ----------
        state : mapping
            The result of `state_dict`, or that of a ``StatefulDataLoader``.

        Raises
        ------
        UsageError
            If the state is that of another dataset or version, or of another order of the rows.
        """
        state = find_dataset_state(state)
        self._order.check(state)
        position = Position.decode(state)
        worker = state.get("worker")
        if worker is not None:
            info = torch.utils.data.get_worker_info()
            if info is None or (info.id, info.num_workers) != (worker["id"], worker["workers"]):
                raise UsageError(
                    "the state is that of one worker of a loader; load that of the whole loader"
                )
            if position.current.division != self._division:
                raise UsageError(
                    "the ranks or batches have changed since the state was saved; load the state "
                    "of the loader into the dataset, before the loader is made"
                )
            self._next_batch = worker["next"]
        self._resumed = position
        self._progress = None
        self.set_epoch(position.epoch)

    def _start(self) -> Position:
        """Return the position at which an iteration begins."""
        resumed = self._resumed
        if resumed is not None and resumed.epoch == self.epoch:
            return resumed.divided(self._division)
        return Position.start(self.epoch, self._division)

    def _share(self, position: Position) -> Share:
        return Share(position.remaining(self.rows), self._division, self.rank)

    @property
    def _order(self) -> Order:
        selection = self._plan.selection
        return Order(
            selection.name, selection.version, self._plan.layout, self._seed, self._shuffle
        )
