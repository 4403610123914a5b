"""The options that select a part of a dataset, parsed for `fetch`, `convert` and other commands."""

from __future__ import annotations

import csv
from typing import Any

from ..errors import UsageError


def parse_selection(
    *,
    columns: list[str] | None = None,
    filter: str | None = None,
    bbox: str | None = None,
    limit: int | None = None,
    batches: str | None = None,
    rows: str | None = None,
) -> dict[str, Any]:
    """Return the arguments of a read that options of the command line stand for.

    Raises `UsageError` if an option is malformed.

    Examples
    --------
    >>> parse_selection(columns=["a,b"], rows="3:7")["rows"]
    (3, 7)
    """
    return {
        "columns": _parse_columns(columns),
        "filter": _parse_filter(filter, bbox),
        "limit": limit,
        "batches": _parse_span("batches", "record batch", batches),
        "rows": _parse_span("rows", "row", rows),
    }


def count_expected_rows(rows: int | None, selection: dict[str, Any]) -> int | None:
    """Return how many rows a read will return, or None if that is unknown."""
    limit = selection["limit"]
    if any(selection.get(name) is not None for name in ("filter", "batches", "rows", "shards")):
        return None
    if rows is None and limit is None:
        return None
    return min(count for count in (rows, limit) if count is not None)


def _parse_filter(text: str | None, bbox: str | None) -> Any:
    """Return the filter of ``--filter`` and ``--bbox`` together."""
    if bbox is None:
        return text
    from ..geo import intersects

    parts = bbox.rsplit(",", 4)
    column = parts[0] if len(parts) > 4 else None
    try:
        sides = [float(side) for side in parts[-4:]]
    except ValueError:
        sides = []
    if len(sides) != 4:
        raise UsageError(
            f"--bbox is {bbox!r}; expected xmin,ymin,xmax,ymax, such as --bbox=5,47,15,55"
        )
    return intersects(column, sides) & text


def _parse_span(name: str, item: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal()):
        raise UsageError(
            f"--{name} is {text!r}; expected the first {item} and the one after the last, "
            "such as 3:7"
        )
    return int(first), int(end)


def _parse_columns(columns: list[str] | None) -> list[str] | None:
    """Return the column names in lists that are separated by commas."""
    if not columns:
        return None
    names = [name for row in csv.reader(columns, skipinitialspace=True) for name in row]
    if not all(names):
        raise UsageError("--columns: a name is missing next to a comma")
    return names
