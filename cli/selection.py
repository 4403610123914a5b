"""The options that select a part of a dataset, and how to read it.

`fetch`, `convert`, `head`, `cat` and `stats` share them. Each parser returns arguments of
`splitarrow.open`; an option that is absent has none.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ..errors import UsageError
from .completion import complete_transport
from .connection import PANEL, ConnectTimeout
from .options import option

SELECTION = "Selection"
"""The heading of options that select data."""

Columns = Annotated[
    list[str] | None,
    option(
        help="The columns to read, in this order, separated by commas. Put a name with a comma "
        "in double quotes. May be given several times.",
        default="all",
        metavar="A,B,…",
        panel=SELECTION,
    ),
]
Filter = Annotated[
    str | None,
    option(
        help="The rows to read, as a condition in SQL: "
        "[cyan]\"delay > 60 and carrier = 'AA'\"[/cyan].",
        default="all",
        metavar="CONDITION",
        panel=SELECTION,
    ),
]
Bbox = Annotated[
    str | None,
    option(
        help="The rows to read, by the bounding box of a geospatial column: "
        "[cyan]xmin,ymin,xmax,ymax[/cyan], after the name of the column if there are several, "
        "as in [cyan]geom,5,47,15,55[/cyan].",
        default="all",
        metavar="BOX",
        panel=SELECTION,
    ),
]
Limit = Annotated[
    int | None,
    option(
        min=0,
        help="The largest number of rows to read.",
        default="all",
        metavar="ROWS",
        panel=SELECTION,
    ),
]
Batches = Annotated[
    str | None,
    option(
        help="The stored record batches to read: the first and the one after the last, counted "
        "from 0. In a Parquet file, the row groups.",
        default="all",
        metavar="FIRST:END",
        panel=SELECTION,
    ),
]
Rows = Annotated[
    str | None,
    option(
        help="The stored rows to read: the first and the one after the last, counted from 0. They "
        "are selected before the filter and the limit.",
        default="all",
        metavar="FIRST:END",
        panel=SELECTION,
    ),
]
Transport = Annotated[
    str,
    option(
        help="With a control plane, the transport to use: [cyan]tcp[/cyan], "
        "[cyan]tcp+tls[/cyan], [cyan]shm[/cyan], [cyan]ucx[/cyan], [cyan]http[/cyan], "
        "[cyan]flight[/cyan] (DoGet of Arrow Flight), or [cyan]auto[/cyan] for the first that "
        "connects.",
        metavar="TRANSPORT",
        panel=PANEL,
        autocompletion=complete_transport,
    ),
]
Validate = Annotated[
    Literal["strict", "full", "cheap", "off"] | None,
    option(
        help="Check values and their ranges (strict), values (full), only the sizes of buffers "
        "(cheap), or nothing (off).",
        default="full; cheap from a server on this host",
        panel=PANEL,
    ),
]
StallTimeout = Annotated[
    float,
    option(
        help="The longest time without data from the server, in seconds; 0 disables it.",
        metavar="SECONDS",
        panel=PANEL,
    ),
]


def parse_selection(
    columns: Columns = None,
    filter: Filter = None,
    bbox: Bbox = None,
    limit: Limit = None,
    batches: Batches = None,
    rows: Rows = None,
) -> dict[str, Any]:
    """Return the arguments that select a part of a dataset.

    >>> parse_selection(columns=["a,b"], rows="3:7")
    {'columns': ['a', 'b'], 'rows': (3, 7)}
    """
    return leave_out_absent(
        columns=_parse_columns(columns),
        filter=_parse_filter(filter, bbox),
        limit=limit,
        batches=_parse_span("batches", "record batch", batches),
        rows=_parse_span("rows", "row", rows),
    )


def require_validation(arguments: dict[str, Any]) -> None:
    """Let data that is written be validated in full; raise `UsageError` if less was requested."""
    validate = arguments.setdefault("validate", "full")
    if validate not in ("full", "strict"):
        raise UsageError(
            f"--validate {validate}: data is validated in full before it is written; use "
            "--validate full or --validate strict"
        )


def parse_reading(
    transport: Transport = "auto",
    validate: Validate = None,
    connect_timeout: ConnectTimeout = 10.0,
    stall_timeout: StallTimeout = 30.0,
) -> dict[str, Any]:
    """Return the arguments that describe how to read. ``transport`` is for a control plane."""
    return {
        **leave_out_absent(transport=None if transport == "auto" else transport, validate=validate),
        "connect_timeout": connect_timeout,
        "stall_timeout": stall_timeout or None,
    }


def leave_out_absent(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def count_expected_rows(rows: int | None, arguments: Mapping[str, Any]) -> int | None:
    """Return how many rows a read will return, or None if that is unknown."""
    if arguments.keys() & {"filter", "batches", "rows", "shards"}:
        return None
    return min(
        (count for count in (rows, arguments.get("limit")) if count is not None), default=None
    )


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
