"""The figures of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

Section = Literal["sizes", "clients"]
"""Which part of the run: one client and every batch size, or one size and several clients."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One read, or the reads of several clients at once."""

    seconds: float
    """From the first client's connecting to the last one's end."""
    first_batch_seconds: float | None
    """From connecting to the first batch, of the slowest client; None for a whole table."""
    client_cpu_seconds: float
    """The processor time of all clients."""
    server_cpu_seconds: float | None
    """The processor time of the server; None if it is the client's process."""
    client_peak_bytes: int | None
    """The most resident memory of one client."""
    client_anonymous_bytes: int | None
    """The most of it that is not the contents of files, seen every 20 ms."""
    server_peak_bytes: int | None
    """The most resident memory of the server, the pages of a mapped file included."""
    server_anonymous_bytes: int | None
    """The most of it that is not the contents of files, seen every 20 ms."""


class Spread(NamedTuple):
    """The middle and the ends of a row of figures."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Return the spread of those values that are known; None if none is."""
        known = [value for value in values if value is not None]
        return cls(median(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class Result:
    """The samples of one backend, batch size and number of clients."""

    section: Section
    """The part of the run."""
    backend: str
    """The backend's name."""
    batch_bytes: int
    """The size of a batch, in bytes of body."""
    batches: int
    """How many batches one client reads."""
    rows: int
    """How many rows one client reads."""
    clients: int
    """How many clients read at once."""
    samples: list[Sample]
    """One for each counted round."""

    @property
    def bytes(self) -> int:
        """How many bytes of body all clients read, together."""
        return self.batch_bytes * self.batches * self.clients

    @property
    def rate(self) -> Spread:
        """Bytes of body in a second, all clients together."""
        return self._per_second(self.bytes)

    @property
    def batch_rate(self) -> Spread:
        """Batches in a second, all clients together."""
        return self._per_second(self.batches * self.clients)

    @property
    def row_rate(self) -> Spread:
        """Rows in a second, all clients together."""
        return self._per_second(self.rows * self.clients)

    @property
    def first_batch(self) -> Spread | None:
        """Seconds to the first batch."""
        return Spread.of(sample.first_batch_seconds for sample in self.samples)

    @property
    def client_cpu(self) -> Spread | None:
        """Processor seconds of the clients for 1 GiB of bodies."""
        return self._per_gib(sample.client_cpu_seconds for sample in self.samples)

    @property
    def server_cpu(self) -> Spread | None:
        """Processor seconds of the server for 1 GiB of bodies."""
        return self._per_gib(sample.server_cpu_seconds for sample in self.samples)

    def most(self, field: str) -> int | None:
        """Return the largest value of a field of the samples; None if none is known."""
        spread = Spread.of(getattr(sample, field) for sample in self.samples)
        return None if spread is None else int(spread.most)

    def to_dict(self) -> dict[str, Any]:
        """Return the raw figures, and the medians that follow from them."""
        return {
            **asdict(self),
            "gigabytes_per_second": round(self.rate.median / 1e9, 4),
            "batches_per_second": round(self.batch_rate.median, 1),
            "rows_per_second": round(self.row_rate.median, 1),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Result:
        """Return what `to_dict` made a dictionary of."""
        fields: dict[str, Any] = {name: plain[name] for name in cls.__dataclass_fields__}
        fields["samples"] = [Sample(**sample) for sample in plain["samples"]]
        return cls(**fields)

    def _per_second(self, count: float) -> Spread:
        spread = Spread.of(count / sample.seconds for sample in self.samples)
        assert spread is not None
        return spread

    def _per_gib(self, values: Iterable[float | None]) -> Spread | None:
        gib = self.bytes / 2**30
        return Spread.of(None if value is None else value / gib for value in values)
