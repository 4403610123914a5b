"""The runner: it measures every backend in turn, round after round.

A case is a backend with a server and some concurrent clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import DatasetError, MissingExtraError
from .backends import available_backends, backend_names, find_backend
from .datasets import BatchFile, make_dataset
from .machine import (
    SAMPLE_SECONDS,
    MemorySampler,
    machine_properties,
    max_known,
    reset_peak,
    software_versions,
)
from .options import Consume, Options
from .report import ReadSample, Report, Result, Section
from .statistics import format_size
from .worker import WorkerJob, WorkerProcess, receive_replies

_SETUP_SECONDS = 60.0
_SETUP_SECONDS_PER_CLIENT = 2.0
_START_DELAY_SECONDS = 0.02
"""The time for the start command to reach every client."""
_SAMPLED_PROCESSES = 10
"""The processes whose memory is sampled at the usual interval. More are sampled less often."""


@dataclass(frozen=True, slots=True)
class Case:
    """A backend, its server, and the clients that read at once."""

    backend: str
    """The name of the backend."""
    server: WorkerProcess | None
    """The server; None if the client's process serves the file."""
    clients: list[WorkerProcess]
    """The clients."""

    def measure(self, timeout: float, consume: Consume, *, check: bool) -> ReadSample:
        """Let all clients read the whole file at the same time."""
        for client in self.clients:
            client.send({"do": "prepare"})
        receive_replies(self.clients, timeout)
        server_cpu = self._server_cpu_seconds(timeout)
        if self.server is not None:
            reset_peak(self.server.pid)
        interval = SAMPLE_SECONDS * max(1.0, len(self.clients) / _SAMPLED_PROCESSES)
        with MemorySampler(self._process_ids, interval) as memory:
            start_at = time.monotonic() + _START_DELAY_SECONDS
            for client in self.clients:
                client.send(
                    {"do": "read", "consume": consume, "check": check, "start_at": start_at}
                )
            replies = receive_replies(self.clients, timeout)
        server_cpu_after = self._server_cpu_seconds(timeout)
        begin = min(reply["begin"] for reply in replies)
        first_batches = [
            reply["first_at"] - reply["begin"] for reply in replies if reply["first_at"] is not None
        ]
        server = None if self.server is None else memory.maxima[self.server.pid]
        return ReadSample(
            seconds=max(reply["end"] for reply in replies) - begin,
            first_batch_seconds=max(first_batches, default=None),
            client_cpu_seconds=sum(reply["cpu_seconds"] for reply in replies),
            server_cpu_seconds=(
                None
                if server_cpu is None or server_cpu_after is None
                else server_cpu_after - server_cpu
            ),
            client_peak_bytes=max_known(reply["peak"] for reply in replies),
            client_anonymous_bytes=max_known(
                memory.maxima[client.pid].anonymous for client in self.clients
            ),
            server_peak_bytes=None if server is None else server.peak,
            server_anonymous_bytes=None if server is None else server.anonymous,
        )

    def _process_ids(self) -> list[int]:
        servers = [] if self.server is None else [self.server]
        return [worker.pid for worker in (*servers, *self.clients)]

    def _server_cpu_seconds(self, timeout: float) -> float | None:
        if self.server is None:
            return None
        return self.server.request({"do": "usage"}, timeout)["cpu_seconds"]


def start_cases(
    stack: ExitStack,
    backends: Sequence[str],
    clients: Sequence[int],
    dataset: BatchFile,
    options: Options,
) -> list[Case]:
    """Start the workers of several cases, and wait until all are ready.

    `stack` ends the workers. The cases of a backend share a server and its clients.
    """

    def start(role: str, backend: str, address: str | None = None) -> WorkerProcess:
        job = WorkerJob(backend, dataset, options.read, options.validate, address)
        return stack.enter_context(WorkerProcess(f"the {role} of {backend}", asdict(job)))

    servers = {
        name: start("server", name) for name in backends if not find_backend(name).in_process
    }
    replies = receive_replies(list(servers.values()), _SETUP_SECONDS)
    addresses = {name: reply["address"] for name, reply in zip(servers, replies, strict=True)}
    readers = {
        name: [start("client", name, addresses.get(name)) for _ in range(max(clients))]
        for name in backends
    }
    started = [client for group in readers.values() for client in group]
    receive_replies(started, _SETUP_SECONDS + _SETUP_SECONDS_PER_CLIENT * len(started))
    return [
        Case(name, servers.get(name), group[:count])
        for name, group in readers.items()
        for count in clients
    ]


Progress = Callable[[int, int, str], None]
"""Called with the number of finished reads, the number of all reads, and the next step."""


def run(options: Options, progress: Progress | None = None) -> Report:
    """Measure all cases and return the report.

    The data files and processes are gone when this function returns or raises, also after an
    interrupt. Raises `SplitArrowError` if a server or a client fails, or a client receives other
    data than the file contains.
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
    group: _Group, dataset: BatchFile, options: Options, counter: _ProgressCounter
) -> list[Result]:
    with ExitStack() as stack:
        counter.show(f"starting {', '.join(group.backends)}")
        cases = start_cases(stack, group.backends, group.clients, dataset, options)
        for case in cases:
            counter.advance(_read_label(case, dataset, "warm-up and check"))
            case.measure(options.timeout, group.consume[0], check=True)
        samples: dict[tuple[Consume, int], list[ReadSample]] = {}
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


def _read_label(case: Case, dataset: BatchFile, name: str) -> str:
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
