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
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa

from ..errors import SplitArrowError, UsageError
from ..formats.arguments import check_choice, check_integer, list_items, refuse
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
    world_size = check_integer("world_size", world_size, 1)
    if check_integer("rank", rank, 0) >= world_size:
        refuse("rank", rank, f"0 to {world_size - 1} for {world_size} ranks")
    return int(rank), world_size


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
        check_choice("on_error", self.on_error, OnError)
        check_integer("max_errors", self.max_errors, 1)

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


_FLAGS = 1024
"""The workers that two iterations with the same random seed can have."""


class SharedEpoch:
    """The epoch, and the iteration that uses a loaded position, in memory that processes share.

    A loader starts new workers for each iteration, which know nothing of earlier ones. All workers
    of one iteration use the position, and later iterations do not.
    """

    def __init__(self) -> None:
        self._numbers = torch.zeros(3, dtype=torch.int64)
        """The epoch, the number of loads, and what identifies the iteration that uses the position:
        0 if none has begun, 1 without workers, or a negative number."""
        self._has_begun = torch.zeros(_FLAGS, dtype=torch.bool)
        """Which workers of that iteration have begun."""
        self._flags = torch.zeros(2, dtype=torch.bool)
        """Whether `set_epoch` chose the epoch, and whether the last iteration used the position."""
        self._share()

    def _share(self) -> None:
        for each in (self._numbers, self._has_begun, self._flags):
            each.share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()  # only the pickler of processes keeps memory shared

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return int(self._numbers[0])

    @property
    def is_chosen(self) -> bool:
        """Whether `set_epoch` chose the epoch."""
        return bool(self._flags[0])

    def set(self, epoch: int, *, is_chosen: bool) -> None:
        """Set the epoch."""
        self._numbers[0] = epoch
        self._flags[0] |= is_chosen

    @property
    def is_pending(self) -> bool:
        """Whether the next iteration uses the loaded position."""
        return not self._numbers[2]

    @property
    def is_current(self) -> bool:
        """Whether the last iteration used the loaded position, or the next one does."""
        return self.is_pending or bool(self._flags[1])

    def load(self) -> int:
        """Let the next iteration use a new position, and return the number of loads."""
        self._has_begun.zero_()
        self._numbers[2] = 0
        self._numbers[1] += 1
        return int(self._numbers[1])

    def is_last(self, load: int) -> bool:
        """Return whether no position was loaded after one, also by another process."""
        return load == self._numbers[1]

    def begin(self, worker: Any, load: int) -> bool:
        """Begin an iteration, and return whether it uses the position of a load."""
        if not self.is_last(load):
            return False
        # The workers of a loader have successive seeds.
        iteration = 1 if worker is None else ~(worker.seed - worker.id)
        number = 0 if worker is None else worker.id
        is_used = int(self._numbers[2]) in (0, iteration) and not self._has_begun[number:][:1].any()
        if is_used:
            self._numbers[2] = iteration
            self._has_begun[number : number + 1] = True
        self._flags[1] = is_used
        return is_used


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
        self._shared = SharedEpoch()
        self._resumed: Any = None
        """The position that was loaded last."""
        self._load = 0
        """The number of its load."""
        self._is_own = False
        """Whether this worker of a loader loaded it, for its next iteration."""
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
        return self._shared.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration delivers.

        Call it before each epoch, on all ranks. Without it, each iteration delivers the same
        batches in the same order. A position that `load_state_dict` set applies to the next
        iteration only, and only if that is of its own epoch.

        Raises
        ------
        UsageError
            If it is not an integer of 64 bits.
        """
        self._shared.set(check_integer("epoch", epoch, -(1 << 63)), is_chosen=True)

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
        expected = "ranges such as range(1000, 1200)"
        ranges = [steps] if isinstance(steps, range) else list_items("steps", steps, expected)
        for each in ranges:
            if not isinstance(each, range) or each.step != 1 or not 0 <= each.start < each.stop:
                refuse("an item of steps", each, expected)
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
        step, found = check_integer("step", step, 0), copy(self)
        position, ranks = self._find_stage(step)
        number = step - position.earlier
        rank = self.rank if rank is None else check_integer("rank", rank, 0)
        found.options = replace(self.options, rank=rank)
        plan = None
        if 0 <= found.rank < ranks and 0 <= number < found._count_batches(position):
            plan = next(found._plan_batches(position, iter([number])), None)
        if plan is None:
            raise UsageError(f"rank {found.rank} of {ranks} has no step {step} in the epoch")
        rows = locate_runs(plan.runs, partial(self._find_source, position))
        return self._describe(plan, rows)

    def __len__(self) -> int:
        """Return the number of batches that this rank delivers in the next iteration."""
        return sum(1 for _ in self._list_numbers(self._resume(self._shared.is_pending)))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, or of this worker of a loader.

        Raises `UsageError` if the loader has workers, and ``device`` is set, or they were forked
        while this process used gRPC. Raises `SplitArrowError` as `Client.read` does.
        """
        worker = torch.utils.data.get_worker_info()
        number, workers = (None, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is not None:
            self._check_worker()
        position = self._begin_iteration(worker)
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
        if not self._shared.is_last(self._load):
            raise UsageError(
                "a state was loaded after the workers of the loader had started; make a new loader "
                "after load_state_dict"
            )
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
        if not hasattr(loader, "__iter__"):
            refuse("loader", loader, "the loader of this dataset, or the dataset itself")
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
            steps = check_integer("steps", steps, 0)
            start = self._find_position(self._note_errors(start), steps)
        elif progress is not None and progress.worker is None:
            start = self._advance(self._note_errors(progress.start), progress.next)
        elif progress is not None:
            start, worker = self._note_errors(progress.start), {"worker": progress.encode()}
        skipped = [[each.start, each.stop] for each in self._skipped]
        chosen = {"set_epoch": self._shared.is_chosen}
        return {**self._encode(start), **chosen, "skipped_steps": skipped, **worker}

    @property
    def errors(self) -> int:
        """The rows that ``on_error="skip"`` has left out in this iteration, of all workers."""
        return 0 if self._errors is None else self._errors.rows

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue at a position, also with other numbers of workers and ranks than before.

        The next iteration delivers the rest of the epoch, and later ones deliver whole epochs. A
        state from the end of an epoch begins a whole one: the next one if epochs were chosen with
        `set_epoch`, or else the same one again. `set_epoch` afterwards keeps the position for its
        own epoch. A ``StatefulDataLoader`` calls this where its next iteration begins.

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
        found, info = copy(self), torch.utils.data.get_worker_info()
        try:
            position, epoch, following = found._read_state(state, info)
        except SplitArrowError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UsageError(
                f"the state is damaged ({type(error).__name__}: {error}); load another checkpoint"
            ) from error
        self._skipped, self._progress = found._skipped, None
        self._resumed, self._next_batch = position, following
        self._is_own = info is not None
        if info is None:
            self._load = self._shared.load()
            if self._errors is not None:
                self._errors.start(0, 1)
        if info is None or not self._shared.is_chosen:
            self._shared.set(epoch, is_chosen=False)

    def _read_state(self, state: Any, info: Any) -> tuple[Any, int, int | None]:
        """Return the position of a state or None, its epoch, and the next batch of a worker."""
        state, taken = find_dataset_state(state)
        position, worker = self._decode(state), state.get("worker")
        check_integer("steps", position.steps, 0)
        epoch = check_integer("epoch", position.epoch, -(1 << 63))
        if worker is not None:
            if info is None or (info.id, info.num_workers) != (worker["id"], worker["workers"]):
                raise UsageError(
                    "the state is that of one worker of a loader; load that of the whole loader"
                )
            if self._find_start(position) != position:
                raise UsageError(
                    "the ranks or batches have changed since the state was saved; load the state "
                    "of the loader into the dataset, before the loader is made"
                )
        saved = [range(*each) for each in state.get("skipped_steps", ())]
        self._skipped = merge_ranges([*self._skipped, *saved])
        position = self._find_position(position, taken)
        if worker is not None:
            return position, epoch, check_integer("next", worker["next"], 0)
        if self._is_over(position):
            return None, epoch + bool(state.get("set_epoch")), None
        return position, epoch, None

    def _is_over(self, position: Any) -> bool:
        """Return whether no rank delivers a batch after a position, with its ranks or these."""
        first = copy(self)
        first.options = replace(self.options, rank=0)  # another rank never delivers more
        plans = (
            first._plan_batches(each, first._list_numbers(each))
            for each in dict.fromkeys([position, self._find_start(position)])
        )
        return any(next(each, None) is None for each in plans)

    def _begin_iteration(self, worker: Any) -> Any:
        """Return the position at which an iteration begins, and use up the loaded one."""
        is_used, resumed = self._shared.begin(worker, self._load), self._resumed
        if not self._is_own:
            return self._resume(is_used)
        self._resumed, self._is_own = None, False
        return self._find_start(resumed)

    def _start(self) -> Any:
        """Return the position at which this iteration began, or after a load the next one does."""
        return self._resume(self._shared.is_current)

    def _resume(self, is_used: bool) -> Any:
        """Return the loaded position if it is used and of this epoch, or the epoch's beginning."""
        resumed = self._resumed
        applies = is_used and resumed is not None and resumed.epoch == self.epoch
        return self._find_start(resumed if applies else None)
