"""The report of the benchmark of loaders: its results, and their serialization."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..publication.atomic_files import AtomicFile
from .machine import machine_properties, software_versions
from .statistics import Statistics

OURS = ("splitarrow, shm", "splitarrow, tcp")
"""The loaders of splitarrow: one for each transport."""
GOALS = {"splitarrow, shm": 3.0, "splitarrow, tcp": 1.5}
"""The rate over that of the fastest peer, in warm rounds."""

_FORMAT = 1
_KIND = "loaders"
_PACKAGES = ("torch", "datasets", "mosaicml-streaming", "webdataset")


@dataclass(slots=True)
class LoaderResult:
    """The results of a loader with a number of workers."""

    loader: str
    """The name of the loader."""
    workers: int
    """The number of its workers."""
    peak_bytes: int
    """The largest memory of all processes together (PSS) while every value is read."""
    rates: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The rows per second of each round, by its kind: ``warm`` or ``cold``."""
    cpu: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The processor seconds for a million rows of each round, by its kind."""

    def add(self, kind: str, rate: float, cpu: float) -> None:
        """Add a round."""
        self.rates.setdefault(kind, []).append(rate)
        self.cpu.setdefault(kind, []).append(cpu)

    def rate(self, kind: str) -> Statistics | None:
        """Return the rows per second; None without a round."""
        return Statistics.of(self.rates.get(kind, []))

    def cpu_seconds(self, kind: str) -> Statistics | None:
        """Return the processor seconds for a million rows; None without a round."""
        return Statistics.of(self.cpu.get(kind, []))


@dataclass(slots=True)
class LoaderReport:
    """The results of a run so far, and its conditions."""

    rows: int
    """The rows of an epoch."""
    created: str
    """The time of the run, in ISO 8601."""
    versions: dict[str, str]
    """The versions of Python and of the packages that affect the figures."""
    machine: dict[str, Any]
    """The processor, its threads, the memory in bytes, and the kernel."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """The loaders that cannot run, or failed, with the reason."""
    results: list[LoaderResult] = field(default_factory=list[LoaderResult])
    """One result per number of workers and loader."""

    @classmethod
    def begin(cls, rows: int) -> LoaderReport:
        """Return the report of a run that begins now on this machine."""
        versions = software_versions()
        for name in _PACKAGES:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return cls(
            rows, datetime.now(UTC).isoformat("T", "seconds"), versions, machine_properties()
        )

    def find(self, loader: str, workers: int) -> LoaderResult | None:
        """Return the result of a loader, or None if it has none."""
        for result in self.results:
            if (result.loader, result.workers) == (loader, workers):
                return result
        return None

    def workers(self) -> list[int]:
        """Return the numbers of workers, in ascending order."""
        return sorted({result.workers for result in self.results})

    def save(self, path: Path) -> None:
        """Write the report to a file as JSON, which is complete at any time."""
        plain = {"format": _FORMAT, "kind": _KIND, **asdict(self)}
        with AtomicFile(path) as file:
            file.temporary.write_text(json.dumps(plain, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> LoaderReport:
        """Return the report that `save` wrote.

        Raises `UsageError` if the file is not such a report.
        """
        try:
            plain = json.loads(path.read_text())
            if (plain["format"], plain["kind"]) != (_FORMAT, _KIND):
                raise UsageError(f"{path}: the report has another format than {_FORMAT}")
            fields: dict[str, Any] = {name: plain[name] for name in cls.__dataclass_fields__}
            fields["results"] = [LoaderResult(**result) for result in plain["results"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is not a report of loaders: {error!r}") from None
        return cls(**fields)
