"""``splitarrow drop``: remove an uploaded or published dataset."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .completion import complete_name
from .connection import AsJson, ConnectTimeout, ControlUri, Quiet, Token, locate, open_client
from .formatting import escape_text
from .terminal import print_message, standard_output
from .tls_options import with_tls_options


@with_tls_options
def drop(
    uri: ControlUri,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The dataset, unless the URI names it.",
            metavar="NAME",
            autocompletion=complete_name,
        ),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Remove an uploaded or published dataset from a server.

    Its files are removed as well. Running streams continue to their end. A dataset of the
    configuration is not removed: delete it there, and use `reload`. The token needs the right to
    write the dataset.

    [dim]splitarrow drop grpc://host:8815 scores[/dim]
    """
    address, dataset = locate(uri, name, "drop")
    with open_client(address, token, connect_timeout) as client:
        client.drop(dataset)
    if as_json:
        with standard_output():
            print(json.dumps({"dropped": dataset}, ensure_ascii=False))
    elif not quiet:
        print_message(f"dropped {escape_text(dataset)}")
