"""``splitarrow put``: a file becomes a dataset of a server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from . import signals
from .connecting import AsJson, ConnectTimeout, ControlUri, Token, connected
from .figures import counted, duration, printable, rate, size
from .output import say, standard_output
from .progress import FetchProgress
from .wording import flag


def put(
    uri: ControlUri,
    name: Annotated[str, typer.Argument(help="What the dataset shall be called.", metavar="NAME")],
    file: Annotated[
        Path,
        typer.Argument(
            help="An Arrow IPC file or stream, a Parquet or a Feather file; its content tells "
            "which.",
            metavar="FILE",
        ),
    ],
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Annotated[bool, flag("-q", "--quiet", help="Show no progress and no summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a file as a dataset.

    The dataset appears at the server once it is complete. An upload that fails leaves nothing
    behind.

    [dim]splitarrow put grpc://host:8815 trips trips.parquet[/dim]
    """
    from .sources import opened

    started = time.perf_counter()
    with (
        signals.raised(),
        opened(file) as (schema, batches, rows),
        connected(uri, token, connect_timeout) as client,
        FetchProgress(name, rows, enabled=not quiet) as progress,
    ):
        stored = client.put(name, batches, schema=schema, progress=progress.update)
    seconds = time.perf_counter() - started
    if as_json:
        with standard_output():
            summary = {"dataset": stored.name, "rows": stored.rows, "bytes": stored.bytes}
            print(json.dumps({**summary, "seconds": round(seconds, 6)}, ensure_ascii=False))
    if not quiet:
        say(
            f"{printable(stored.name)}: {counted(stored.rows, 'row')}, {size(stored.bytes)} "
            f"in {duration(seconds)}, {rate(stored.bytes, seconds)}"
        )
