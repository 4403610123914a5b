"""The commands put together, and what is common to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from . import bench, demo, doctor, failures, fetch, info, ls, publish, put, serve, status
from .output import standard_output
from .wording import flag, prose

app = typer.Typer(
    name="splitarrow",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0; 1 if a command failed; 2 if it was called wrongly.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        print(f"splitarrow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        flag("--version", "-V", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, flag("--debug", help=f"Show tracebacks, as {failures.DEBUG}=1 does.")
    ] = False,
) -> None:
    """Serve Arrow datasets, and fetch them, over the Dissociated IPC protocol.

    A server prints a URI for each dataset; that URI is all that a reader needs.
    """
    if debug:
        os.environ[failures.DEBUG] = "1"  # processes that a command starts know it, too


for _name, _command in {
    "serve": serve.serve,
    "ls": ls.ls,
    "info": info.info,
    "fetch": fetch.fetch,
    "put": put.put,
    "publish": publish.publish,
    "status": status.status,
    "bench": bench.bench,
    "demo": demo.demo,
    "doctor": doctor.doctor,
}.items():
    app.command(_name, help=prose(_command))(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; by default that of the process.

    Returns
    -------
    int
        The exit status. Why it is not 0 has been said on standard error.
    """
    command = get_command(app)
    try:
        given = None if arguments is None else list(arguments)
        status = command.main(args=given, prog_name="splitarrow", standalone_mode=False)
        with standard_output():
            pass  # what was printed last is flushed
        return status if isinstance(status, int) else 0
    except SystemExit:
        raise
    except BaseException as error:
        return failures.report(error)
