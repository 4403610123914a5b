"""What a training loader measures: steps, rows, waits, and the stages that take its time.

Each iteration has a `Recorder`. The threads that work for it append figures to a queue, and the
thread that iterates adds them to the row of its process. The processes of a loader share the rows,
and each row has one writer, so nothing needs a lock.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

from ..errors import MissingExtraError, install_hint
from ..formats.arguments import check_text, refuse

_log = logging.getLogger("splitarrow.pytorch")

Count = Literal[
    "steps", "rows", "reads", "read_rows", "read_bytes", "block_hits", "retries", "errors"
]
"""What is counted."""
StageName = Literal[
    "read", "shuffle", "plan", "wait", "join", "transform", "convert", "collate", "copy"
]
"""What takes the time of a loader. Threads of their own read and shuffle blocks."""
_COUNTS: tuple[Count, ...] = get_args(Count)
_STAGES: tuple[StageName, ...] = get_args(StageName)
_COLUMNS: dict[str, int] = {name: index for index, name in enumerate((*_COUNTS, *_STAGES))}
_STEPS, _ROWS, _ERRORS = (_COLUMNS[name] for name in ("steps", "rows", "errors"))
_MAX_WORKERS = 128
"""The workers that have a row of their own. Further ones share the last.

PyTorch would start threads to copy 32 KiB to shared memory.
"""
_SMALL_WAIT = 0.05
"""The share of an epoch up to which the loop waits so little that it is itself the limit."""
_MANTISSAS = ("1", "1.25", "1.6", "2", "2.5", "3.2", "4", "5", "6.3", "8")
_BOUNDS = [float(f"{digits}e{power}") for power in range(-6, 3) for digits in _MANTISSAS]
"""The upper bounds of the buckets of waits, in seconds. There is one more bucket without."""
_EXPORTED_BOUNDS = [float(f"{digits}e{power}") for power in range(-4, 3) for digits in (1, 2.5, 5)]
_END: Any = object()


def find_bucket(wait: float) -> int:
    """Return the bucket of a wait in seconds."""
    return bisect_left(_BOUNDS, wait)


class _Local(threading.local):
    recorder: Recorder | None = None
    """The recorder of the iteration that this thread works for."""
    nested = 0.0
    """The seconds of the stages that have ended within the current one."""


_LOCAL = _Local()


class Stage:
    """A context manager that adds the seconds in it to a stage, without those of stages within."""

    __slots__ = ("_begin", "_column", "_outer")

    def __init__(self, name: StageName) -> None:
        self._column = _COLUMNS[name]

    def __enter__(self) -> None:
        self._outer, _LOCAL.nested = _LOCAL.nested, 0.0
        self._begin = perf_counter()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        seconds = perf_counter() - self._begin
        recorder = _LOCAL.recorder
        if recorder is not None:
            recorder.pending.append((self._column, seconds - _LOCAL.nested))
        _LOCAL.nested = self._outer + seconds


def count(name: Count, amount: int = 1) -> None:
    """Count something for the iteration that this thread works for, if there is one."""
    recorder = _LOCAL.recorder
    if recorder is not None:
        recorder.pending.append((_COLUMNS[name], amount))


def inherit_recorder() -> Callable[[], None]:
    """Return a function that lets another thread work for the iteration of this thread."""
    recorder = _LOCAL.recorder

    def inherit() -> None:
        _LOCAL.recorder = recorder

    return inherit


class Recorder:
    """The figures of one iteration: a context manager, for the thread that iterates."""

    __slots__ = ("_row", "pending")

    def __init__(self, row: Any) -> None:
        self._row = row
        """The row of this process, as a memoryview of floats."""
        self.pending: deque[tuple[int, float]] = deque()
        """Columns and amounts that are not in the row yet. Any thread may append to it."""

    def activate(self) -> None:
        """Let this thread work for the iteration, also after it has worked for another one."""
        _LOCAL.recorder = self

    def add_step(self, rows: int) -> None:
        """Count a batch that the iteration yields."""
        self._row[_STEPS] += 1
        self._row[_ROWS] += rows
        self._flush()

    def _flush(self) -> None:
        row, pending = self._row, self.pending
        while pending:
            column, amount = pending.popleft()
            row[column] += amount

    def __enter__(self) -> Recorder:
        self.activate()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None and issubclass(exc_type, Exception):
            self._row[_ERRORS] += 1
        self._flush()
        _LOCAL.recorder = None


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """The figures of one worker of a loader, of the trainer itself, or of all together."""

    worker: int | None
    """The number of the worker. `None` stands for the trainer itself, or for all."""
    steps: int
    """The batches that were yielded. Workers are ahead of the training loop."""
    rows: int
    """The rows of these batches, before `transform`."""
    reads: int
    """The reads, each of one or more blocks."""
    read_rows: int
    """The rows that were read, also for other workers or ranks that need the same block."""
    read_bytes: int
    """The size of the record batches that were read, decoded."""
    block_hits: int
    """How often a batch needed a block that was read for an earlier batch."""
    retries: int
    """The reads that were started again, or continued over a new connection."""
    errors: int
    """The iterations that ended with an exception."""
    seconds: Mapping[str, float]
    """The seconds by stage, added up over threads.

    Threads ``read`` blocks (network and decoding) and ``shuffle`` their rows ahead. For each batch,
    the worker has to ``plan`` it, ``wait`` for blocks, ``join`` rows of several record batches,
    ``transform`` them, ``convert`` them to tensors, ``collate``, and ``copy`` to the device or the
    trainer.
    """


@dataclass(frozen=True, slots=True)
class LoopMetrics:
    """The figures of the training loop."""

    wait_seconds: float
    """The seconds that it waited for batches, in ``next()``."""
    busy_seconds: float
    """The seconds between a batch and its request for the next one."""
    counts: tuple[int, ...] = field(repr=False)
    """The number of waits by buckets of their duration."""

    @property
    def waits(self) -> int:
        """The number of batches that it got."""
        return sum(self.counts)

    @property
    def p50(self) -> float:
        """The median of the waits in seconds, to a tenth or so."""
        return self._quantile(0.5)

    @property
    def p99(self) -> float:
        """The 99th percentile of the waits in seconds, to a tenth or so."""
        return self._quantile(0.99)

    def _quantile(self, q: float) -> float:
        """Return a quantile, as if the values of a bucket were evenly distributed in it."""
        ends = list(accumulate(self.counts))
        wanted = q * ends[-1]
        index = min(bisect_left(ends, wanted), len(_BOUNDS) - 1)
        if not self.counts[index]:
            return _BOUNDS[index] if ends[-1] else 0.0
        low = _BOUNDS[index - 1] if index else 0.0
        before = ends[index] - self.counts[index]
        return low + (_BOUNDS[index] - low) * min(1.0, (wanted - before) / self.counts[index])


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """The figures of one epoch, up to its end or the present."""

    number: int
    """The number of the epoch."""
    elapsed_seconds: float
    """The seconds since the loop requested the first batch."""
    threads: int
    """The threads of each worker that convert batches; 0 if the worker itself converts."""
    workers: tuple[WorkerMetrics, ...]
    """The workers that did anything."""
    loop: LoopMetrics
    """The training loop."""

    @property
    def total(self) -> WorkerMetrics:
        """The sums of all workers."""
        return _add_up(self.workers)

    def summary(self) -> str:
        """Return a sentence that states what limits the training loop."""
        loop = self.loop
        share = loop.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0
        limit = "the loop itself is the limit" if share < _SMALL_WAIT else self._find_limit()
        return (
            f"epoch {self.number}: the loop waited {_percent(share)} of "
            f"{_duration(self.elapsed_seconds)} for data (p50 {_duration(loop.p50)}, "
            f"p99 {_duration(loop.p99)}); {limit}"
        )

    def _find_limit(self) -> str:
        """Return which stage takes most of the time in which a worker makes its batches."""
        times = [self._chain(each) for each in self.workers]
        if max((sum(each.values()) for each in times), default=0.0) < self.loop.wait_seconds / 2:
            return "starting the loader and passing batches take most of that"
        chain = self._chain(self.total)
        name = max(chain, key=lambda each: chain[each])
        share = _percent(chain[name] / sum(chain.values()))
        if name == "wait":
            seconds = self.total.seconds
            name = "reading" if seconds["read"] >= seconds["shuffle"] else "shuffling"
        return f"{_PHRASES.get(name, name)} takes {share} of the loader's time"

    def _chain(self, worker: WorkerMetrics) -> dict[str, float]:
        """Return the stages that a batch passes one after the other, and their elapsed seconds."""
        threads = max(1, self.threads)
        return {
            name: worker.seconds[name] / (1 if name in _IN_ORDER else threads) for name in _CHAIN
        }


_IN_ORDER: tuple[StageName, ...] = ("plan", "wait")
"""The stages that only the thread that iterates passes."""
_CHAIN: tuple[StageName, ...] = (*_IN_ORDER, "join", "transform", "convert", "collate", "copy")
_PHRASES = {
    "plan": "planning batches",
    "join": "joining rows",
    "convert": "conversion to tensors",
    "copy": "copying",
}


@dataclass(frozen=True, slots=True)
class LoaderMetrics:
    """The figures of a dataset on this rank, since it was made."""

    rank: int
    """The rank."""
    workers: tuple[WorkerMetrics, ...]
    """The workers that did anything. The trainer itself is one if it iterates."""
    loop: LoopMetrics
    """The training loop. Those of loaders with workers are measured by ``dataset.watch``."""
    epoch: EpochMetrics | None
    """The epoch that is running or has ended, if its loop is measured."""

    @property
    def total(self) -> WorkerMetrics:
        """The sums of all workers."""
        return _add_up(self.workers)

    def summary(self) -> str:
        """Return a sentence that states what limited the training loop in the last epoch."""
        if self.epoch is None:
            return "no epoch was measured; iterate over dataset.watch(loader)"
        return self.epoch.summary()


def _add_up(workers: Sequence[WorkerMetrics]) -> WorkerMetrics:
    seconds = {name: sum(each.seconds[name] for each in workers) for name in _STAGES}
    counts: dict[str, int] = {
        name: sum(getattr(each, name) for each in workers) for name in _COUNTS
    }
    return WorkerMetrics(worker=None, seconds=seconds, **counts)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _duration(seconds: float) -> str:
    if seconds >= 1:
        value, unit = seconds, "s"
    elif seconds >= 1e-4:
        value, unit = seconds * 1e3, "ms"
    else:
        value, unit = seconds * 1e6, "µs"
    return f"{value:.{0 if value >= 10 else 1}f} {unit}"


class _Loop:
    """Measures a training loop. One thread at a time uses it."""

    def __init__(self) -> None:
        self.wait_seconds = self.busy_seconds = 0.0
        self.counts = [0] * (len(_BOUNDS) + 1)

    def read(self) -> LoopMetrics:
        return LoopMetrics(self.wait_seconds, self.busy_seconds, tuple(self.counts))


class _Start:
    """What the figures were at the start of an epoch."""

    def __init__(self, epoch: int, rows: list[list[float]], loop: LoopMetrics) -> None:
        self.epoch = epoch
        self.rows = rows
        self.loop = loop
        self.time = perf_counter()


class Telemetry:
    """The figures of a dataset. Copies of it in the workers of a loader share the counters."""

    def __init__(self, rank: int, threads: int) -> None:
        from .tensors import torch  # blocks work without PyTorch

        shape = (1 + _MAX_WORKERS, len(_COLUMNS))
        self._rows = torch.zeros(shape, dtype=torch.float64).share_memory_()
        self._loop = _Loop()
        self._start: _Start | None = None
        self._epoch: EpochMetrics | None = None
        self._watches = 0
        self._threads = threads
        self.rank = rank
        """The rank."""

    def record(self) -> Recorder:
        """Return the recorder of an iteration of this process."""
        from .tensors import torch

        worker = torch.utils.data.get_worker_info()
        row = 0 if worker is None else min(worker.id + 1, _MAX_WORKERS)
        return Recorder(memoryview(self._rows[row].numpy()))

    def measure(self, batches: Iterable[Any], epoch: int) -> Iterator[Any]:
        """Yield the batches of a dataset, and measure the loop unless a loader is watched."""
        if self._watches:
            yield from batches
        else:
            yield from self._measure(batches, epoch)

    def watch(self, batches: Iterable[Any], epoch: int) -> Iterator[Any]:
        """Yield the batches of a loader, and measure the loop."""
        self._watches += 1
        try:
            yield from self._measure(batches, epoch)
        finally:
            self._watches -= 1

    def _measure(self, batches: Iterable[Any], epoch: int) -> Iterator[Any]:
        start = self._start = _Start(epoch, self._rows.tolist(), self._loop.read())
        loop, counts, requested = self._loop, self._loop.counts, start.time
        iterator = iter(batches)
        try:
            while (batch := next(iterator, _END)) is not _END:
                arrived = perf_counter()
                wait = arrived - requested
                counts[find_bucket(wait)] += 1
                loop.wait_seconds += wait
                for instruments in _INSTRUMENTS.get(self, ()):
                    instruments.add_wait(self, wait)
                yield batch
                del batch  # its memory may be leased
                requested = perf_counter()
                loop.busy_seconds += requested - arrived
        finally:
            del iterator
            self._epoch = self._finish(start)
            if self._start is start:
                self._start = None
        _log.info(self._epoch.summary())

    def _finish(self, start: _Start) -> EpochMetrics:
        """Return the figures since the start of an epoch."""
        rows = [
            [now - before for now, before in zip(*pair, strict=True)]
            for pair in zip(self._rows.tolist(), start.rows, strict=True)
        ]
        loop, before = self._loop.read(), start.loop
        return EpochMetrics(
            start.epoch,
            perf_counter() - start.time,
            self._threads,
            _list_workers(rows),
            LoopMetrics(
                loop.wait_seconds - before.wait_seconds,
                loop.busy_seconds - before.busy_seconds,
                tuple(now - old for now, old in zip(loop.counts, before.counts, strict=True)),
            ),
        )

    def collect(self) -> LoaderMetrics:
        """Return the figures. Any thread may call this."""
        start = self._start
        return LoaderMetrics(
            self.rank,
            _list_workers(self._rows.tolist()),
            self._loop.read(),
            self._epoch if start is None else self._finish(start),
        )


def _list_workers(rows: Sequence[Sequence[float]]) -> tuple[WorkerMetrics, ...]:
    """Return the figures of the workers whose rows are not empty."""
    return tuple(
        WorkerMetrics(
            worker=number - 1 if number else None,
            seconds={name: row[_COLUMNS[name]] for name in _STAGES},
            **{name: int(row[_COLUMNS[name]]) for name in _COUNTS},
        )
        for number, row in enumerate(rows)
        if any(row)
    )


class WatchedLoader:
    """A loader whose training loop is measured. It has the length of the loader."""

    def __init__(
        self, telemetry: Telemetry, loader: Iterable[Any], find_epoch: Callable[[], int]
    ) -> None:
        self._telemetry = telemetry
        self._loader = loader
        self._find_epoch = find_epoch

    def __iter__(self) -> Iterator[Any]:
        return self._telemetry.watch(self._loader, self._find_epoch())

    def __len__(self) -> int:
        loader: Any = self._loader
        return len(loader)


_HELP: dict[str, str] = {
    "steps": "Batches that were yielded.",
    "rows": "Rows of batches that were yielded.",
    "reads": "Reads, each of one or more blocks.",
    "read_rows": "Rows that were read.",
    "read_bytes": "Bytes of the record batches that were read, decoded.",
    "block_hits": "Uses of a block that was read for an earlier batch.",
    "retries": "Reads that were started again, or continued over a new connection.",
    "errors": "Iterations that ended with an exception.",
    "stage_seconds": "Seconds by stage, added up over threads.",
    "busy_seconds": "Seconds between a batch and the request for the next one.",
}
_BY_RANK = ("loader", "rank")
_BY_WORKER = (*_BY_RANK, "worker")
_LABELS = {"stage_seconds": (*_BY_WORKER, "stage"), "busy_seconds": _BY_RANK}
"""The labels of figures other than `_BY_WORKER`."""
_PREFIX = "splitarrow_loader_"
_METER = "splitarrow.loader"
_WAIT_HELP = "Time that the training loop waited for a batch."
_UNITS = {"seconds": "s", "bytes": "By"}
"""The units of OpenTelemetry by the last word of a figure. Others are counts."""
Labels = dict[str, str]


class _Exported:
    """The datasets that are exported together."""

    def __init__(self) -> None:
        self._datasets: dict[tuple[str, int], Telemetry] = {}

    def add(self, name: str, telemetry: Telemetry) -> None:
        """Add a dataset, in place of that of its name and rank."""
        self._datasets[name, telemetry.rank] = telemetry

    def collect_metrics(self) -> list[tuple[Labels, LoaderMetrics]]:
        """Return the labels and the metrics of each dataset."""
        return [(_make_labels(key), each.collect()) for key, each in list(self._datasets.items())]

    def find_labels(self, telemetry: Telemetry) -> list[Labels]:
        """Return the labels under which a dataset is exported."""
        return [
            _make_labels(key) for key, each in list(self._datasets.items()) if each is telemetry
        ]


def _make_labels(key: tuple[str, int]) -> Labels:
    return {"loader": key[0], "rank": str(key[1])}


def _list_values(
    figure: str, found: Iterable[tuple[Labels, LoaderMetrics]]
) -> Iterator[tuple[Labels, float]]:
    """Yield the values of a figure of `_HELP`, each with its labels."""
    for labels, metrics in found:
        if figure == "busy_seconds":
            yield labels, metrics.loop.busy_seconds
            continue
        for one in metrics.workers:
            worker = {**labels, "worker": "trainer" if one.worker is None else str(one.worker)}
            if figure == "stage_seconds":
                for stage, seconds in one.seconds.items():
                    yield {**worker, "stage": stage}, seconds
            else:
                yield worker, getattr(one, figure)


class _Collector(_Exported):
    """Collects the metrics of all datasets that are exported to one registry of Prometheus."""

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as families of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        found = self.collect_metrics()
        for figure, text in _HELP.items():
            names = _LABELS.get(figure, _BY_WORKER)
            family = CounterMetricFamily(f"{_PREFIX}{figure}", text, labels=names)
            for labels, value in _list_values(figure, found):
                family.add_metric([labels[name] for name in names], value)
            yield family
        waits = HistogramMetricFamily(f"{_PREFIX}wait_seconds", _WAIT_HELP, labels=_BY_RANK)
        for labels, metrics in found:
            loop = metrics.loop
            values = [labels[name] for name in _BY_RANK]
            waits.add_metric(values, _list_buckets(loop.counts), loop.wait_seconds)
        yield waits


def _list_buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the exported bounds, each with the number of waits up to it."""
    ends = list(accumulate(counts))
    buckets = [(str(bound), float(ends[_BOUNDS.index(bound)])) for bound in _EXPORTED_BOUNDS]
    return [*buckets, ("+Inf", float(ends[-1]))]


