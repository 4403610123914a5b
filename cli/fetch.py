"""``splitarrow fetch``: read a dataset into a file, to standard output, or for a preview."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import UriError, UsageError
from . import signals
from .connection import (
    ConnectTimeout,
    Quiet,
    Token,
    describe_schema,
    is_control_uri,
    locate,
    open_client,
)
from .fetch_options import (
    Batches,
    BatchRows,
    Bbox,
    Columns,
    Compression,
    Filter,
    Format,
    Limit,
    NameOrBodyUri,
    Output,
    Parallel,
    RequireTransport,
    Rows,
    Shards,
    Sql,
    StallTimeout,
    SummaryAsJson,
    Ticket,
    Transport,
    Uri,
    Validate,
    Version,
)
from .formatting import escape_text, format_bytes, format_count, format_duration, format_rate
from .terminal import is_closed, is_terminal, print_message, standard_output

if TYPE_CHECKING:
    from .transfer import Transfer


def fetch(
    uri: Uri,
    name_or_body_uri: NameOrBodyUri = None,
    output: Output = None,
    format: Format = None,
    columns: Columns = None,
    filter: Filter = None,
    bbox: Bbox = None,
    sql: Sql = None,
    limit: Limit = None,
    batches: Batches = None,
    rows: Rows = None,
    shards: Shards = None,
    version: Version = None,
    ticket: Ticket = None,
    transport: Transport = "auto",
    require_transport: RequireTransport = None,
    parallel: Parallel = None,
    token: Token = None,
    batch_rows: BatchRows = None,
    compression: Compression = None,
    validate: Validate = None,
    connect_timeout: ConnectTimeout = 10.0,
    stall_timeout: StallTimeout = 30.0,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Fetch a dataset into a file, or preview it.

    The file appears once it is complete. A failed fetch leaves nothing behind, and an existing
    file unchanged. Progress is shown on a terminal only.

    [dim]splitarrow fetch grpc://host:8815 trips -o trips.parquet[/dim]

    [dim]splitarrow fetch tcp://host/trips --filter "miles > 10" -o trips.csv[/dim]
    """
    _check_output(output, format, as_json=as_json)
    options: dict[str, Any] = {
        "columns": _parse_columns(columns),
        "filter": _parse_filter(filter, bbox),
        "limit": limit,
        "batches": _parse_span("batches", "record batch", batches),
        "rows": _parse_span("rows", "row", rows),
        "batch_rows": batch_rows,
        "compression": compression,
        "validate": validate,
        "connect_timeout": connect_timeout,
        "stall_timeout": stall_timeout or None,
        "require_transport": require_transport,
    }
    of_dataset = {
        "shards": None if shards is None else parse_ranges(shards),
        "version": version,
        "transport": None if transport == "auto" else transport,
        "parallel": parallel,
    }
    of_dataset = {name: value for name, value in of_dataset.items() if value is not None}
    if is_control_uri(uri):
        if ticket is not None:
            raise UsageError("--ticket is for the URI of a dataset, not for a control plane")
        if sql is not None:
            _check_no_selection(uri, name_or_body_uri, options | of_dataset)
        place = (uri, "query") if sql is not None else locate(uri, name_or_body_uri, "fetch")
        address, name = place
        _check_transport(transport)
        if sql is None:
            source = _control_source(address, name, token, options | of_dataset, quiet=quiet)
        else:
            source = _query_source(address, sql, token, options | of_dataset)
    else:
        unfit = [*of_dataset, *([] if token is None else ["token"])]
        unfit += [] if sql is None else ["sql"]
        if unfit:
            flags = ", ".join(f"--{name}" for name in unfit)
            raise UsageError(f"{flags}: only for a control plane, as in grpc://host:8815/NAME")
        uris = [uri] if name_or_body_uri is None else [uri, name_or_body_uri]
        source = _data_source(uris, ticket, options)
    with signals.raise_on_signals(), source as (name, row_count, open_stream):
        # A fetch that fails to connect needs none of these.
        from .progress import TransferProgress
        from .transfer import transfer

        is_filtered = any((filter, bbox, batches, rows, shards))
        total = _expected_rows(row_count, limit, is_filtered=is_filtered)
        progress = TransferProgress(name, total, enabled=not quiet)
        result = transfer(open_stream, output, progress, None if format == "arrows" else format)
    with standard_output():
        if as_json:
            print(json.dumps(_summary(name, result, output), ensure_ascii=False))
        elif output is None and not quiet:
            result.preview.show()
    if not quiet:
        target = "" if output is None else f" -> {'standard output' if output == '-' else output}"
        print_message(
            f"{escape_text(name)}: {format_count(result.rows, 'row')}, "
            f"{format_bytes(result.nbytes)} in {format_duration(result.data_seconds)}, "
            f"{format_rate(result.nbytes, result.data_seconds)}{target}"
        )


