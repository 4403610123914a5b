"""``splitarrow fetch``: read a dataset into a file, to standard output, or for a preview."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .connection import (
    ConnectTimeout,
    Quiet,
    Token,
    is_control_uri,
    locate,
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
    Shred,
    Sql,
    StallTimeout,
    SummaryAsJson,
    Ticket,
    Transport,
    Uri,
    Validate,
    Version,
)
from .remote_sources import control_source, data_source, query_source
from .selection import parse_selection
from .suffixes import parse_suffix
from .terminal import is_closed, is_terminal
from .tls_options import with_tls_options


@with_tls_options
def fetch(
    uri: Uri,
    name_or_body_uri: NameOrBodyUri = None,
    output: Output = None,
    format: Format = None,
    shred: Shred = None,
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
    from ..formats.arrow.conversion import Form
    from .output_form import OutputForm
    from .transfer_report import run_transfer

    wire_format = format if format in ("arrow", "vortex", "auto") else None
    format = None if wire_format is not None else format
    check_output(output, format, as_json=as_json)
    shred_types = parse_shredding(shred, output)
    options: dict[str, Any] = {
        **parse_selection(
            columns=columns, filter=filter, bbox=bbox, limit=limit, batches=batches, rows=rows
        ),
        "batch_rows": batch_rows,
        "compression": compression,
        "format": wire_format,
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
            source = control_source(address, name, token, options | of_dataset, quiet=quiet)
        else:
            source = query_source(address, sql, token, options | of_dataset)
    else:
        unfit = [*of_dataset, *([] if token is None else ["token"])]
        unfit += [] if sql is None else ["sql"]
        if unfit:
            flags = ", ".join(f"--{name}" for name in unfit)
            raise UsageError(f"{flags}: only for a control plane, as in grpc://host:8815/NAME")
        uris = [uri] if name_or_body_uri is None else [uri, name_or_body_uri]
        source = data_source(uris, ticket, options)
    # The compression that was requested is for the network.
    messages = Form(compression=None if compression is None else "none")
    form = OutputForm(None if format == "arrows" else format, messages, shred=shred_types)
    run_transfer(source, output, form, options | of_dataset, quiet=quiet, as_json=as_json)


def _check_no_selection(uri: str, name: str | None, options: dict[str, Any]) -> None:
    """Refuse options that select from one dataset beside a query."""
    names = ("columns", "filter", "limit", "batches", "rows", "shards", "version")
    given = [f"--{each}" for each in names if options.get(each) is not None]
    if name is not None:
        given.insert(0, repr(name))
    if given:
        raise UsageError(f"--sql selects by itself; leave {', '.join(given)} out")


def _check_transport(transport: str) -> None:
    if transport == "auto":
        return  # the schemes of other packages take time to find
    from ..transport.registry import list_schemes

    known = ("auto", *list_schemes(), "flight")
    if transport not in known:
        raise UsageError(f"--transport is {transport!r}; choose one of {', '.join(known)}")


def check_output(output: str | None, format: str | None, *, as_json: bool) -> None:
    """Check the options that concern standard output; raise `UsageError`."""
    if output != "-":
        if format is not None:
            raise UsageError("--format is for standard output; add -o -")
        if output is not None:
            parse_suffix(Path(output))
        return
    if as_json:
        raise UsageError("--json and -o - would both write to standard output; use one of them")
    if is_terminal(sys.stdout) and format in (None, "arrows"):
        raise UsageError("-o - writes binary data, but standard output is a terminal")
    if is_closed(sys.stdout):
        raise UsageError("-o -: standard output is closed")


def parse_ranges(text: str) -> list[int]:
    """Return the numbers of a list such as ``0,2,5-8``.

    Raises `UsageError` if it is malformed.

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


def parse_shredding(texts: list[str] | None, output: str | None) -> dict[str, Any]:
    """Return the columns that ``--shred`` names, and their types; None where the type is open.

    Raises `UsageError` if the output is not a Parquet file, a column is named twice, or a type is
    malformed.
    """
    if not texts:
        return {}
    from ..formats.parquet.variant.arrow_fields import parse_type

    found: dict[str, Any] = {}
    for text in texts or ():
        name, separator, data_type = text.partition("=")
        if not (output or "").lower().endswith(".parquet"):
            raise UsageError("--shred is for a Parquet file; add -o FILE.parquet")
        if name in found:
            raise UsageError(f"--shred names the column {name!r} twice")
        found[name] = parse_type(data_type) if separator else None
    return found
