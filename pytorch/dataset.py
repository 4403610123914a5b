"""`StreamDataset`: a dataset of daemons as batches of tensors, for PyTorch's loaders."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from ..client.tokens import Token, TokenFile, parse_token
from ..client.uris import parse_control_uris
from ..errors import UsageError
from ..formats.arguments import (
    check_choice,
    check_function,
    check_integer,
    check_text,
    list_items,
    refuse,
)
from ..transport.registry import list_schemes
from ..transport.tls_options import TlsOptions
from .announcement import Announcement, announce
from .bad_rows import ErrorLog, OnError, RowTester, Target, fill_batches
from .blocks import BatchPlan, BlockSource, Rows, Run
from .device_tensors import (
    check_device,
    check_device_schema,
    find_memory_device,
    wait_for_stream,
)
from .loader import BatchOptions, Delivered, StepDataset, find_rank, map_in_threads
from .metrics import Stage
from .order import Division, EpochOrder, Even, Share, Spans
from .plan import DatasetPlan, Selection, Servers, plan_dataset
from .position import Order, Position, Progress
from .provenance import StoredSource
from .record_batches import transform_batch
from .shared_batch import SharedBatch, pass_regions
from .tensors import Decode, OnNull, Strings, TensorOptions, check_schema, convert_batch, torch

DEFAULT_INTERLEAVE = 24
"""The lanes of a shuffled dataset. Many numbers of workers divide it: 1, 2, 3, 4, 6, 8, 12, 24."""
_OTHER_TRANSPORTS = ("auto", "flight")


def check_seed(seed: Any) -> int:
    """Return a seed, which is an integer of any size."""
    try:
        return operator.index(seed)
    except TypeError:
        refuse("seed", seed, "an integer")


def _check_columns(columns: Any) -> tuple[str, ...] | None:
    """Return the columns to read, or None for all."""
    if columns is None:
        return None
    names = [columns] if isinstance(columns, str) else columns
    found = list_items("columns", names, "one name or more, or None for all columns")
    if not found:
        raise UsageError("columns is empty; expected one column or more, or None for all")
    return tuple(check_text("a name in columns", each) for each in found)


def check_categories(categories: Any) -> dict[str, list[Any]]:
    """Return the categories of columns that are given."""
    expected = "a mapping of columns to lists of their values"
    if categories is None:
        return {}
    if not isinstance(categories, Mapping):
        refuse("categories", categories, expected)
    items = cast("Mapping[Any, Any]", categories).items()
    return {
        check_text("a column in categories", name): list_items(
            f"categories[{name!r}]", values, "a list of values"
        )
        for name, values in items
    }


def select(name: Any, columns: Any, filter: Any, version: Any, transport: Any) -> Selection:
    """Return what is read of a dataset."""
    transports = [*_OTHER_TRANSPORTS, *list_schemes()]
    return Selection(
        check_text("name", name),
        _check_columns(columns),
        filter,
        "" if version is None else check_text("version", version),
        {"transport": check_choice("transport", transport, transports)},
    )


class Part(NamedTuple):
    """What a mixture needs to know of a dataset."""

    servers: Servers
    """The control planes."""
    plan: DatasetPlan
    """The blocks."""
    make_order: Callable[[int | str], EpochOrder]
    """Returns the order of the rows in an epoch."""
    lanes: int
    """The lanes that rows come from in turn."""
    transform: Callable[[pa.RecordBatch], pa.RecordBatch] | None
    """What changes record batches before they are converted."""
    identity: Order
    """What determines the order."""


class StreamDataset(StepDataset):
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
    decode : {"image", "audio"} or mapping of str to {"image", "audio"}, optional
        Decodes all binary columns, or those of a mapping such as ``{"picture": "image"}``. A null
        has no pixels or samples. ``image`` makes lists of tensors of uint8, channels (RGB), height,
        width, with torchvision or else Pillow. ``audio`` makes lists of tensors of float32,
        channels, samples, and a tensor ``NAME.sample_rate``, with soundfile.
    transform : callable, optional
        Receives each ``pyarrow.RecordBatch``, and returns the one to convert.
    collate : callable, optional
        Receives each dict of tensors, and returns what the dataset yields.
    device : str or torch.device, optional
        Where to move the tensors. It needs a loader without workers.
    version : str, optional
        The version of the dataset. `None` takes the current one. It does not change afterwards.
    token, token_file, tls
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

    on_error : {"raise", "skip"}
        What happens to rows that fail in `transform`, in the conversion or in `collate`, or that
        cannot be read. ``skip`` leaves them out, counts and logs them, and fills each batch with
        the next rows of its rank, so that all ranks keep the number of their batches. Where these
        run out, the last batches have fewer rows, with ``even="pad"`` some rows are repeated, and
        with ``"uneven"`` a rank may have fewer batches. The number of workers must divide
        `interleave`.
    max_errors : int
        The number of rows that a rank may leave out in an iteration. One more raises.

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
        token: Token | None = None,
        token_file: TokenFile = None,
        tls: TlsOptions | None = None,
        transport: str = "auto",
        prefetch_blocks: int = 2,
        threads: int = 0,
        memory: Any = None,
        on_error: OnError = "raise",
        max_errors: int = 1000,
    ) -> None:
        self._shuffle = _check_flag("shuffle", shuffle)
        if interleave is None:
            interleave = DEFAULT_INTERLEAVE if shuffle else 1
        window_rows = check_integer("window_rows", window_rows, 1)
        threads = check_integer("threads", threads, 0)
        rank, world_size = find_rank(rank, world_size)
        self._division = Division(world_size, batch_rows, interleave, even)
        batch_rows = self._division.batch_rows
        self._servers = Servers(tuple(parse_control_uris(uri)), parse_token(token, token_file), tls)
        super().__init__(
            BatchOptions(
                rank,
                world_size,
                batch_rows,
                even,
                threads,
                max(check_integer("prefetch_blocks", prefetch_blocks, 1), threads),
                check_device(device),
                check_function("collate", collate),
                TensorOptions(on_null, strings, decode),
                on_error,
                max_errors,
            )
        )
        self._transform = check_function("transform", transform)
        self._seed = check_seed(seed)
        selection = select(name, columns, filter, version, transport)
        self._memory_device = find_memory_device(memory)
        if self._memory_device is not None and on_error != "raise":
            raise UsageError("on_error='skip' needs record batches in host memory; pass device=")
        if self._memory_device is not None and transform is not None:
            raise UsageError(
                "transform needs record batches in host memory; pass collate to change tensors on "
                f"the device, or device={str(self._memory_device)!r} in place of memory"
            )
        plan = plan_dataset(self._servers, selection, window_rows, check_categories(categories))
        self._plan = plan.with_options(memory=memory)
        if on_error == "skip":
            self._errors = ErrorLog(max_errors, self.rows // batch_rows + 1)
        if transform is None:
            check_schema(self._plan.schema, self.options.tensors, self._plan.categories)
        if self._memory_device is not None:
            check_device_schema(self._plan.schema, str(self._memory_device))

    @property
    def plan(self) -> DatasetPlan:
        """The blocks of the dataset: what is read at a time."""
        return self._plan

    def as_part(self) -> Part:
        """Return what a mixture needs; raise `UsageError` if its batches would be on a device."""
        if self._memory_device is not None:
            raise UsageError(
                f"memory is that of {self._memory_device}, and a mixture is put together in host "
                "memory; pass device= instead"
            )
        return Part(
            self._servers,
            self._plan,
            self.make_order,
            self._division.interleave,
            self._transform,
            self._order,
        )

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

    def _check_worker(self) -> None:
        super()._check_worker()
        if self._memory_device is not None:
            raise UsageError(
                f"memory is that of {self._memory_device}, which workers of a loader cannot pass "
                "on; pass num_workers=0 to the loader, and threads=4 to the dataset, or leave out "
                "memory and move the batches in the training loop"
            )
        if self.options.collate is None:
            pass_regions()

    def _plan_batches(self, position: Position, numbers: Iterator[int]) -> Iterator[BatchPlan]:
        order, share = self.make_order(position.epoch), self._share(position)
        shifts = position.current.shifts(self.rank, share.lanes)
        for number in numbers:
            lane = number % share.lanes
            spans = share.batch(number)
            rows = sum(end - begin for begin, end in spans)
            if shifts[lane]:  # the batches before this one have taken some of its rows
                taken = min(shifts[lane], rows)
                shifts[lane] -= taken
                spans = list(Spans(spans).slice(taken, rows))
            runs = [Run(0, lane, list(order.locate(spans)))] if spans else []
            yield BatchPlan(number, runs, Target(lane, rows))

    def _deliver(
        self, position: Position, batches: Iterator[tuple[BatchPlan, Rows]], workers: int
    ) -> Generator[Delivered]:
        errors, lanes = self._errors, self._share(position).lanes
        if errors is None:
            if position.current.skipped:
                raise UsageError("the state has left rows out; pass on_error='skip'")
            yield from super()._deliver(position, batches, workers)
            return
        if lanes % workers:
            raise UsageError(
                f"on_error='skip' needs a number of workers that divides interleave, of which "
                f"there are {lanes}; the loader has {workers} workers"
            )
        worker = torch.utils.data.get_worker_info()
        number = 0 if worker is None else worker.id
        report = partial(errors.count, number)
        tester = RowTester(self._make_from_record_batch, report, position.earlier)
        tested = map_in_threads(lambda item: tester.test(*item), batches, self.options.threads)
        with closing(tested):
            yield from fill_batches(
                tested,
                self._make_from_record_batch,
                partial(errors.add, number),
                self.options.even,
            )

    def _note_errors(self, position: Position) -> Position:
        if self._errors is None:
            return position
        return position.noting((self.rank, *line) for line in self._errors.list_lines())

    @contextmanager
    def _open_sources(self, progress: Progress) -> Generator[Callable[[int], BlockSource]]:
        position, worker, workers = progress.start, progress.worker or 0, progress.workers
        lanes = -(-self._share(position).lanes // workers)
        following = Position.start(position.epoch + 1, self._division)

        def list_blocks() -> Iterator[int]:
            yield from self._list_blocks(position, progress.next, worker, workers)
            yield from self._list_blocks(following, 0, worker, workers)

        with self._servers.borrow() as client:
            source = BlockSource(client, self._plan, self.make_order(position.epoch), lanes)
            reader = self._name_reader(progress)
            with announce([Announcement(client, self._plan, reader, list_blocks)]):
                yield lambda number: source

    def _list_blocks(self, position: Position, steps: int, worker: int, workers: int) -> list[int]:
        """Return the blocks of a worker, in the order in which batches after `steps` need them."""
        share, order = self._share(position), self.make_order(position.epoch)
        lanes = range(share.lanes)
        if share.lanes % workers == 0:  # otherwise each worker reads all lanes
            lanes = lanes[worker::workers]
        return share.list_blocks(order, lanes, steps)

    def make_order(self, epoch: int | str) -> EpochOrder:
        """Return the order of the rows in an epoch."""
        block_rows = [block.rows for block in self._plan.blocks]
        return EpochOrder(block_rows, self._seed, epoch, shuffle=self._shuffle)

    def _make_batch(self, plan: BatchPlan, rows: Rows) -> Any:
        result = self._convert_rows(rows)
        if self.options.threads and self._memory_device is not None:
            wait_for_stream(self._memory_device)  # the training loop may use another one
        return result

    def _convert_rows(self, rows: Rows) -> Any:
        worker = torch.utils.data.get_worker_info()
        if self._transform is None and (worker is None or self.options.collate is None):
            # Tensors that share a storage must not be collated in a worker: PyTorch sends it whole.
            tensors = rows.to_tensors(self.options.tensors, self._plan.categories)
            return self._finish(tensors, worker)
        return self._make_from_record_batch(rows.to_record_batch())

    def _make_from_record_batch(self, batch: pa.RecordBatch) -> Any:
        with Stage("convert"):  # also if rows are left out, where no caller measures it
            if self._transform is not None:
                with Stage("transform"):
                    batch = transform_batch(self._transform, batch)
            tensors = convert_batch(batch, self.options.tensors, self._plan.categories)
            return self._finish(tensors, torch.utils.data.get_worker_info())

    def _finish(self, tensors: dict[str, Any], worker: Any) -> Any:
        if worker is not None and self.options.collate is None:
            with Stage("copy"):
                return SharedBatch(tensors)
        return self.options.finish(tensors)

    def _find_start(self, resumed: Position | None) -> Position:
        if resumed is not None:
            return resumed.divided(self._division)
        return Position.start(self.epoch, self._division)

    def _find_stage(self, step: int) -> tuple[Position, int]:
        position = self._start().at(step)
        return position, position.current.division.world_size

    def _find_source(self, position: Position, number: int) -> StoredSource:
        return StoredSource(self._servers, self._plan, self.make_order(position.epoch))

    def _advance(self, position: Position, steps: int) -> Position:
        return position.after(steps)

    def _decode(self, state: Mapping[str, Any]) -> Position:
        self._order.check(state)
        return Position.decode(state)

    def _encode(self, position: Position) -> dict[str, Any]:
        return {**self._order.encode(), "rows": self.rows, **position.encode()}

    def _count_batches(self, position: Position) -> int:
        return self._share(position).batches

    def _share(self, position: Position) -> Share:
        division = position.current.division
        rank = min(self.rank, division.world_size - 1)  # the ranks of a saved position may be fewer
        return Share(position.remaining(self.rows), division, rank)

    @property
    def _order(self) -> Order:
        selection = self._plan.selection
        return Order(
            selection.name, selection.version, self._plan.layout, self._seed, self._shuffle
        )


def _check_flag(name: str, value: Any) -> bool:
    """Return a flag, also of NumPy, as a bool."""
    if not isinstance(value, int | np.bool_) or value not in (False, True):
        refuse(name, value, "True or False")
    return bool(value)
