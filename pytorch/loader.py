"""What the iterable datasets have in common: epochs, steps, workers, threads, checkpoints."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile, islice
from typing import Any, TypeVar, get_args
from uuid import uuid4

import pyarrow as pa

from ..errors import UsageError
from .bad_rows import ErrorLog, OnError
from .blocks import BatchPlan, BlockReader, BlockSource, Rows
from .device_tensors import move
from .metrics import (
    LoaderMetrics,
    Stage,
    Telemetry,
    WatchedLoader,
    export_metrics,
    inherit_recorder,
)
from .order import Even, merge_ranges
from .position import Progress, find_dataset_state
from .provenance import StoredSource, locate_runs
from .tensors import TensorOptions, torch

_IterableDataset: Any = torch.utils.data.IterableDataset
Item = TypeVar("Item")
Result = TypeVar("Result")
Delivered = tuple[int, int, Any]
"""The number of a batch, its rows, and what the dataset yields for it."""


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
    pool = ThreadPoolExecutor(threads, "splitarrow-convert", inherit_recorder())
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


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How batches are divided and made. The parts of a mixture have the same ones."""

    rank: int
    """The rank."""
    world_size: int
    """The number of ranks."""
    batch_rows: int
    """The number of rows in a batch."""
    even: Even
    """What happens to the rows that remain."""
    threads: int
    """The number of threads that convert batches."""
    prefetch_blocks: int
    """The number of reads that are ahead of their use."""
    device: Any
    """Where to move the tensors, or None."""
    collate: Callable[[dict[str, Any]], Any] | None
    """What makes the result of a dict of tensors, or None."""
    tensors: TensorOptions
    """How record batches become tensors."""
    on_error: OnError
    """What happens to rows that cannot be delivered."""
    max_errors: int
    """The number of rows that may be left out."""

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise UsageError(
                f"on_error is {self.on_error!r}; expected {', '.join(get_args(OnError))}"
            )
        if self.max_errors < 1:
            raise UsageError(f"max_errors is {self.max_errors}; expected 1 or more")

    @property
    def step_rows(self) -> int:
        """The number of rows in a step, of all ranks."""
        return self.world_size * self.batch_rows

    def finish(self, tensors: dict[str, Any]) -> Any:
        """Move tensors to the device, and collate them."""
        if self.device is not None:
            with Stage("copy"):
                tensors = {name: move(value, self.device) for name, value in tensors.items()}
        if self.collate is None:
            return tensors
        with Stage("collate"):
            return self.collate(tensors)


