"""The measurements of a run, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .options import Consume
from .statistics import Statistics

Section = Literal["sizes", "clients"]
"""The sections of a run: one client with every batch size, and several clients with one size."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Sample:
    """One read of a file, or one read by each of several concurrent clients."""

    seconds: float
    """The time from the connect of the first client to the end of the last one."""
    first_batch_seconds: float | None
    """The time from connect to first batch, of the slowest client; None for whole tables."""
    client_cpu_seconds: float
    """The CPU time of all clients."""
    server_cpu_seconds: float | None
    """The CPU time of the server; None if it runs in the client's process."""
    client_peak_bytes: int | None
    """The maximum resident memory of a client."""
    client_anonymous_bytes: int | None
    """The maximum anonymous memory of a client: without the pages of mapped files."""
    server_peak_bytes: int | None
    """The maximum resident memory of the server, including the pages of mapped files."""
    server_anonymous_bytes: int | None
    """The maximum anonymous memory of the server."""


@dataclass(frozen=True, slots=True)
class Result:
    """The samples of one backend, batch size and number of clients."""

    section: Section
    """The section of the run."""
    backend: str
    """The name of the backend."""
    batch_bytes: int
    """The size of a batch body, in bytes."""
    batches: int
    """The number of batches that each client reads."""
    rows: int
    """The number of rows that each client reads."""
    clients: int
    """The number of concurrent clients."""
    consume: Consume
    """The operation of the clients on each batch."""
    samples: list[Sample]
    """One sample per counted round."""

    @property
    def case(self) -> tuple[int, int, Consume]:
        """The batch size in bytes, the number of clients and their operation."""
        return self.batch_bytes, self.clients, self.consume

    @property
    def bytes(self) -> int:
        """The number of body bytes that all clients read together."""
        return self.batch_bytes * self.batches * self.clients

    @property
    def rate(self) -> Statistics:
        """Body bytes per second, of all clients together."""
        return self._per_second(self.bytes)

    @property
    def batch_rate(self) -> Statistics:
        """Batches per second, of all clients together."""
        return self._per_second(self.batches * self.clients)

    @property
    def row_rate(self) -> Statistics:
        """Rows per second, of all clients together."""
        return self._per_second(self.rows * self.clients)

    @property
    def first_batch(self) -> Statistics | None:
        """Seconds until the first batch."""
        return Statistics.of(sample.first_batch_seconds for sample in self.samples)

    @property
    def client_cpu(self) -> Statistics | None:
        """CPU seconds of the clients per GiB of bodies."""
        return self._per_gib(sample.client_cpu_seconds for sample in self.samples)

    @property
    def server_cpu(self) -> Statistics | None:
        """CPU seconds of the server per GiB of bodies."""
        return self._per_gib(sample.server_cpu_seconds for sample in self.samples)

    @property
    def cpu(self) -> Statistics | None:
        """CPU seconds of the server and the clients together per GiB of bodies."""
        return self._per_gib(
            sample.client_cpu_seconds + (sample.server_cpu_seconds or 0.0)
            for sample in self.samples
        )

    def maximum(self, field: str) -> int | None:
        """Return the largest value of a field of the samples; None if all are unknown."""
        statistics = Statistics.of(getattr(sample, field) for sample in self.samples)
        return None if statistics is None else int(statistics.maximum)

    def to_dict(self) -> dict[str, Any]:
        """Return the samples, and the median rates that follow from them."""
        return {
            **asdict(self),
            "gigabytes_per_second": round(self.rate.median / 1e9, 4),
            "batches_per_second": round(self.batch_rate.median, 1),
            "rows_per_second": round(self.row_rate.median, 1),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Result:
        """Return the result that `to_dict` converted."""
        fields: dict[str, Any] = {name: plain[name] for name in cls.__dataclass_fields__}
        fields["samples"] = [Sample(**sample) for sample in plain["samples"]]
        return cls(**fields)

    def _per_second(self, count: float) -> Statistics:
        statistics = Statistics.of(count / sample.seconds for sample in self.samples)
        assert statistics is not None, "a result has at least one sample"
        return statistics

    def _per_gib(self, values: Iterable[float | None]) -> Statistics | None:
        gib = self.bytes / _GIB
        return Statistics.of(None if value is None else value / gib for value in values)
