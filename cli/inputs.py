"""The inputs of commands: datasets of servers, local files, and standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..client.uris import (
    complete_uri,
    is_control_uri,
    is_http_uri,
    read_dataset_name,
    split_http_dataset,
)
from ..errors import UriError, UsageError
from . import completion
from .connection import check_control_plane, connect_first, locate, open_client, resolve_token
from .options import option
from .selection import leave_out_absent
from .terminal import is_terminal

Source = tuple[str, int | None, Callable[[], Any]]
"""The name of a dataset, its rows if they are known, and a function that opens its stream."""


@contextmanager
def control_source(
    uri: str, name: str, token: str | None, arguments: dict[str, Any], *, quiet: bool
) -> Generator[Source]:
    """Connect to a control plane that locates the dataset."""
    check_control_plane(uri, arguments["connect_timeout"])
    with open_client(uri, token, arguments["connect_timeout"]) as client:
        shows_progress = not quiet and is_terminal(sys.stderr)
        rows = client.info(name).rows if shows_progress else None
        yield name, rows, partial(client.read, name, **arguments)


@contextmanager
def query_source(
    uri: str, query: str, token: str | None, arguments: dict[str, Any]
) -> Generator[Source]:
    """Run a query over the datasets of a control plane."""
    with open_client(uri, token, arguments["connect_timeout"]) as client:
        yield "query", None, partial(client.read, sql=query, **arguments)


@contextmanager
def data_source(
    uris: list[str], ticket: str | None, arguments: dict[str, Any]
) -> Generator[Source]:
    """Read from the URI of a dataset, or from a pair of URIs."""
    with connect_first(uris, ticket, arguments["connect_timeout"]):
        from ..client.open import open as open_stream

        yield _dataset_name(uris, ticket), None, partial(open_stream, uris, ticket, **arguments)


@contextmanager
def http_source(
    url: str, ticket: str | None, token: str | None, arguments: dict[str, Any]
) -> Generator[Source]:
    """Read a dataset over HTTP."""
    _, name = split_http_dataset(url, ticket)
    from ..client.open import open as open_stream

    yield name, None, partial(open_stream, url, ticket, token=resolve_token(token), **arguments)


def _dataset_name(uris: list[str], ticket: str | None) -> str:
    """Check the URIs of a dataset, and return the name that their ticket requests."""
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


Input = Annotated[
    str,
    typer.Argument(
        help="A file, a folder, a pattern such as 'trips/*.parquet', a published dataset, an "
        "object store such as s3://lake/trips, a URI of a dataset such as "
        "[cyan]grpc://host:8815/NAME[/cyan], or - for standard input.",
        metavar="INPUT",
        autocompletion=completion.complete_uri,
    ),
]
InputFormat = Annotated[
    Literal["csv", "jsonl"] | None,
    option(
        help="The format of text on standard input. That of a file follows from its name.",
        default="jsonl if it begins with {",
    ),
]
TextSchema = Annotated[
    str | None,
    option(
        "--schema",
        help="Read CSV or JSON Lines with the schema of this file or folder.",
        default="the types that the text fits",
        metavar="FILE",
    ),
]


def parse_text(input_format: InputFormat = None, text_schema: TextSchema = None) -> dict[str, Any]:
    """Return the arguments of `open_input` that describe text."""
    return leave_out_absent(input_format=input_format, text_schema=text_schema)


@contextmanager
def open_input(
    location: str,
    arguments: dict[str, Any],
    token: str | None = None,
    *,
    quiet: bool = False,
) -> Generator[Source]:
    """Find an input, and keep what it needs open while the context lasts.

    `arguments` are those of `splitarrow.open` and `parse_text`.
    """
    arguments = dict(arguments)
    input_format = arguments.pop("input_format", None)
    text_schema = arguments.pop("text_schema", None)
    if input_format is not None and location != "-":
        raise UsageError("--input-format is for standard input; the name of a file has a suffix")
    is_local = location == "-" or Path(location).exists()
    is_remote = is_control_uri(location) or is_http_uri(location) or _is_data_uri(location)
    if text_schema is not None and is_remote and not is_local:
        raise UsageError(f"--schema is for a file of text or standard input, not {location}")
    if not is_local and is_control_uri(location):
        address, name = locate(location, None, "convert")
        with control_source(address, name, token, arguments, quiet=quiet) as source:
            yield source
        return
    if not is_local and is_http_uri(location):
        with http_source(location, None, token, arguments) as source:
            yield source
        return
    arguments = {name: value for name, value in arguments.items() if name != "transport"}
    if not is_local and _is_data_uri(location):
        with data_source([location], None, arguments) as source:
            yield source
        return
    from .local_input import (
        open_local,
        open_selection,
        open_standard_input,
        read_schema,
        shorten_location,
    )

    for name in ("connect_timeout", "stall_timeout"):
        arguments.pop(name)
    schema = None if text_schema is None else read_schema(text_schema)
    if location == "-":
        with open_standard_input(arguments, input_format, schema) as open_stream:
            yield "standard input", None, open_stream
        return
    with open_local(location, schema) as dataset:
        rows = dataset.rows if not quiet and is_terminal(sys.stderr) else None
        open_part = partial(open_selection, dataset, location, **arguments)
        yield shorten_location(location), rows, open_part


def _is_data_uri(location: str) -> bool:
    """Return whether a location is the URI of a data stream."""
    from ..transport.registry import list_schemes

    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in list_schemes()
