"""The banner of ``splitarrow serve`` on a terminal: the datasets and how to fetch them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..client.uris import complete_uri
from ..errors import UriError
from ..protocol.uri import DataUri, Streams
from .formatting import escape_text, format_bytes, format_count, format_number
from .tables import make_table

if TYPE_CHECKING:
    from ..server.daemon import Daemon

_MAX_DATASETS = 20


def print_banner(daemon: Daemon) -> None:
    """Print a table of the datasets, a command that fetches each of them, and Python code."""
    names = daemon.catalog.names()
    shown, hidden = names[:_MAX_DATASETS], len(names) - _MAX_DATASETS
    print()
    Console(highlight=False, soft_wrap=True).print(_table(daemon, shown))
    print()
    for name in shown:
        for command in _fetch_commands(daemon, name):
            print(f"  {command}")
    if hidden > 0:
        print(f"\n… and {format_count(hidden, 'more dataset')}; --ready-file lists all")
    if shown:
        print(f"\nIn Python:\n\n{_python_code(daemon, shown[0])}")
    addresses = [uri.address for uri in daemon.uris]
    if daemon.control_uri is not None:
        addresses.insert(0, daemon.control_uri)
    if daemon.http_uri is not None:
        print(f"\nStatus page: {daemon.http_uri}/")
    print(f"\nServing on {', '.join(addresses)}. Press Ctrl-C to stop.\n")
    sys.stdout.flush()


def _python_code(daemon: Daemon, name: str) -> str:
    """Return code that reads a dataset."""
    if daemon.control_uri is not None:
        return (
            f"  client = splitarrow.connect({daemon.control_uri!r})\n  client[{name!r}].to_pandas()"
        )
    uris = _dataset_uris(daemon, name, daemon.uris[0].scheme)
    argument = repr(uris[0]) if len(uris) == 1 else repr(uris)
    return f"  splitarrow.open({argument}).to_pandas()"


def _table(daemon: Daemon, names: list[str]) -> Table:
    table = make_table()
    for heading in ("dataset", "kind"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows", "size", "columns"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        dataset = daemon.catalog.lookup(name)
        table.add_row(
            Text(escape_text(name)),
            dataset.kind,
            "" if dataset.rows is None else format_number(dataset.rows),
            "" if dataset.nbytes is None else format_bytes(dataset.nbytes),
            format_number(len(dataset.schema)),
        )
    return table


def _fetch_commands(daemon: Daemon, name: str) -> Iterator[str]:
    """Yield a command that fetches a dataset: by the control plane, or over each transport."""
    stem = name.replace("/", "_")
    if os.path.exists(f"{stem}.arrow"):
        stem += "-copy"  # running the command here must not overwrite the served file
    output = shlex.quote(f"{stem}.arrow")
    if daemon.control_uri is not None:
        yield f"splitarrow fetch {daemon.control_uri} {shlex.quote(name)} -o {output}"
        return
    for scheme in dict.fromkeys(uri.scheme for uri in daemon.uris):
        uris = [shlex.quote(uri) for uri in _dataset_uris(daemon, name, scheme)]
        yield f"splitarrow fetch {' '.join(uris)} -o {output}"


def _dataset_uris(daemon: Daemon, name: str, scheme: str) -> list[str]:
    """Return the URI of a dataset, or the pair of URIs for its two streams."""
    streams = {uri.stream for uri in daemon.uris if uri.scheme == scheme}
    if Streams.BOTH in streams:
        return [_shorten(daemon.printable_uri(name, scheme, Streams.BOTH.value), name)]
    pair = [stream for stream in (Streams.METADATA, Streams.BODY) if stream in streams]
    uris = [daemon.printable_uri(name, scheme, stream.value) for stream in pair]
    return uris if len(uris) == 2 else [*uris, "OTHER_URI"]


def _shorten(uri: str, name: str) -> str:
    """Return the form ``tcp://host/name`` of a URI if readers understand it."""
    full = DataUri.parse(uri)
    short = DataUri(full.scheme, full.host, full.port, f"/{name}")
    try:
        return short.address if complete_uri(short) == full else uri
    except UriError:
        return uri
