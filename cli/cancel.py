"""``splitarrow cancel``: end running streams of a server."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .connection import AsJson, ConnectTimeout, ControlUri, Quiet, Token, open_single_client
from .formatting import format_count
from .terminal import print_message, standard_output
from .tls_options import with_tls_options


@with_tls_options
def cancel(
    uri: ControlUri,
    streams: Annotated[
        list[int],
        typer.Argument(
            help="The numbers of the streams, as [cyan]status[/cyan] and [cyan]top[/cyan] show "
            "them.",
            metavar="STREAM",
        ),
    ],
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Cancel running streams of a server.

    Their readers get the error ABORTED. You can cancel your own streams. To cancel those of
    others, the token needs the right to write every dataset.

    [dim]splitarrow cancel grpc://host:8815 17[/dim]
    """
    with open_single_client(uri, token, connect_timeout) as client:
        for number in streams:
            client.act("cancel", json.dumps({"stream": number}).encode())
    if as_json:
        with standard_output():
            print(json.dumps({"cancelled": streams}))
    elif not quiet:
        print_message(f"cancelled {format_count(len(streams), 'stream')}")
