"""The runner: every backend in turn, round after round, each in processes of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import DatasetError, MissingExtraError
from . import backends
from .dataset import Dataset, make_dataset
from .machine import machine, versions
from .memory import larger, memory_of, reset_peak
from .options import Options
from .processes import Worker, answers_of
from .report import Report
from .results import Result, Sample, Section

_START_SECONDS = 60.0
_AHEAD_SECONDS = 0.02
"""How long before it several clients are told when to start."""

Progress = Callable[[int, int, str], None]
"""Called with how many reads are done, how many there are, and what comes next."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Cases that share a file, and whose rounds alternate."""

    section: Section
    batch_bytes: int
    batches: int
    backends: list[str]
    clients: list[int]


def run(options: Options, progress: Progress | None = None) -> Report:
    """Measure, and return the report.

    Data files and processes are gone when this returns or raises, interrupts included.

    Parameters
    ----------
    options : Options
        What to measure.
    progress : callable, optional
        Told before each read what comes next.

    Raises
    ------
    UsageError
        If there is no backend of a name; `MissingExtraError` if one that was named cannot run.
    DatasetError
        If there is no room for the data.
    SplitArrowError
        If a server or client fails, or what a client received is not what the file holds.
    """
    chosen, skipped = _choose(options)
    groups = list(_groups(options, chosen))
    reads = sum(len(group.backends) * len(group.clients) for group in groups)
    report = progress or (lambda done, total, what: None)
    counter = _Counter(reads * (options.rounds + 1), report)
    results: list[Result] = []
    try:
        folder = TemporaryDirectory(prefix="splitarrow-bench-", dir=options.directory)
    except OSError as error:
        raise DatasetError(f"cannot make a folder for the data: {error}") from None
    with folder as name:
        for group in groups:
            path = Path(name) / "data.arrow"
            counter.say(f"writing {group.batches} batches of {group.batch_bytes} bytes")
            dataset = make_dataset(path, group.batch_bytes, group.batches)
            results += _measure_group(group, dataset, options, counter)
            path.unlink()
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        machine=machine(),
        options=_plain(options),
        skipped=skipped,
        results=results,
    )


class _Counter:
    def __init__(self, total: int, report: Progress) -> None:
        self._done = 0
        self._total = total
        self._report = report

    def say(self, what: str) -> None:
        self._report(self._done, self._total, what)

    def next(self, what: str) -> None:
        self.say(what)
        self._done += 1


def _choose(options: Options) -> tuple[list[str], dict[str, str]]:
    ready, missing = backends.available()
    if options.backends is None:
        return ready, missing
    for name in options.backends:
        backends.backend(name)
        if name in missing:
            raise MissingExtraError(f"the backend {name} cannot run here: {missing[name]}")
    return [name for name in backends.names() if name in options.backends], {}


def _groups(options: Options, chosen: list[str]) -> Iterator[_Group]:
    for size in options.batch_bytes:
        yield _Group("sizes", size, options.batches(size), chosen, [1])
    several = [name for name in chosen if name in options.concurrent_backends]
    if options.clients > 1 and several:
        size = options.concurrent_batch_bytes
        batches = options.batches(size, concurrent=True)
        yield _Group("clients", size, batches, several, [1, options.clients])


def _plain(options: Options) -> dict[str, object]:
    plain = asdict(options)
    del plain["directory"]  # it is nobody's business
    return plain


def _measure_group(
    group: _Group, dataset: Dataset, options: Options, counter: _Counter
) -> list[Result]:
    with ExitStack() as stack:
        counter.say(f"starting {', '.join(group.backends)}")
        cases: list[tuple[_Case, list[Sample]]] = []
        for name, server, clients in _start(stack, group, dataset, options):
            cases += [(_Case(name, server, clients[:count]), []) for count in group.clients]
        for number in range(options.rounds + 1):
            for case, samples in cases:
                batch = _size(dataset.batch_bytes)
                kind = f"round {number}" if number else "warm-up and check"
                who = f", {len(case.clients)} clients" if len(case.clients) > 1 else ""
                counter.next(f"{case.name}, batches of {batch}{who}: {kind}")
                sample = case.measure(options.timeout, check=number == 0)
                if number:
                    samples.append(sample)
    return [
        Result(
            group.section,
            case.name,
            dataset.batch_bytes,
            dataset.batches,
            dataset.rows,
            len(case.clients),
            samples,
        )
        for case, samples in cases
    ]


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes / 1024:g} KiB"


def _start(
    stack: ExitStack, group: _Group, dataset: Dataset, options: Options
) -> list[tuple[str, Worker | None, list[Worker]]]:
    """Start the server and the clients of each backend, and wait until all are ready."""

    def started(role: str, name: str, address: str | None = None) -> Worker:
        job = {
            "role": role,
            "backend": name,
            "address": address,
            "dataset": asdict(dataset),
            "consume": options.consume,
            "read": options.read,
            "validate": options.validate,
        }
        return stack.enter_context(Worker(f"the {role} of {name}", job))

    apart = [name for name in group.backends if not backends.backend(name).in_process]
    servers = {name: started("server", name) for name in apart}
    answers = answers_of(list(servers.values()), _START_SECONDS)
    addresses = {name: answer["address"] for name, answer in zip(servers, answers, strict=True)}
    count = max(group.clients)
    clients = {
        name: [started("client", name, addresses.get(name)) for _ in range(count)]
        for name in group.backends
    }
    answers_of([client for several in clients.values() for client in several], _START_SECONDS)
    return [(name, servers.get(name), several) for name, several in clients.items()]


@dataclass(frozen=True, slots=True)
class _Case:
    """A backend with its server and those clients that read at once."""

    name: str
    server: Worker | None
    clients: list[Worker]

    def measure(self, timeout: float, *, check: bool) -> Sample:
        """Let every client read the file once, all at the same time."""
        server_anonymous: int | None = None
        client_anonymous: int | None = None

        def watch() -> None:
            nonlocal server_anonymous, client_anonymous
            if self.server is not None:
                server_anonymous = larger(server_anonymous, memory_of(self.server.pid).anonymous)
            for client in self.clients:
                client_anonymous = larger(client_anonymous, memory_of(client.pid).anonymous)

        server_cpu = self._server_cpu(timeout)
        if self.server is not None:
            reset_peak(self.server.pid)
        start_at = time.monotonic() + _AHEAD_SECONDS
        for client in self.clients:
            client.tell({"do": "read", "check": check, "start_at": start_at})
        answers = answers_of(self.clients, timeout, watch)
        begin = min(answer["begin"] for answer in answers)
        firsts = [
            answer["first_at"] - answer["begin"]
            for answer in answers
            if answer["first_at"] is not None
        ]
        peaks = [answer["peak"] for answer in answers if answer["peak"] is not None]
        used = self._server_cpu(timeout)
        return Sample(
            seconds=max(answer["end"] for answer in answers) - begin,
            first_batch_seconds=max(firsts) if firsts else None,
            client_cpu_seconds=sum(answer["cpu_seconds"] for answer in answers),
            server_cpu_seconds=None if server_cpu is None or used is None else used - server_cpu,
            client_peak_bytes=max(peaks) if peaks else None,
            client_anonymous_bytes=client_anonymous,
            server_peak_bytes=None if self.server is None else memory_of(self.server.pid).peak,
            server_anonymous_bytes=server_anonymous,
        )

    def _server_cpu(self, timeout: float) -> float | None:
        if self.server is None:
            return None
        return self.server.ask({"do": "usage"}, timeout)["cpu_seconds"]
