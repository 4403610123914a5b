"""``splitarrow fetch`` and ``splitarrow convert``: copy data into a file, or preview it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..client.uris import is_control_uri, is_http_uri
from ..errors import UsageError
from ..formats.arrow.form import Form
from ..formats.text import format_bytes
from .completion import complete_name, complete_uri
from .connection import (
    PANEL,
    Quiet,
    Token,
    describe_schema,
    locate,
    with_tls_options,
)
from .exit_status import raise_on_signals
from .formatting import escape_text, format_count, format_duration, format_rate
from .inputs import (
    Input,
    control_source,
    data_source,
    http_source,
    open_input,
    parse_text,
    query_source,
)
from .options import flag, option, with_arguments
from .output_file import ARROW_SUFFIXES, OutputForm, parse_suffix
from .selection import (
    SELECTION,
    count_expected_rows,
    leave_out_absent,
    parse_reading,
    parse_selection,
    require_validation,
)
from .terminal import is_closed, is_terminal, print_message, standard_output

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .inputs import Source
    from .transfer import Transfer

Uri = Annotated[
    str,
    typer.Argument(
        help="The dataset: [cyan]grpc://host:8815/NAME[/cyan], [cyan]tcp://host/NAME[/cyan], "
        "[cyan]http://host:9816/NAME[/cyan], or the URI that the server prints, in quotes. Or a "
        "control plane, [cyan]grpc://host:8815[/cyan], followed by NAME.",
        metavar="URI",
        autocompletion=complete_uri,
    ),
]
NameOrBodyUri = Annotated[
    str | None,
    typer.Argument(
        help="With a control plane, the name of the dataset. For the two streams of two servers, "
        "the URI with [cyan]stream=body[/cyan].",
        metavar="NAME",
        autocompletion=complete_name,
    ),
]
Output = Annotated[
    str | None,
    option(
        "-o",
        "--output",
        help="The file to write: FILE.arrow or .feather (Arrow IPC file), .arrows (IPC stream), "
        ".parquet, .vortex, .vortexs (Vortex IPC messages), .csv, .jsonl, or - for standard "
        "output; .npy or .tensor for tensors. Without it, the first rows are shown and all rows "
        "are counted.",
        metavar="FILE",
    ),
]
_OUTPUT_FORMAT = "the format of standard output. The suffix of a file selects that of the file."
FetchedOutputFormat = Annotated[
    Literal["arrows", "csv", "jsonl"] | None,
    option("--output-format", help=f"With -o -, {_OUTPUT_FORMAT}", default="arrows"),
]
OutputFormat = Annotated[
    Literal["arrows", "csv", "jsonl"] | None,
    option(
        "--output-format", "--format", help=f"With the output -, {_OUTPUT_FORMAT}", default="arrows"
    ),
]
MessageFormat = Annotated[
    Literal["arrow", "vortex", "auto", "arrows", "csv", "jsonl"] | None,
    option(
        "--format",
        help="The format of the messages on the network; auto selects the faster. "
        "[cyan]arrows[/cyan], [cyan]csv[/cyan] and [cyan]jsonl[/cyan] here mean --output-format.",
        default="arrow",
        metavar="arrow|vortex|auto",
        panel=PANEL,
    ),
]
Shred = Annotated[
    list[str] | None,
    option(
        help="A Variant column to shred in a Parquet file. The type is that of the first rows, or "
        'TYPE, as in [cyan]"event=struct<id: int64, tags: list<string>>"[/cyan]. May be given '
        "several times.",
        metavar="COLUMN[=TYPE]",
    ),
]
Sql = Annotated[
    str | None,
    option(
        help="Fetch the result of a SELECT statement over the datasets of a control plane. DuckDB "
        "runs it here.",
        metavar="QUERY",
        panel=SELECTION,
    ),
]
Version = Annotated[
    str | None,
    option(
        help="The version to read, as [cyan]splitarrow info[/cyan] shows it.",
        default="current",
        metavar="VERSION",
        panel=SELECTION,
    ),
]
Shards = Annotated[
    str | None,
    option(
        help="The shards to read, by their numbers: [cyan]0,2,5-8[/cyan].",
        default="all",
        metavar="0,2,5-8",
        panel=SELECTION,
    ),
]
Ticket = Annotated[
    str | None,
    option(
        help="The ticket, if the URI has none. An unsigned ticket is the name of a dataset.",
        metavar="TICKET",
        panel=SELECTION,
    ),
]
Parallel = Annotated[
    int | None,
    option(
        min=1,
        help="With a control plane, the number of parts to read at a time.",
        default="4",
        metavar="N",
        panel=PANEL,
    ),
]
RequireTransport = Annotated[
    str | None,
    option(
        help="Fail unless the data comes over this transport: a scheme, or a lane of UCX such as "
        "[cyan]cma[/cyan] or [cyan]rc_mlx5[/cyan].",
        metavar="SCHEME|LANE",
        panel=PANEL,
    ),
]
BatchRows = Annotated[
    int | None,
    option(
        min=1,
        help="The largest number of rows in a record batch.",
        default="chosen by the server",
        metavar="ROWS",
        panel=PANEL,
    ),
]
Compression = Annotated[
    Literal["none", "lz4", "zstd", "auto"] | None,
    option(
        help="The compression on the network; auto compresses while that is faster. It does not "
        "apply to the file.",
        default="chosen by the server",
        panel=PANEL,
    ),
]
SummaryAsJson = Annotated[
    bool, flag("--json", help="Print the summary on standard output as one JSON object.")
]


def parse_fetch_options(
    shards: Shards = None,
    version: Version = None,
    require_transport: RequireTransport = None,
    parallel: Parallel = None,
    batch_rows: BatchRows = None,
    compression: Compression = None,
) -> dict[str, Any]:
    """Return the arguments of a read that only `fetch` has options for."""
    return leave_out_absent(
        shards=None if shards is None else parse_ranges(shards),
        version=version,
        require_transport=require_transport,
        parallel=parallel,
        batch_rows=batch_rows,
        compression=compression,
    )


@with_tls_options
@with_arguments(parse_selection, parse_fetch_options, parse_reading)
def fetch(
    uri: Uri,
    name_or_body_uri: NameOrBodyUri = None,
    output: Output = None,
    output_format: FetchedOutputFormat = None,
    format: MessageFormat = None,
    shred: Shred = None,
    sql: Sql = None,
    *,
    arguments: dict[str, Any],
    ticket: Ticket = None,
    token: Token = None,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Fetch a dataset into a file, or preview it.

    The file appears once it is complete. A failed fetch leaves nothing behind, and an existing
    file unchanged. Progress is shown on a terminal only.

    [dim]splitarrow fetch grpc://host:8815 trips -o trips.parquet[/dim]

    [dim]splitarrow fetch tcp://host/trips --filter "miles > 10" -o trips.csv[/dim]
    """
    if format in ("arrow", "vortex", "auto"):
        arguments["format"] = format
    elif format is not None and output_format not in (None, format):
        raise UsageError(f"--format {format} and --output-format {output_format}: give only one")
    else:
        output_format = output_format or format
    check_output(output, output_format, as_json=as_json)
    if output is not None:
        require_validation(arguments)
    shred_types = parse_shredding(shred, output)
    transport = arguments.get("transport")
    if is_control_uri(uri):
        if ticket is not None:
            raise UsageError("--ticket is for the URI of a dataset, not for a control plane")
        if transport is not None:
            _check_transport(transport)
        if sql is None:
            address, name = locate(uri, name_or_body_uri, "fetch")
            source = control_source(address, name, token, arguments, quiet=quiet)
        else:
            _check_no_selection(name_or_body_uri, arguments)
            source = query_source(uri, sql, token, arguments)
    elif is_http_uri(uri):
        if name_or_body_uri is not None and ticket is not None:
            raise UsageError(f"--ticket and {name_or_body_uri!r}: give only one")
        options = arguments | leave_out_absent(sql=sql)
        source = http_source(uri, ticket or name_or_body_uri, token, options)
    else:
        given = {**arguments, **leave_out_absent(token=token, sql=sql)}
        unfit = ("shards", "version", "transport", "parallel", "token", "sql")
        if flags := ", ".join(f"--{name}" for name in unfit if name in given):
            raise UsageError(f"{flags}: only for a control plane, as in grpc://host:8815/NAME")
        uris = [uri] if name_or_body_uri is None else [uri, name_or_body_uri]
        source = data_source(uris, ticket, arguments)
    # The compression that was requested is for the network.
    messages = Form(compression="none" if "compression" in arguments else None)
    text = None if output_format == "arrows" else output_format
    form = OutputForm(text, messages, shred=shred_types)
    run_transfer(source, output, form, arguments, quiet=quiet, as_json=as_json)


