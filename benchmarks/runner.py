"""The runner: it measures every backend in turn, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import DatasetError, MissingExtraError
from .backends import available_backends, backend_names, find_backend
from .case import Case, start_cases
from .dataset import Dataset, make_dataset
from .formatting import format_size
from .machine import machine_properties, software_versions
from .options import Consume, Options
from .report import Report
from .results import Result, Sample, Section

Progress = Callable[[int, int, str], None]
"""Called with the number of finished reads, the number of all reads, and the next step."""


def run(options: Options, progress: Progress | None = None) -> Report:
    """Measure all cases and return the report.

    The data files and processes are gone when this function returns or raises, also after an
    interrupt.

    Raises `UsageError` if the options name an unknown backend. Raises `MissingExtraError` if the
    options name a backend that cannot run on this machine. Raises `DatasetError` if the disk has
    too little space for the data. Raises `SplitArrowError` if a server or a client fails, or a
    client receives other data than the file contains.
    """
    names, skipped = _select_backends(options)
    groups = list(_plan(options, names))
    reads = sum(group.reads(options.rounds) for group in groups)
    counter = _ProgressCounter(reads, progress)
    results: list[Result] = []
    try:
        folder = TemporaryDirectory(prefix="splitarrow-bench-", dir=options.directory)
    except OSError as error:
        raise DatasetError(f"cannot create a folder for the data: {error}") from None
    with folder as folder_name:
        path = Path(folder_name) / "data.arrow"
        for group in groups:
            counter.show(f"writing {group.batches} batches of {format_size(group.batch_bytes)}")
            dataset = make_dataset(path, group.batch_bytes, group.batches)
            results += _measure_group(group, dataset, options, counter)
            path.unlink()
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=software_versions(),
        machine=machine_properties(),
        options=_public_options(options),
        skipped=skipped,
        results=results,
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Cases that share a file and take turns."""

    section: Section
    batch_bytes: int
    batches: int
    backends: list[str]
    clients: list[int]
    consume: tuple[Consume, ...]

    def reads(self, rounds: int) -> int:
        """Return the number of reads, with one per case that warms up."""
        return len(self.backends) * len(self.clients) * (1 + rounds * len(self.consume))


def _plan(options: Options, backends: list[str]) -> Iterator[_Group]:
    for size in options.batch_bytes:
        yield _Group("sizes", size, options.batches(size), backends, [1], options.consume)
    concurrent = [name for name in backends if name in options.concurrent_backends]
    clients = sorted({1, *options.clients})
    if len(clients) > 1 and concurrent:
        size = options.concurrent_batch_bytes
        batches = options.batches(size, concurrent=True)
        yield _Group("clients", size, batches, concurrent, clients, options.consume[:1])


def _select_backends(options: Options) -> tuple[list[str], dict[str, str]]:
    """Return the names of the backends to measure, and the reasons to skip others."""
    if options.backends is None:
        return available_backends()
    for name in options.backends:
        reason = find_backend(name).unavailable_reason()
        if reason is not None:
            raise MissingExtraError(f"the backend {name} cannot run here: {reason}")
    return [name for name in backend_names(on_request=True) if name in options.backends], {}


def _public_options(options: Options) -> dict[str, object]:
    plain = asdict(options)
    del plain["directory"]  # a report may be published, and a path can contain a user's name
    return plain


def _measure_group(
    group: _Group, dataset: Dataset, options: Options, counter: _ProgressCounter
) -> list[Result]:
    with ExitStack() as stack:
        counter.show(f"starting {', '.join(group.backends)}")
        cases = start_cases(stack, group.backends, group.clients, dataset, options)
        for case in cases:
            counter.advance(_read_label(case, dataset, "warm-up and check"))
            case.measure(options.timeout, group.consume[0], check=True)
        samples: dict[tuple[Consume, int], list[Sample]] = {}
        for round_number in range(1, options.rounds + 1):
            for consume in group.consume:
                for index, case in enumerate(cases):
                    label = f"round {round_number}, {consume}"
                    counter.advance(_read_label(case, dataset, label))
                    sample = case.measure(options.timeout, consume, check=False)
                    samples.setdefault((consume, index), []).append(sample)
    return [
        Result(
            group.section,
            cases[index].backend,
            dataset.batch_bytes,
            dataset.batches,
            dataset.rows,
            len(cases[index].clients),
            consume,
            case_samples,
        )
        for (consume, index), case_samples in samples.items()
    ]


def _read_label(case: Case, dataset: Dataset, name: str) -> str:
    clients = f", {len(case.clients)} clients" if len(case.clients) > 1 else ""
    return f"{case.backend}, batches of {format_size(dataset.batch_bytes)}{clients}: {name}"


class _ProgressCounter:
    """Counts the reads of a run for the progress callback."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._started = 0
        self._total = total
        self._progress = progress

    def show(self, step: str) -> None:
        """Report a step that is not a read."""
        if self._progress is not None:
            self._progress(self._started, self._total, step)

    def advance(self, step: str) -> None:
        """Report the next read."""
        self.show(step)
        self._started += 1
