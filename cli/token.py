"""``splitarrow token``: create and list the tokens of a server's token file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ..transport.credential_files import is_world_readable
from .connection import AsJson
from .formatting import escape_text
from .options import Subcommands, option
from .terminal import make_console, make_table, print_message, standard_output

TokenFilePath = Annotated[
    Path,
    typer.Argument(help="The token file, as for serve --token-file.", metavar="FILE"),
]


def new(
    file: TokenFilePath,
    name: Annotated[
        str, typer.Argument(help="The name of the principal, for logs.", metavar="NAME")
    ],
    datasets: Annotated[
        list[str] | None,
        option(
            help="A dataset to read, or a glob such as 'trips/*'. Repeat it for more.",
            metavar="GLOB",
        ),
    ] = None,
    write: Annotated[
        list[str] | None,
        option(
            help="A dataset to upload, replace and drop, or a glob. '*' makes an operator.",
            metavar="GLOB",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token, print it, and add its digest to a token file.

    The token is printed once, alone on standard output. The file gets only its SHA-256 digest, so
    that it cannot be read from there. A running server accepts the token within a second. Several
    tokens may have one name, so that the new one can be distributed before you remove the old one.

    [dim]splitarrow token new tokens.toml training --datasets 'trips/*' > training.token[/dim]
    """
    from ..server.auth.token_file import add_token

    is_new = not file.exists()
    token = add_token(file, name, datasets or [], write or [])
    with standard_output():
        print(json.dumps({"name": name, "token": token}, ensure_ascii=False) if as_json else token)
    shown = escape_text(str(file))
    if is_new:
        print_message(
            f"splitarrow: created {shown}; the user of the server must be able to read it"
        )
    print_message(f"splitarrow: added a token of {escape_text(name)} to {shown}")
    if not (datasets or write):
        print_message(
            "splitarrow: it permits no dataset, only metrics and the state of the server; "
            "see --datasets and --write"
        )


def ls(file: TokenFilePath, as_json: AsJson = False) -> None:
    """List the principals of a token file and their rights, but no token.

    [dim]splitarrow token ls tokens.toml[/dim]
    """
    from ..server.auth.token_file import read_tokens

    entries = [
        {
            "name": entry.principal.name,
            "datasets": list(entry.principal.grants.read),
            "write": list(entry.principal.grants.write),
            "stored_as": "text" if entry.is_plain else "digest",
        }
        for entry in read_tokens(file)
    ]
    with standard_output():
        if as_json:
            print(json.dumps(entries, ensure_ascii=False))
        else:
            _print_table(entries)
    if is_world_readable(file) and any(entry["stored_as"] == "text" for entry in entries):
        print_message(
            f"splitarrow: warning: every user of this machine can read the tokens in "
            f"{escape_text(os.fspath(file))}; store digests, or use: chmod 600"
        )


def _print_table(entries: list[dict[str, Any]]) -> None:
    table = make_table()
    for heading in ("name", "reads", "writes", "stored as"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        globs = (escape_text(", ".join(entry[grant])) for grant in ("datasets", "write"))
        style = "yellow" if entry["stored_as"] == "text" else ""
        table.add_row(
            Text(escape_text(entry["name"])), *map(Text, globs), Text(entry["stored_as"], style)
        )
    make_console().print(table)


token = Subcommands("Create and list the tokens of a server's token file.", {"new": new, "ls": ls})
