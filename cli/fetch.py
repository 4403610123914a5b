"""``splitarrow fetch``: a dataset into a file, to standard output, or looked at."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import UriError, UsageError
from . import signals
from .connecting import Token, connected, is_control
from .figures import counted, duration, printable, rate, size
from .output import is_closed, is_terminal, say, standard_output
from .progress import FetchProgress
from .wording import flag, option

if TYPE_CHECKING:
    from .transfer import Transfer

_SELECTION = "What to read"
_CONNECTION = "Connection"


def fetch(
    uri: Annotated[
        str,
        typer.Argument(
            help="The dataset's URI as the server prints it, in quotes. Of a pair, the one with "
            "[cyan]stream=metadata[/cyan]. Or a control plane, [cyan]grpc://host:port[/cyan], "
            "which knows where the dataset is.",
            metavar="URI",
        ),
    ],
    body_uri: Annotated[
        str | None,
        typer.Argument(
            help="With a control plane, the dataset's name. Where two servers share the work, the "
            "URI with [cyan]stream=body[/cyan].",
            metavar="NAME|BODY_URI",
        ),
    ] = None,
    output: Annotated[
        str | None,
        option(
            "-o",
            "--output",
            help="Where to write: FILE.arrow or .feather (Arrow IPC file), .arrows (IPC stream), "
            ".parquet, or - for an IPC stream on standard output. Without it the data is read, "
            "counted and its first rows are shown.",
            metavar="FILE",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        option(
            help="The columns to read, in this order, separated by commas; a name with a comma "
            "goes in double quotes. May be given several times.",
            default="all",
            metavar="A,B,…",
            panel=_SELECTION,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        option(
            min=0,
            help="The largest number of rows to read.",
            default="all",
            metavar="ROWS",
            panel=_SELECTION,
        ),
    ] = None,
    ticket: Annotated[
        str | None,
        option(
            help="What to ask for, where the URI has no ticket: a dataset's name, as a rule.",
            metavar="TICKET",
            panel=_SELECTION,
        ),
    ] = None,
    transport: Annotated[
        str,
        option(
            help="With a control plane: which way to take, such as [cyan]tcp[/cyan] or "
            "[cyan]shm[/cyan]; [cyan]flight[/cyan] is Flight's DoGet; [cyan]auto[/cyan] the first "
            "that can be reached.",
            metavar="SCHEME",
            panel=_CONNECTION,
        ),
    ] = "auto",
    require_transport: Annotated[
        str | None,
        option(
            help="What the data has to come by: a scheme, or a lane of UCX such as "
            "[cyan]cma[/cyan] or [cyan]rc_mlx5[/cyan]. Anything else is refused, instead of "
            "taken silently.",
            metavar="NAME",
            panel=_CONNECTION,
        ),
    ] = None,
    token: Token = None,
    batch_rows: Annotated[
        int | None,
        option(
            min=1,
            help="The largest number of rows in a batch.",
            default="as they lie at the server",
            metavar="ROWS",
            panel=_CONNECTION,
        ),
    ] = None,
    compression: Annotated[
        Literal["none", "lz4", "zstd"] | None,
        option(
            help="How the data travels. Files are written uncompressed, or as Parquet does.",
            default="as it lies at the server",
            panel=_CONNECTION,
        ),
    ] = None,
    validate: Annotated[
        Literal["full", "cheap", "off"] | None,
        option(
            help="How batches are checked before they are used: every value, only the sizes of "
            "buffers, or nothing.",
            default="full; cheap from a server on this host",
            panel=_CONNECTION,
        ),
    ] = None,
    connect_timeout: Annotated[
        float,
        option(
            help="The longest time to connect, in seconds.",
            metavar="SECONDS",
            panel=_CONNECTION,
        ),
    ] = 10.0,
    stall_timeout: Annotated[
        float,
        option(
            help="The longest silence of the server, in seconds; 0 waits for ever.",
            metavar="SECONDS",
            panel=_CONNECTION,
        ),
    ] = 30.0,
    quiet: Annotated[
        bool,
        flag(
            "-q",
            "--quiet",
            help="Show no progress and no summary.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        flag(
            "--json",
            help="Print the summary on standard output as one JSON object.",
        ),
    ] = False,
) -> None:
    """Fetch a dataset into a file, or look at it.

    The file appears once it is whole: a fetch that fails leaves nothing behind, and a file that
    was there before as it was. Progress is shown on a terminal, and not in a pipe.

    [dim]splitarrow fetch 'tcp://host:8816?want_data=…&ticket=trips' -o trips.parquet[/dim]

    [dim]splitarrow fetch grpc://host:8815 trips -o trips.parquet[/dim]
    """
    if output == "-":
        if as_json:
            raise UsageError("--json and -o - would both write to standard output")
        if is_terminal(sys.stdout):
            raise UsageError("-o - writes binary data, and standard output is a terminal")
        if is_closed(sys.stdout):
            raise UsageError("-o -: standard output is closed")
    from .transfer import transfer

    selection: dict[str, Any] = {
        "columns": _names(columns),
        "limit": limit,
        "batch_rows": batch_rows,
        "compression": compression,
        "validate": validate,
        "connect_timeout": connect_timeout,
        "stall_timeout": stall_timeout or None,
        "require_transport": require_transport,
    }
    with ExitStack() as stack:
        if is_control(uri):
            if ticket is not None:
                raise UsageError("--ticket goes with the URI of a data stream")
            if body_uri is None:
                raise UsageError("which dataset? splitarrow fetch CONTROL_URI NAME")
            name = body_uri
            stack.enter_context(signals.raised())
            client = stack.enter_context(connected(uri, token, connect_timeout))
            connect: Callable[[], Any] = partial(
                client.read, name, transport=transport, **selection
            )
        else:
            if transport != "auto" or token is not None:
                raise UsageError("--transport and --token go with a control plane, grpc://…")
            from ..client.blocking import open as open_stream

            uris = [uri] if body_uri is None else [uri, body_uri]
            name = _dataset(uris, ticket)
            connect = partial(open_stream, uris, ticket, **selection)
            stack.enter_context(signals.raised())
        done = transfer(connect, output, FetchProgress(name, limit, enabled=not quiet))
    with standard_output():
        if as_json:
            _print_json(name, done, output)
        elif output is None and not quiet:
            done.preview.show()
    if not quiet:
        where = "" if output is None else f" -> {'standard output' if output == '-' else output}"
        say(
            f"{printable(name)}: {counted(done.rows, 'row')}, {size(done.nbytes)} "
            f"in {duration(done.seconds)}, {rate(done.nbytes, done.seconds)}{where}"
        )


def _names(columns: list[str] | None) -> list[str] | None:
    """Return the names in lists of names separated by commas."""
    if not columns:
        return None
    names = [name for row in csv.reader(columns, skipinitialspace=True) for name in row]
    if not all(names):
        raise UsageError("--columns: a name is missing between two commas")
    return names


def _dataset(given: list[str], ticket: str | None) -> str:
    """Return the name of what is asked for, once it is clear that it can be asked for.

    Raises
    ------
    UriError
        If a URI is malformed or of an unknown scheme, or there is no ticket.
    """
    from ..client.reader import stream_name
    from ..protocol.uri import DataUri
    from ..transport.registry import transport_for

    uris = [DataUri.parse(uri) for uri in given]
    for uri in uris:
        transport_for(uri)
        uri.require_want_data()
    own = next((uri.ticket for uri in uris if uri.ticket is not None), None)
    if own is not None and ticket is not None:
        raise UsageError("the URI has a ticket already: leave --ticket out")
    asked = (ticket or "").encode() if own is None else own
    if not asked:
        raise UriError(
            f"{uris[0].redacted()} has no ticket: add &ticket=NAME, with the URI in quotes, "
            "or give --ticket NAME"
        )
    return stream_name(asked)


def _print_json(name: str, done: Transfer, output: str | None) -> None:
    summary = {
        "dataset": name,
        "rows": done.rows,
        "batches": done.batches,
        "bytes": done.nbytes,
        "seconds": round(done.seconds, 6),
        "path": output,
        "transport": done.transport,
        "columns": [{"name": field.name, "type": str(field.type)} for field in done.schema],
    }
    print(json.dumps(summary, ensure_ascii=False))
