"""``splitarrow put``: upload a file as a dataset."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from . import signals
from .connection import AsJson, ConnectTimeout, ControlUri, Quiet, Token, open_single_client
from .formatting import escape_text, format_bytes, format_count, format_duration, format_rate
from .progress import TransferProgress
from .terminal import print_message, standard_output
from .tls_options import with_tls_options


@with_tls_options
def put(
    uri: ControlUri,
    name: Annotated[str, typer.Argument(help="The name of the dataset.", metavar="NAME")],
    file: Annotated[
        Path,
        typer.Argument(
            help="An Arrow IPC file or stream, a Parquet file or a Feather file. Its content "
            "determines the format.",
            metavar="FILE",
        ),
    ],
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Upload a file as a dataset.

    The dataset appears on the server once it is complete. A failed upload leaves nothing behind.

    [dim]splitarrow put grpc://host:8815 trips trips.parquet[/dim]
    """
    from .input_files import open_input

    started = time.perf_counter()
    with (
        signals.raise_on_signals(),
        open_input(file) as (schema, batches, rows),
        open_single_client(uri, token, connect_timeout) as client,
        TransferProgress(name, rows, enabled=not quiet) as progress,
    ):
        stored = client.put(name, batches, schema=schema, progress=progress.update)
    seconds = time.perf_counter() - started
    if as_json:
        with standard_output():
            summary = {"dataset": stored.name, "rows": stored.rows, "bytes": stored.bytes}
            print(json.dumps({**summary, "seconds": round(seconds, 6)}, ensure_ascii=False))
    if not quiet:
        print_message(
            f"{escape_text(stored.name)}: {format_count(stored.rows, 'row')}, "
            f"{format_bytes(stored.bytes)} in {format_duration(seconds)}, "
            f"{format_rate(stored.bytes, seconds)}"
        )
