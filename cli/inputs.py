"""The inputs of `convert`, `head`, `cat`, `schema` and `stats`: files, servers, standard input."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import UsageError
from .completion import complete_uri
from .connection import is_control_uri, locate
from .options import option
from .remote_sources import Source, control_source, data_source
from .terminal import is_terminal

Input = Annotated[
    str,
    typer.Argument(
        help="A file, a folder, a pattern such as 'trips/*.parquet', a published dataset, an "
        "object store such as s3://lake/trips, a URI of a dataset such as "
        "[cyan]grpc://host:8815/NAME[/cyan], or - for standard input.",
        metavar="INPUT",
        autocompletion=complete_uri,
    ),
]
InputFormat = Annotated[
    Literal["csv", "jsonl"] | None,
    option(
        help="The format of text on standard input. That of a file follows from its name.",
        default="jsonl if it begins with {",
    ),
]


@contextmanager
def open_input(
    location: str,
    selection: dict[str, Any],
    *,
    token: str | None = None,
    transport: str = "auto",
    validate: str | None = None,
    connect_timeout: float = 10.0,
    stall_timeout: float = 30.0,
    input_format: Literal["csv", "jsonl"] | None = None,
    quiet: bool = False,
) -> Generator[Source]:
    """Find an input, and keep what it needs open while the context lasts.

    Raises `SplitArrowError` if the input does not exist, or cannot be read.
    """
    counts_rows = not quiet and is_terminal(sys.stderr)
    if location == "-":
        from .standard_input import open_standard_input

        checks: Any = validate or "full"
        with open_standard_input(selection, input_format, checks) as open_stream:
            yield "standard input", None, open_stream
        return
    if input_format is not None:
        raise UsageError("--input-format is for standard input; the name of a file has a suffix")
    options = {
        **selection,
        "validate": validate,
        "connect_timeout": connect_timeout,
        "stall_timeout": stall_timeout or None,
    }
    if not Path(location).exists() and is_control_uri(location):
        address, name = locate(location, None, "convert")
        if transport != "auto":
            options["transport"] = transport
        with control_source(address, name, token, options, quiet=quiet) as source:
            yield source
        return
    if is_data_uri(location):
        with data_source([location], None, options) as source:
            yield source
        return
    from .local_input import open_local, open_selection, shorten_location

    with open_local(location) as dataset:
        rows = dataset.rows if counts_rows else None
        open_part = partial(open_selection, dataset, location, **selection)
        yield shorten_location(location), rows, partial(open_part, validate=validate or "full")


def is_data_uri(location: str) -> bool:
    """Return whether a location is the URI of a data stream."""
    from ..transport.registry import list_schemes

    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in list_schemes()