def _check_no_selection(name: str | None, arguments: dict[str, Any]) -> None:
    """Refuse options that select from one dataset beside a query."""
    names = ("columns", "filter", "limit", "batches", "rows", "shards", "version")
    given = [f"--{each}" for each in names if each in arguments]
    if name is not None:
        given.insert(0, repr(name))
    if given:
        raise UsageError(f"--sql cannot be combined with {', '.join(given)}")


def _check_transport(transport: str) -> None:
    from ..transport.registry import list_schemes  # the schemes of other packages take time to find

    known = ("auto", *list_schemes(), "http", "https", "flight")
    if transport not in known:
        raise UsageError(f"--transport is {transport!r}; choose one of {', '.join(known)}")


_ARROW = "Arrow IPC"

ConvertOutput = Annotated[
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
@with_arguments(parse_text, parse_selection, parse_reading)
def convert(
    input: Input,
    output: ConvertOutput,
    output_format: OutputFormat = None,
    *,
    arguments: dict[str, Any],
    endianness: Endianness = None,
    framing: Framing = "current",
    metadata_version: MetadataVersion = None,
    compression: OutputCompression = None,
    token: Token = None,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Copy data from any input to any format.

    Arrow IPC messages are copied unchanged, unless the options or the output need other ones.
    The file appears once it is complete.

    [dim]splitarrow convert trips.parquet trips.arrow[/dim]

    [dim]splitarrow convert trips.arrow - --output-format csv --limit 100[/dim]

    [dim]splitarrow convert trips.arrow old.arrows --framing legacy --endianness big[/dim]
    """
    check_output(output, output_format, as_json=as_json)
    require_validation(arguments)
    suffix = output[output.rfind(".") :].lower() if output != "-" else ".arrows"
    is_arrow = suffix in ARROW_SUFFIXES and output_format in (None, "arrows")
    is_legacy = framing == "legacy"
    given = {
        "--endianness": endianness,
        "--framing": framing if is_legacy else None,
        "--metadata-version": metadata_version,
        "--compression": compression,
    }
    unfit = [name for name, value in given.items() if value is not None]
    if unfit and not is_arrow:
        raise UsageError(f"{', '.join(unfit)}: only for an output in Arrow IPC, not {output}")
    if is_legacy and metadata_version is None:
        metadata_version = "v4"
    messages = Form(endianness, metadata_version, compression)
    text = None if output_format == "arrows" else output_format
    form = OutputForm(text, messages, legacy=is_legacy)
    source = open_input(input, arguments, token, quiet=quiet)
    run_transfer(source, output, form, arguments, quiet=quiet, as_json=as_json)


def run_transfer(
    source: AbstractContextManager[Source],
    output: str | None,
    form: OutputForm,
    arguments: dict[str, Any],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Copy a source to a file or to standard output (``-``), or preview it; print a summary."""
    with raise_on_signals(), source as (name, row_count, open_stream):
        # A transfer whose source cannot be opened needs none of these.
        from .terminal import TransferProgress
        from .transfer import transfer

        total = count_expected_rows(row_count, arguments)
        progress = TransferProgress(name, total, enabled=not quiet)
        result = transfer(open_stream, output, progress, form)
    with standard_output():
        if as_json:
            print(json.dumps(_summary(name, result, output), ensure_ascii=False))
        elif output is None and not quiet:
            result.preview.show()
    if not quiet:
        count = (
            format_count(result.tensors, "tensor")
            if result.tensors
            else format_count(result.rows, "row")
        )
        target = "" if output is None else f" -> {'standard output' if output == '-' else output}"
        print_message(
            f"{escape_text(name)}: {count}, "
            f"{format_bytes(result.nbytes)} in {format_duration(result.data_seconds)}, "
            f"{format_rate(result.nbytes, result.data_seconds)}{target}"
        )


def _summary(name: str, result: Transfer, output: str | None) -> dict[str, Any]:
    return {
        "dataset": name,
        "rows": result.rows,
        "batches": result.batches,
        **({"tensors": result.tensors} if result.tensors else {}),
        "bytes": result.nbytes,
        "seconds": round(result.seconds, 6),
        "path": output,
        "transport": result.transport,
        "columns": describe_schema(result.schema),
    }


def check_output(output: str | None, format: str | None, *, as_json: bool) -> None:
    """Check the options that concern standard output; raise `UsageError`."""
    if output != "-":
        if format is not None:
            advice = "add -o -" if output is None else f"write to -, or to FILE.{format}"
            raise UsageError(f"--output-format {format} is for standard output; {advice}")
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
    """Return the numbers of a list.

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
    """Return the columns that ``--shred`` names, and their types; None where the type is open."""
    if not texts:
        return {}
    from ..formats.parquet.variant.arrow_fields import parse_type

    found: dict[str, Any] = {}
    for text in texts:
        name, separator, data_type = text.partition("=")
        if not (output or "").lower().endswith(".parquet"):
            raise UsageError("--shred is for a Parquet file; add -o FILE.parquet")
        if name in found:
            raise UsageError(f"--shred names the column {name!r} twice")
        found[name] = parse_type(data_type) if separator else None
    return found
