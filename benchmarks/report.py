"""The report of a run: its results, the ratios between backends, and their serialization."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .backends import BASELINE, REFERENCE
from .results import Result, Section

_FORMAT = 1


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
    """One result per backend, batch size and number of clients."""

    def section(self, section: Section) -> list[Result]:
        """Return the results of a section."""
        return [result for result in self.results if result.section == section]

    def backends(self, section: Section = "sizes") -> list[str]:
        """Return the names of the backends of a section, in the order of the run."""
        return list(dict.fromkeys(result.backend for result in self.section(section)))

    def batch_sizes(self) -> list[int]:
        """Return the sizes of the batch bodies in bytes, in the order of the run."""
        return list(dict.fromkeys(result.batch_bytes for result in self.section("sizes")))

    def find(self, backend: str, batch_bytes: int) -> Result | None:
        """Return the result of a backend and a batch size with one client."""
        for result in self.section("sizes"):
            if (result.backend, result.batch_bytes) == (backend, batch_bytes):
                return result
        return None

    def ratio(self, result: Result) -> float | None:
        """Return the median rate of a result divided by that of the baseline.

        None for the baseline itself and for the reference, and if the baseline did not run.
        """
        if result.backend in (BASELINE, REFERENCE):
            return None
        for other in self.section(result.section):
            is_same_case = (other.batch_bytes, other.clients) == (
                result.batch_bytes,
                result.clients,
            )
            if other.backend == BASELINE and is_same_case:
                return result.rate.median / other.rate.median
        return None

    def mean_ratio(self, backend: str) -> float | None:
        """Return the geometric mean of a backend's ratios over the batch sizes."""
        results = [result for result in self.section("sizes") if result.backend == backend]
        ratios = [ratio for result in results if (ratio := self.ratio(result)) is not None]
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None

    def mean_ratios(self) -> dict[str, float]:
        """Return the geometric mean of the ratios of each backend that has ratios."""
        means = {name: self.mean_ratio(name) for name in self.backends()}
        return {name: mean for name, mean in means.items() if mean is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return all samples, and the ratios that follow from them."""
        results = [{**r.to_dict(), f"ratio_to_{BASELINE}": self.ratio(r)} for r in self.results]
        means = {name: self.mean_ratio(name) for name in self.backends()}
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

        Raises
        ------
        UsageError
            If the text is not such a report.
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
