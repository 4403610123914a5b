"""The report of a run: its results, the ratios between backends, and their serialization."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .backends import BASELINE, find_backend
from .options import Consume
from .results import Result, Section
from .statistics import Interval, median_interval

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
        ratios = [
            ratio
            for result in self.section("sizes")
            if (result.backend, result.consume) == (backend, consume)
            and (ratio := self.ratio(result)) is not None
        ]
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None

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
        """Return the report that `to_json` wrote.

        Raises `UsageError` if the text is not such a report.
        """
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
    """Read a report that ``splitarrow bench --json`` wrote.

    Raises `UsageError` if the file cannot be read, or is no report.
    """
    try:
        return Report.from_json(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
