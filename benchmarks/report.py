"""What a run found: figures, ratios, and the forms in which they are shown."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .backends import BASELINE, REFERENCE
from .results import Result, Section

if TYPE_CHECKING:
    from rich.console import Group

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run, and where and how they were measured."""

    created: str
    """When, in ISO 8601."""
    versions: dict[str, str]
    """Of Python and of the packages that matter."""
    machine: dict[str, Any]
    """The processor, its threads, the memory in bytes, and the kernel."""
    options: dict[str, Any]
    """What was to be measured."""
    skipped: dict[str, str]
    """The backends that could not run, and why."""
    results: list[Result]
    """One for each backend, batch size and number of clients."""

    def of(self, section: Section) -> list[Result]:
        """Return the results of one part of the run."""
        return [result for result in self.results if result.section == section]

    def backends(self, section: Section = "sizes") -> list[str]:
        """Return the names of the backends of one part, in the order of the run."""
        return list(dict.fromkeys(result.backend for result in self.of(section)))

    def batch_sizes(self) -> list[int]:
        """Return the batch sizes, in bytes, in the order of the run."""
        return list(dict.fromkeys(result.batch_bytes for result in self.of("sizes")))

    def find(self, backend: str, batch_bytes: int) -> Result | None:
        """Return the result of one client with one backend and batch size."""
        for result in self.of("sizes"):
            if (result.backend, result.batch_bytes) == (backend, batch_bytes):
                return result
        return None

    def ratio(self, result: Result) -> float | None:
        """Return how many times faster a result is than the baseline's.

        None for the baseline itself, for the reference, and where there is no baseline.
        """
        if result.backend in (BASELINE, REFERENCE):
            return None
        for other in self.of(result.section):
            same = (other.batch_bytes, other.clients) == (result.batch_bytes, result.clients)
            if other.backend == BASELINE and same:
                return result.rate.median / other.rate.median
        return None

    def mean_ratio(self, backend: str) -> float | None:
        """Return the geometric mean of a backend's ratios over the batch sizes."""
        own = [result for result in self.of("sizes") if result.backend == backend]
        ratios = [ratio for result in own if (ratio := self.ratio(result)) is not None]
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None

    def to_dict(self) -> dict[str, Any]:
        """Return all raw figures, and the ratios that follow from them."""
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
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report that `to_json` wrote.

        Raises
        ------
        UsageError
            If the text is not one.
        """
        try:
            plain = json.loads(text)
            if plain["format"] != _FORMAT:
                raise UsageError(f"a report of format {plain['format']}; known is {_FORMAT}")
            fields: dict[str, Any] = {name: plain[name] for name in cls.__dataclass_fields__}
            fields["results"] = [Result.from_dict(result) for result in plain["results"]]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"this is not a report of a benchmark: {error!r}") from None
        return cls(**fields)

    def to_table(self) -> Group:
        """Return tables for a terminal, to be printed by rich."""
        from .tables import terminal

        return terminal(self)

    def to_markdown(self) -> str:
        """Return tables in Markdown."""
        from .tables import markdown

        return markdown(self)

    def save_markdown(self, path: Path) -> None:
        """Write `to_markdown` to a file.

        A file that holds the two lines ``<!-- benchmark: begin -->`` and
        ``<!-- benchmark: end -->`` keeps everything else; what is between them is replaced.
        """
        from .tables import placed

        before = path.read_text() if path.exists() else None
        path.write_text(placed(self.to_markdown(), before))

    def plot(self, path: Path) -> None:
        """Draw throughput over batch size.

        Parameters
        ----------
        path : Path
            The picture; its suffix, ``.svg`` or ``.png``, says of which kind.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        UsageError
            If the suffix is of another kind.
        """
        from .plot import draw

        draw(self, path)
