"""The report of a run: its measurements, the ratios between backends, and their serialization."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import UsageError
from .backends import BASELINE, find_backend
from .options import Consume
from .statistics import Interval, Statistics, median_interval

Section = Literal["sizes", "clients"]
"""The sections of a run: one client with every batch size, and several clients with one size."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class ReadSample:
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
    samples: list[ReadSample]
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
        fields["samples"] = [ReadSample(**sample) for sample in plain["samples"]]
        return cls(**fields)

    def _per_second(self, count: float) -> Statistics:
        statistics = Statistics.of(count / sample.seconds for sample in self.samples)
        assert statistics is not None, "a result has at least one sample"
        return statistics

    def _per_gib(self, values: Iterable[float | None]) -> Statistics | None:
        gib = self.bytes / _GIB
        return Statistics.of(None if value is None else value / gib for value in values)


_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run, and its conditions."""

    created: str
    """The time of the run, in ISO 8601."""
    versions: dict[str, str]
    """The versions of Python and of the packages that affect the figures."""
    machine: dict[str, Any]
    """The processor, its threads, the memory in bytes, and the kernel."""
    options: dict[str, Any]
    """The options of the run."""
    skipped: dict[str, str]
    """The backends that could not run, with the reasons."""
    results: list[Result]
    """One result per backend, batch size, number of clients and operation of the clients."""

    def section(self, section: Section) -> list[Result]:
        """Return the results of a section."""
        return [result for result in self.results if result.section == section]

    def backends(self, section: Section = "sizes") -> list[str]:
        """Return the names of the backends of a section, in the order of the run."""
        return list(dict.fromkeys(result.backend for result in self.section(section)))

    def batch_sizes(self) -> list[int]:
        """Return the sizes of the batch bodies in bytes, in the order of the run."""
        return list(dict.fromkeys(result.batch_bytes for result in self.section("sizes")))

    def consumers(self) -> list[Consume]:
        """Return the operations of the clients, in the order of the run."""
        return list(dict.fromkeys(result.consume for result in self.section("sizes")))

    def find(self, backend: str, batch_bytes: int, consume: Consume = "count") -> Result | None:
        """Return the result of a backend, a batch size and an operation with one client."""
        for result in self.section("sizes"):
            key = (result.backend, result.batch_bytes, result.consume)
            if key == (backend, batch_bytes, consume):
                return result
        return None

    def baseline(self, result: Result) -> Result | None:
        """Return the result of its backend's baseline in the same case.

        None for a baseline itself and for the reference, and if the baseline did not run.
        """
        name = find_backend(result.backend).baseline
        for other in self.section(result.section):
            if other.backend == name and other.case == result.case:
                return other
        return None

    def ratio(self, result: Result) -> float | None:
        """Return the median rate of a result divided by that of the baseline, if there is one."""
        other = self.baseline(result)
        return None if other is None else result.rate.median / other.rate.median

    def ratio_interval(self, result: Result) -> Interval | None:
        """Return the confidence interval of the ratio, from the pairs of each round."""
        other = self.baseline(result)
        if other is None:
            return None
        pairs = zip(result.samples, other.samples, strict=True)
        return median_interval([theirs.seconds / ours.seconds for ours, theirs in pairs])

    def cpu_ratio(self, result: Result) -> float | None:
        """Return the CPU time of server and client per byte, divided by the baseline's."""
        other = self.baseline(result)
        if other is None or result.cpu is None or other.cpu is None or not other.cpu.median:
            return None
        return result.cpu.median / other.cpu.median

    def mean_ratio(self, backend: str, consume: Consume = "count") -> float | None:
        """Return the geometric mean of a backend's ratios over the batch sizes."""
        ratios = self._list_ratios(backend, consume)
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None

    def worst_ratio(self, backend: str, consume: Consume = "count") -> float | None:
        """Return the smallest of a backend's ratios over the batch sizes."""
        return min(self._list_ratios(backend, consume), default=None)

    def _list_ratios(self, backend: str, consume: Consume) -> list[float]:
        return [
            ratio
            for result in self.section("sizes")
            if (result.backend, result.consume) == (backend, consume)
            and (ratio := self.ratio(result)) is not None
        ]

    def mean_ratios(self, consume: Consume = "count") -> dict[str, float]:
        """Return the geometric mean of the ratios of each backend that has ratios."""
        means = {name: self.mean_ratio(name, consume) for name in self.backends()}
        return {name: mean for name, mean in means.items() if mean is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return all samples, and the ratios that follow from them."""
        results = [
            {
                **result.to_dict(),
                f"ratio_to_{BASELINE}": self.ratio(result),
                "ratio_interval": self.ratio_interval(result),
            }
            for result in self.results
        ]
        means = {consume: self.mean_ratios(consume) for consume in self.consumers()}
        return {
            "format": _FORMAT,
            "created": self.created,
            "versions": self.versions,
            "machine": self.machine,
            "options": self.options,
            "skipped": self.skipped,
            f"mean_ratio_to_{BASELINE}": means,
            "results": results,
        }

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report that `to_json` wrote; refuse any other text."""
        try:
            plain = json.loads(text)
            if plain["format"] != _FORMAT:
                raise UsageError(
                    f"the report has the format {plain['format']}; this version reads {_FORMAT}"
                )
            fields: dict[str, Any] = {name: plain[name] for name in cls.__dataclass_fields__}
            fields["results"] = [Result.from_dict(result) for result in plain["results"]]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"the file is not a benchmark report: {error!r}") from None
        return cls(**fields)


def read_report(path: Path) -> Report:
    """Read a report that ``splitarrow bench --json`` wrote."""
    try:
        return Report.from_json(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
