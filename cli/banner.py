"""What a daemon says when it begins to serve."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..protocol.uri import StreamKind
from .figures import count, counted, printable, size

if TYPE_CHECKING:
    from ..server.daemon import Daemon

_SHOWN = 20
"""How many datasets are listed; the ready file has all."""


def print_banner(daemon: Daemon) -> None:
    """Print a table of the datasets and, for each, the command that fetches it."""
    names = daemon.catalog.names()
    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("dataset", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("columns", justify="right", no_wrap=True)
    for name in names[:_SHOWN]:
        dataset = daemon.lookup(name)
        table.add_row(
            Text(printable(name)),
            dataset.kind,
            "" if dataset.rows is None else count(dataset.rows),
            "" if dataset.nbytes is None else size(dataset.nbytes),
            count(len(dataset.schema)),
        )
    print()
    console.print(table)
    for name in names[:_SHOWN]:
        print(f"\n{printable(name)}")
        for line in _ways(daemon, name):
            print(f"  {line}")
    if len(names) > _SHOWN:
        print(f"\n… and {counted(len(names) - _SHOWN, 'more dataset')}; --ready-file lists all")
    print(f"\nServing on {', '.join(uri.address for uri in daemon.uris)}. Ctrl-C ends it.\n")
    sys.stdout.flush()


def _ways(daemon: Daemon, name: str) -> list[str]:
    """Return the commands that fetch a dataset, one for each scheme."""
    lines: list[str] = []
    stem = name.replace("/", "_")
    # Whoever copies the line in this folder shall not overwrite what is served.
    file = shlex.quote(f"{stem}-copy.arrow" if os.path.exists(f"{stem}.arrow") else f"{stem}.arrow")
    for scheme in dict.fromkeys(uri.scheme for uri in daemon.uris):
        kinds = {uri.stream for uri in daemon.uris if uri.scheme == scheme}
        if StreamKind.BOTH in kinds:
            wanted = [StreamKind.BOTH]
        else:
            wanted = [kind for kind in (StreamKind.METADATA, StreamKind.BODY) if kind in kinds]
        uris = [shlex.quote(daemon.address(name, scheme, kind.value)) for kind in wanted]
        if len(uris) == 1 and wanted[0] is not StreamKind.BOTH:
            uris.append("OTHER_URI")
        lines.append(f"splitarrow fetch {' '.join(uris)} -o {file}")
    return lines
