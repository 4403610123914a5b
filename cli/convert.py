"""``splitarrow convert``: copy data from any input to any format."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from ..errors import UsageError
from .connection import ConnectTimeout, Quiet, Token
from .fetch_options import (
    Batches,
    Bbox,
    Columns,
    Filter,
    Format,
    Limit,
    Rows,
    StallTimeout,
    SummaryAsJson,
    Transport,
    Validate,
)
from .inputs import Input, InputFormat, open_input
from .options import option
from .selection import parse_selection
from .tls_options import with_tls_options

_ARROW = "Arrow IPC"

OutputFile = Annotated[
    str,
    typer.Argument(
        help="The file to write: OUTPUT.arrow or .feather (Arrow IPC file), .arrows (IPC stream), "
        ".parquet, .vortex, .vortexs (Vortex IPC messages), .csv, .jsonl, or - for standard "
        "output.",
        metavar="OUTPUT",
    ),
]
Endianness = Annotated[
    Literal["little", "big"] | None,
    option(help="The byte order to write.", default="that of the input", panel=_ARROW),
]
Framing = Annotated[
    Literal["current", "legacy"],
    option(
        help="The framing of messages. Readers before Arrow 0.15 need legacy, which implies "
        "[cyan]--metadata-version v4[/cyan].",
        panel=_ARROW,
    ),
]
MetadataVersion = Annotated[
    Literal["v4", "v5"] | None,
    option(
        help="The metadata version. Readers before Arrow 1.0 need v4, which has no compression.",
        default="that of the input",
        panel=_ARROW,
    ),
]
OutputCompression = Annotated[
    Literal["none", "lz4", "zstd"] | None,
    option(
        help="The compression of the buffers. One that does not shrink is stored as it is.",
        default="that of the input",
        panel=_ARROW,
    ),
]


@with_tls_options
def convert(
    input: Input,
    output: OutputFile,
    format: Format = None,
    input_format: InputFormat = None,
    columns: Columns = None,
    filter: Filter = None,
    bbox: Bbox = None,
    limit: Limit = None,
    batches: Batches = None,
    rows: Rows = None,
    endianness: Endianness = None,
    framing: Framing = "current",
    metadata_version: MetadataVersion = None,
    compression: OutputCompression = None,
    transport: Transport = "auto",
    token: Token = None,
    validate: Validate = None,
    connect_timeout: ConnectTimeout = 10.0,
    stall_timeout: StallTimeout = 30.0,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Copy data from any input to any format.

    Arrow IPC messages are copied without decoding them, unless the options or the output need it.
    The file appears once it is complete.

    [dim]splitarrow convert trips.parquet trips.arrow[/dim]

    [dim]splitarrow convert trips.arrow - --format csv --limit 100[/dim]

    [dim]splitarrow convert trips.arrow old.arrows --framing legacy --endianness big[/dim]
    """
    from ..formats.arrow.conversion import Form
    from .fetch import check_output
    from .output_form import OutputForm
    from .suffixes import ARROW_SUFFIXES
    from .transfer_report import run_transfer

    check_output(output, format, as_json=as_json)
    suffix = output[output.rfind(".") :].lower() if output != "-" else ".arrows"
    is_arrow = suffix in ARROW_SUFFIXES and format in (None, "arrows")
    given: dict[str, Any] = {
        "--endianness": endianness,
        "--framing": None if framing == "current" else framing,
        "--metadata-version": metadata_version,
        "--compression": compression,
    }
    unfit = [name for name, value in given.items() if value is not None]
    if unfit and not is_arrow:
        raise UsageError(f"{', '.join(unfit)}: only for an output in Arrow IPC, not {output}")
    version = metadata_version
    if framing == "legacy" and version is None:
        version = "v4"
    form = OutputForm(
        None if format == "arrows" else format,
        Form(endianness, version, compression),
        legacy=framing == "legacy",
    )
    selection = parse_selection(
        columns=columns, filter=filter, bbox=bbox, limit=limit, batches=batches, rows=rows
    )
    source = open_input(
        input,
        selection,
        token=token,
        transport=transport,
        validate=validate,
        connect_timeout=connect_timeout,
        stall_timeout=stall_timeout,
        input_format=input_format,
        quiet=quiet,
    )
    run_transfer(source, output, form, selection, quiet=quiet, as_json=as_json)