class StepDataset(_IterableDataset):
    """A dataset whose ranks deliver batches in steps: all ranks deliver as many.

    Its subclasses decide which rows are in the batch of a step.
    """

    def __init__(self, options: BatchOptions) -> None:
        super().__init__()
        self.options = options
        """How batches are divided and made."""
        self._errors: ErrorLog | None = None
        """The rows that were left out, if the dataset does that."""
        # Workers that persist get a new epoch through shared memory.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._resumed: Any = None
        self._skipped: tuple[range, ...] = ()
        self._next_batch: int | None = None
        """Where this worker of a loader continues, if that follows from its own state."""
        self._progress: Progress | None = None
        self._telemetry = Telemetry(options.rank, options.threads)
        self._name = uuid4().hex
        """The name of this loader among the readers of a server."""

    # What the subclasses define. A position has `epoch`, `steps` and `earlier`.

    @abstractmethod
    def _find_start(self, resumed: Any) -> Any:
        """Return the position at which an iteration begins, given one of this epoch or None."""

    @abstractmethod
    def _advance(self, position: Any, steps: int) -> Any:
        """Return the position at which each rank has delivered `steps` batches of this stage."""

    @abstractmethod
    def _decode(self, state: Mapping[str, Any]) -> Any:
        """Return the position in a checkpoint; raise `UsageError` if it is of another order."""

    @abstractmethod
    def _encode(self, position: Any) -> dict[str, Any]:
        """Return a position, and what determines the order, for checkpoints."""

    @abstractmethod
    def _count_batches(self, position: Any) -> int:
        """Return the number after that of the last batch of this rank, or a larger one."""

    @abstractmethod
    def _plan_batches(self, position: Any, numbers: Iterator[int]) -> Iterator[BatchPlan]:
        """Yield the plans of the batches of this rank with these numbers, which ascend."""

    @abstractmethod
    def _open_sources(
        self, progress: Progress
    ) -> AbstractContextManager[Callable[[int], BlockSource]]:
        """Connect, announce the shards, and return what finds a source by its number."""

    @abstractmethod
    def _make_batch(self, plan: BatchPlan, rows: Rows) -> Any:
        """Return what the dataset yields for a batch."""

    def _name_reader(self, progress: Progress) -> str:
        """Return the name of this worker among the readers of a server."""
        return f"{self._name}-{progress.worker or 0}"

    def _note_errors(self, position: Any) -> Any:
        """Return a position that states which rows this iteration has left out, if it matters."""
        return position

    @abstractmethod
    def _find_stage(self, step: int) -> tuple[Any, int]:
        """Return the position in the part of the epoch that has a step, and its number of ranks."""

    @abstractmethod
    def _find_source(self, position: Any, number: int) -> StoredSource:
        """Return what the source with a number reads."""

    def _describe(self, plan: BatchPlan, rows: pa.Table) -> pa.Table:
        """Return where the rows of a batch are stored, given where those of its runs are."""
        return rows

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.options.rank

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

    def skip(self, steps: range | Sequence[range]) -> None:
        """Leave steps out, for example those whose rows made a training run diverge.

        Call it on all ranks, before the iteration. The rows of these steps are not read, and count
        as delivered: a checkpoint continues after them.

        Parameters
        ----------
        steps : range, or sequence of range
            Numbers of steps in the epoch, from 0. Steps before a resumed position are over anyway.

        Raises
        ------
        UsageError
            If a range is empty, has negative numbers, or a step other than 1.
        """
        ranges: list[Any] = [steps] if isinstance(steps, range) else list(steps)
        for each in ranges:
            if not isinstance(each, range) or each.step != 1 or not 0 <= each.start < each.stop:
                raise UsageError(f"steps has {each!r}; expected ranges such as range(1000, 1200)")
        self._skipped = merge_ranges([*self._skipped, *ranges])

    def locate(self, step: int, *, rank: int | None = None) -> pa.Table:
        """Return which stored rows are in the batch of a step, in its order.

        It computes them from the order of the epoch. With a filter, it reads the columns that the
        filter refers to, and packs need the lengths of the lists only.

        Parameters
        ----------
        step : int
            The number of the step in the epoch, from 0, also one that is over.
        rank : int, optional
            The rank whose batch it is. `None` means that of this process.

        Returns
        -------
        pyarrow.Table
            The columns ``dataset``, ``version``, ``shard`` (the ordinal of the shard or file) and
            ``row`` (the number of the row in it, from 0). Of packs, a row for each document or part
            of one, also with ``pack`` (the row of the batch), ``begin`` and ``end`` (its tokens).

        Raises
        ------
        UsageError
            If the epoch has no such step, or its ranks are not known.
        """
        (position, ranks), found = self._find_stage(step), copy(self)
        number = step - position.earlier
        found.options = replace(self.options, rank=self.rank if rank is None else rank)
        plan = None
        if 0 <= found.rank < ranks and 0 <= number < found._count_batches(position):
            plan = next(found._plan_batches(position, iter([number])), None)
        if plan is None:
            raise UsageError(f"rank {found.rank} of {ranks} has no step {step} in the epoch")
        rows = locate_runs(plan.runs, partial(self._find_source, position))
        return self._describe(plan, rows)

    def __len__(self) -> int:
        """Return the number of batches that this rank delivers in an iteration."""
        return sum(1 for _ in self._list_numbers(self._start()))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, or of this worker of a loader.

        Raises `UsageError` if the loader has workers, and ``device`` is set, or they were forked
        while this process used gRPC. Raises `SplitArrowError` as `Client.read` does.
        """
        position, worker = self._start(), torch.utils.data.get_worker_info()
        number, workers = (None, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is not None:
            self._check_worker()
        numbers = islice(self._list_numbers(position), number or 0, None, workers)
        continued, self._next_batch = self._next_batch, None
        if continued is not None:
            numbers = dropwhile(continued.__gt__, numbers)
        first = position.steps if continued is None else continued
        self._progress = Progress(position, number, workers, first)
        batches = self._iterate(position, numbers, workers)
        return batches if worker is not None else self._telemetry.measure(batches, self.epoch)

    def _check_worker(self) -> None:
        """Raise `UsageError` if a worker of a loader cannot deliver the batches."""
        if self.options.device is not None:
            raise UsageError(
                f"device={str(self.options.device)!r} needs a loader without workers; move the "
                "batches in the training loop instead"
            )

    def _iterate(self, position: Any, numbers: Iterator[int], workers: int) -> Iterator[Any]:
        assert self._progress is not None
        report, worker = None, self._progress.worker or 0
        if self._errors is not None:
            self._errors.start(worker, workers)
            report = partial(self._errors.count, worker)
        with (
            self._telemetry.record() as recorder,
            self._open_sources(self._progress) as find_source,
            BlockReader(find_source, self.options.prefetch_blocks, report) as reader,
            closing(
                self._deliver(position, reader.read(self._plan_batches(position, numbers)), workers)
            ) as results,
        ):
            for number, rows, result in results:
                self._progress = self._progress.advanced(number + 1)
                recorder.add_step(rows)
                yield result
                del result  # its memory may be leased
                recorder.activate()

    def _deliver(
        self, position: Any, batches: Iterator[tuple[BatchPlan, Rows]], workers: int
    ) -> Generator[Delivered]:
        """Yield the numbers of batches, their rows, and what the dataset yields for them."""
        return map_in_threads(self._convert, batches, self.options.threads)

    def _convert(self, batch: tuple[BatchPlan, Rows]) -> Delivered:
        """Return the number of a batch, its rows, and what the dataset yields for it."""
        with Stage("convert"):
            return batch[0].number, len(batch[1]), self._make_batch(*batch)

    def _list_numbers(self, position: Any) -> Iterator[int]:
        """Yield the numbers of the batches from a position on, without skipped steps."""
        numbers, earlier = range(position.steps, self._count_batches(position)), position.earlier
        if not self._skipped:
            return iter(numbers)
        return (n for n in numbers if not any(n + earlier in each for each in self._skipped))

    def _find_position(self, start: Any, taken: int) -> Any:
        """Return the position after some batches that were not skipped."""
        if taken and self._skipped:
            last = next(islice(self._list_numbers(start), taken - 1, None), None)
            if last is not None:
                return self._advance(start, last + 1)
        return self._advance(start, start.steps + taken)

    def metrics(self) -> LoaderMetrics:
        """Return what this rank has measured since the dataset was made, workers included.

        ``metrics().summary()`` is a sentence that states what limits the training loop, as logged
        at the end of each epoch by the logger ``splitarrow.pytorch`` at the level INFO. Any thread
        may call this.
        """
        return self._telemetry.collect()

    def watch(self, loader: Iterable[Any]) -> WatchedLoader:
        """Return an iterable of the batches of a loader that measures the training loop.

        Iterate over it in place of a loader that has workers, which are processes: the dataset does
        not see how long the loop waits for them. It works without workers as well.

        Parameters
        ----------
        loader : iterable
            The loader of this dataset, or the dataset itself.

        Examples
        --------
        ::

            for batch in dataset.watch(loader):
                ...
            print(dataset.metrics().summary())
        """
        return WatchedLoader(self._telemetry, loader, lambda: self.epoch)

    def export_metrics(self, registry: Any = None, *, name: str = "") -> None:
        """Add the metrics to Prometheus, by the extra ``http``, or to OpenTelemetry.

        Parameters
        ----------
        registry : CollectorRegistry, MeterProvider or Meter, optional
            The registry of ``prometheus_client``, or the meter or its provider of OpenTelemetry.
            `None` takes the default registry.
        name : str
            The label ``loader``, which distinguishes several datasets of a process. Another dataset
            of the same name and rank takes the place of this one.

        Raises
        ------
        MissingExtraError
            If ``prometheus_client`` is not installed.
        """
        export_metrics(self._telemetry, name, registry)

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
        progress, start, worker = self._progress, self._start(), {}
        if steps is not None:
            start = self._find_position(self._note_errors(start), steps)
        elif progress is not None and progress.worker is None:
            start = self._advance(self._note_errors(progress.start), progress.next)
        elif progress is not None:
            start, worker = self._note_errors(progress.start), {"worker": progress.encode()}
        skipped = [[each.start, each.stop] for each in self._skipped]
        return {**self._encode(start), "skipped_steps": skipped, **worker}

    @property
    def errors(self) -> int:
        """The rows that ``on_error="skip"`` has left out in this iteration, of all workers."""
        return 0 if self._errors is None else self._errors.rows

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue at a position, also with other numbers of workers and ranks than before.

        The next iteration, and each further one of that epoch, begins at the position.

        Parameters
        ----------
        state : mapping, or sequence of mapping
            The result of `state_dict`, or that of a ``StatefulDataLoader``. If rows were left out
            with ``on_error="skip"``, each rank continues exactly with its own state, or with those
            of all ranks, which other numbers of ranks need.

        Raises
        ------
        UsageError
            If the state is that of another dataset or version, or of another order of the rows.
        """
        state, taken = find_dataset_state(state)
        position, worker = self._decode(state), state.get("worker")
        if worker is not None:
            info = torch.utils.data.get_worker_info()
            if info is None or (info.id, info.num_workers) != (worker["id"], worker["workers"]):
                raise UsageError(
                    "the state is that of one worker of a loader; load that of the whole loader"
                )
            if self._find_start(position) != position:
                raise UsageError(
                    "the ranks or batches have changed since the state was saved; load the state "
                    "of the loader into the dataset, before the loader is made"
                )
            self._next_batch = worker["next"]
        saved = [range(*each) for each in state.get("skipped_steps", ())]
        self._skipped = merge_ranges([*self._skipped, *saved])
        self._resumed = self._find_position(position, taken)
        self._progress = None
        self.set_epoch(position.epoch)

    def _start(self) -> Any:
        resumed = self._resumed
        return self._find_start(
            resumed if resumed is not None and resumed.epoch == self.epoch else None
        )