Source = tuple[str, int | None, Callable[[], Any]]
"""The name of a dataset, its rows if they are known, and a function that opens its stream."""


@contextmanager
def _control_source(
    uri: str, name: str, token: str | None, options: dict[str, Any], *, quiet: bool
) -> Generator[Source]:
    """Connect to a control plane that locates the dataset."""
    with open_client(uri, token, options["connect_timeout"]) as client:
        shows_progress = not quiet and is_terminal(sys.stderr)
        rows = client.info(name).rows if shows_progress else None
        yield name, rows, partial(client.read, name, **options)


@contextmanager
def _query_source(
    uri: str, query: str, token: str | None, options: dict[str, Any]
) -> Generator[Source]:
    """Run a query over the datasets of a control plane."""
    with open_client(uri, token, options["connect_timeout"]) as client:
        yield "query", None, partial(client.read, sql=query, **options)


def _check_no_selection(uri: str, name: str | None, options: dict[str, Any]) -> None:
    """Refuse options that select from one dataset beside a query."""
    names = ("columns", "filter", "limit", "batches", "rows", "shards", "version")
    given = [f"--{each}" for each in names if options.get(each) is not None]
    if name is not None:
        given.insert(0, repr(name))
    if given:
        raise UsageError(f"--sql selects by itself; leave {', '.join(given)} out")


@contextmanager
def _data_source(uris: list[str], ticket: str | None, options: dict[str, Any]) -> Generator[Source]:
    """Read from the URI of a dataset, or from a pair of URIs."""
    from ..client.stream.blocking import open as open_stream

    yield _dataset_name(uris, ticket), None, partial(open_stream, uris, ticket, **options)


def _expected_rows(rows: int | None, limit: int | None, *, is_filtered: bool) -> int | None:
    """Return how many rows will arrive, or None if that is unknown."""
    if is_filtered or (rows is None and limit is None):
        return None
    return min(count for count in (rows, limit) if count is not None)


def _check_transport(transport: str) -> None:
    from ..transport.registry import list_schemes

    known = ("auto", *list_schemes(), "flight")
    if transport not in known:
        raise UsageError(f"--transport is {transport!r}; choose one of {', '.join(known)}")


def _check_output(output: str | None, format: str | None, *, as_json: bool) -> None:
    if output != "-":
        if format is not None:
            raise UsageError("--format is for standard output; add -o -")
        return
    if as_json:
        raise UsageError("--json and -o - would both write to standard output; use one of them")
    if is_terminal(sys.stdout) and format in (None, "arrows"):
        raise UsageError("-o - writes binary data, but standard output is a terminal")
    if is_closed(sys.stdout):
        raise UsageError("-o -: standard output is closed")


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


def parse_ranges(text: str) -> list[int]:
    """Return the numbers of a list such as ``0,2,5-8``.

    Raises
    ------
    UsageError
        If it is malformed.

    Examples
    --------
    >>> parse_ranges("0,2,5-8")
    [0, 2, 5, 6, 7, 8]
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise UsageError(f"--shards is {text!r}; expected numbers such as 0,2,5-8")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _parse_columns(columns: list[str] | None) -> list[str] | None:
    """Return the column names in lists that are separated by commas."""
    if not columns:
        return None
    names = [name for row in csv.reader(columns, skipinitialspace=True) for name in row]
    if not all(names):
        raise UsageError("--columns: a name is missing next to a comma")
    return names


def _dataset_name(uris: list[str], ticket: str | None) -> str:
    """Return the name of the dataset that a ticket requests, after checking the URIs.

    Raises
    ------
    UriError
        If a URI is malformed or has an unknown scheme, or there is no ticket.
    """
    from ..client.stream.uris import complete_uri, read_dataset_name

    parsed = [complete_uri(uri) for uri in uris]
    for uri in parsed:
        uri.require_want_data()
    own_ticket = next((uri.ticket for uri in parsed if uri.ticket is not None), None)
    if own_ticket is not None and ticket is not None:
        raise UsageError("the URI already has a ticket; leave --ticket out")
    chosen = (ticket or "").encode() if own_ticket is None else own_ticket
    if not chosen:
        raise UriError(
            f"{parsed[0].redacted()} has no ticket: add &ticket=NAME to it, in quotes, "
            "or give --ticket NAME"
        )
    return read_dataset_name(chosen)


def _summary(name: str, result: Transfer, output: str | None) -> dict[str, Any]:
    return {
        "dataset": name,
        "rows": result.rows,
        "batches": result.batches,
        "bytes": result.nbytes,
        "seconds": round(result.seconds, 6),
        "path": output,
        "transport": result.transport,
        "columns": describe_schema(result.schema),
    }