class _Instruments(_Exported):
    """The instruments of OpenTelemetry for all datasets that are exported to one meter.

    The workers of a loader do not export. Their figures are those of the trainer.
    """

    def __init__(self, meter: Any) -> None:
        super().__init__()
        self._process = os.getpid()
        for figure, text in _HELP.items():
            unit = _UNITS.get(figure.rpartition("_")[2], "1")
            callbacks = [partial(self._observe, figure)]
            meter.create_observable_counter(f"{_METER}.{figure}", callbacks, unit, text)
        self._waits = meter.create_histogram(
            f"{_METER}.wait_seconds",
            "s",
            _WAIT_HELP,
            explicit_bucket_boundaries_advisory=_EXPORTED_BOUNDS,
        )

    def _observe(self, figure: str, _options: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        found = self.collect_metrics() if os.getpid() == self._process else ()
        for labels, value in _list_values(figure, found):
            yield Observation(value, labels)

    def add_wait(self, telemetry: Telemetry, seconds: float) -> None:
        """Add a wait of a training loop to the histogram, which no snapshot can fill."""
        if os.getpid() == self._process:
            for labels in self.find_labels(telemetry):
                self._waits.record(seconds, labels)


_COLLECTORS: WeakKeyDictionary[Any, _Exported] = WeakKeyDictionary()
"""What is exported to each registry, meter or meter provider."""
_INSTRUMENTS: WeakKeyDictionary[Telemetry, tuple[_Instruments, ...]] = WeakKeyDictionary()
"""The instruments that need each wait."""


def export_metrics(telemetry: Telemetry, name: str, registry: Any = None) -> None:
    """Add the metrics of a dataset to a registry, in place of those of its name and rank.

    `registry` may be a meter or a meter provider of OpenTelemetry. Raises `MissingExtraError` if it
    is None and prometheus_client is not installed.
    """
    check_text("name", name)
    if hasattr(registry, "get_meter") or hasattr(registry, "create_observable_counter"):
        _export_to_meter(telemetry, name, registry)
        return
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        raise MissingExtraError(
            f"metrics for Prometheus need the package 'prometheus-client': {install_hint('http')}"
        ) from None
    registry = REGISTRY if registry is None else registry
    if not callable(getattr(registry, "register", None)):
        refuse("registry", registry, "a CollectorRegistry, MeterProvider or Meter, or None")
    collector = _COLLECTORS.get(registry)
    if collector is None:
        collector = _COLLECTORS[registry] = _Collector()
        registry.register(collector)
    collector.add(name, telemetry)


def _export_to_meter(telemetry: Telemetry, name: str, target: Any) -> None:
    instruments = _COLLECTORS.get(target)
    if not isinstance(instruments, _Instruments):
        meter = target.get_meter("splitarrow.pytorch") if hasattr(target, "get_meter") else target
        instruments = _COLLECTORS[target] = _Instruments(meter)
    instruments.add(name, telemetry)
    others = _INSTRUMENTS.get(telemetry, ())
    _INSTRUMENTS[telemetry] = tuple({*others, instruments})
