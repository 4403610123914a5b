"""The results of ``splitarrow check``: what was checked, and the defects that it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..formats.arrow.file_scan import Defect
from .formatting import escape_text, format_bytes, format_count

MAX_DEFECTS = 1000
"""The number of defects of one target that are kept. The others are counted."""

Progress = Callable[[int, int], None]
"""Receives the numbers of rows and bytes checked so far."""


@dataclass
class Report:
    """The result of checking one file or dataset."""

    target: str
    """The path or URI."""
    kind: str = "file"
    """The type of the file or dataset."""
    messages: int = 0
    """The number of sound messages."""
    dictionary_batches: int = 0
    """The number of sound dictionary batches."""
    record_batches: int = 0
    """The number of sound record batches, row groups or tensors."""
    rows: int | None = 0
    """The number of rows in them; None if there are none, as in tensors."""
    nbytes: int = 0
    """The size of what was checked in bytes."""
    columns: int | None = None
    """The number of columns; None if it is unknown."""
    batch_noun: str = "batch"
    """The noun for `record_batches`, in the singular."""
    defects: list[Defect] = field(default_factory=list[Defect])
    """The defects."""
    warnings: list[Defect] = field(default_factory=list[Defect])
    """What a reader should know and can still read, such as values outside of their range."""
    further_defects: int = 0
    """The number of defects beyond those in `defects`."""

    @property
    def is_sound(self) -> bool:
        """Whether there are no defects."""
        return not self.defects

    def add_defect(self, defect: Defect) -> None:
        """Add a defect."""
        if len(self.defects) < MAX_DEFECTS:
            self.defects.append(defect)
        else:
            self.further_defects += 1

    def add_warning(self, warning: Defect) -> None:
        """Add a warning, if there are not too many."""
        if len(self.warnings) < MAX_DEFECTS:
            self.warnings.append(warning)

    def describe(self) -> dict[str, Any]:
        """Return the report for JSON."""
        description = asdict(self)
        description["bytes"] = description.pop("nbytes")
        del description["batch_noun"]
        for name in ("defects", "warnings"):
            description[name] = [_describe(defect) for defect in getattr(self, name)]
        return {"target": self.target, "sound": self.is_sound, **description}

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        count = len(self.defects) + self.further_defects
        verdict = "sound" if self.is_sound else format_count(count, "defect")
        plural = "batches" if self.batch_noun == "batch" else f"{self.batch_noun}s"
        noun = self.batch_noun if self.record_batches == 1 else plural
        figures = [f"{self.record_batches:,} {noun}"]
        if self.dictionary_batches:
            noun = "dictionary batch" if self.dictionary_batches == 1 else "dictionary batches"
            figures.append(f"{self.dictionary_batches:,} {noun}")
        if self.rows is not None:
            figures.append(format_count(self.rows, "row"))
        if self.columns is not None:
            figures.append(format_count(self.columns, "column"))
        figures.append(format_bytes(self.nbytes))
        lines = [f"{escape_text(self.target)}: {self.kind}, {verdict}: {', '.join(figures)}"]
        lines += [f"  {_format(defect)}" for defect in self.defects]
        if self.further_defects:
            lines.append(f"  and {format_count(self.further_defects, 'further defect')}")
        lines += [f"  warning: {_format(warning)}" for warning in self.warnings]
        return lines


def _describe(defect: Defect) -> dict[str, Any]:
    found = {
        "place": defect.place,
        "offset": defect.offset,
        "problem": defect.problem,
        "bytes": defect.nbytes,
        "rows": defect.rows,
    }
    return {key: value for key, value in found.items() if value is not None}


def _format(defect: Defect) -> str:
    offset = "" if defect.offset is None else f" at byte {defect.offset}"
    return escape_text(f"{defect.place}{offset}: {defect.problem}")
