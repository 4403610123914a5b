"""One case of a run: a backend with a server and some concurrent clients, ready to measure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from .backends import find_backend
from .dataset import Dataset
from .memory import SAMPLE_SECONDS, MemorySampler, max_known, reset_peak
from .options import Consume, Options
from .results import Sample
from .worker import WorkerJob
from .worker_process import WorkerProcess, receive_replies

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

    def measure(self, timeout: float, consume: Consume, *, check: bool) -> Sample:
        """Let all clients read the whole file at the same time.

        `timeout` is the longest time to wait for all clients, in seconds. Raises `SplitArrowError`
        if the server or a client fails, exits, or does not reply in time.
        """
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
        return Sample(
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
    dataset: Dataset,
    options: Options,
) -> list[Case]:
    """Start the workers of several cases, and wait until all are ready.

    `stack`: Ends the workers when it closes. `clients`: the cases of a backend share a server and
    clients. Raises `SplitArrowError` if a worker does not start.
    """

    def start(role: str, backend: str, address: str | None = None) -> WorkerProcess:
        job = WorkerJob(backend, dataset, options.read, options.validate, address)
        return stack.enter_context(WorkerProcess(f"the {role} of {backend}", asdict(job)))

    servers = {name: start("server", name) for name in backends if _has_server(name)}
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


def _has_server(backend: str) -> bool:
    return not find_backend(backend).in_process
