"""The command ``splitarrow``: its subcommands and the options that all of them share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main

from . import errors
from .completion import complete_for_bash, is_bash_completion
from .conversion import Command, CommandGroup
from .options import Subcommands, as_paragraphs, flag
from .terminal import standard_output
from .variables import check_variables

COMMANDS = {
    "serve": "Serve datasets until SIGTERM or Ctrl-C.",
    "ls": "List the datasets that you can read.",
    "info": "Show the columns, size and locations of a dataset.",
    "fetch": "Fetch a dataset into a file, or preview it.",
    "convert": "Copy data from any input to any format.",
    "head": "Show the first rows of an input.",
    "cat": "Show all rows of an input.",
    "schema": "Show the schema of an input.",
    "stats": "Show statistics of the columns of an input.",
    "put": "Upload a file as a dataset.",
    "check": "Check files and datasets for defects.",
    "publish": "Prepare files or a table with Spark, and publish them as a dataset of shards.",
    "status": "Show the state, metrics and running streams of a server.",
    "top": "Watch the streams, rates, leases and shared memory of a server.",
    "cancel": "Cancel running streams of a server.",
    "drop": "Remove an uploaded or published dataset from a server.",
    "reload": "Let a server read its configuration again.",
    "check-config": "Check a configuration file of `serve` without starting a server.",
    "token": "Create and list the tokens of a server's token file.",
    "cert": "Check the certificates of files and servers.",
    "bench": "Measure the transports and their peers on this machine.",
    "demo": "Serve a table, read it in another process, verify it, and time it.",
    "doctor": "Check this machine, and the connection to a server.",
}
"""The subcommands in the order of help, and the first lines of their descriptions.

Each is a function in the module of the same name, with underscores for hyphens, or a `Subcommands`
there."""
_SETTINGS: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False}


class _Commands(CommandGroup):
    """Imports the module of a subcommand when it runs, so that each, and help, starts quickly."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that help can list. `resolve_command` loads the command itself."""
        text = COMMANDS.get(cmd_name)
        return None if text is None else Command(cmd_name, help=text)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, and the arguments that follow."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import a subcommand."""
    module_name = name.replace("-", "_")
    function = getattr(import_module(f".{module_name}", __package__), module_name)
    if isinstance(function, Subcommands):
        return _load_group(name, function)
    single = typer.Typer(add_completion=False, **_SETTINGS)
    single.command(name, cls=Command, help=as_paragraphs(function))(function)
    return typer.main.get_command(single)


def _load_group(name: str, subcommands: Subcommands) -> Any:
    group = typer.Typer(
        cls=CommandGroup,
        name=name,
        help=subcommands.help,
        no_args_is_help=True,
        add_completion=False,
        **_SETTINGS,
    )
    for subname, function in subcommands.commands.items():
        group.command(subname, cls=Command, help=as_paragraphs(function))(function)
    return typer.main.get_group(group)


app = typer.Typer(
    cls=_Commands,
    name="splitarrow",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 for success, 1 for failure, 2 for wrong usage.",
    **_SETTINGS,
)


def _print_version(requested: bool) -> None:
    if requested:
        from .. import __version__

        print(f"splitarrow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        flag("--version", "-V", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, flag("--debug", help=f"Show tracebacks, as {errors.DEBUG_VARIABLE}=1 does.")
    ] = False,
) -> None:
    """Serve Arrow datasets and fetch them, over the Dissociated IPC protocol.

    A server prints a URI for each dataset. A reader needs only that URI.
    """
    check_variables(os.environ)
    if debug:
        os.environ[errors.DEBUG_VARIABLE] = "1"  # the processes that a command starts inherit it


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    If the command fails, its error has been printed on standard error.
    """
    # gRPC reads the variable on import. It would otherwise print to standard error itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    command = typer.main.get_command(app)
    if arguments is None and is_bash_completion():
        return complete_for_bash(command)
    try:
        given = None if arguments is None else list(arguments)
        status = command.main(args=given, prog_name="splitarrow", standalone_mode=False)
        with standard_output():
            pass  # flush the last output here, where a failure can be reported
        return status if isinstance(status, int) else 0
    except SystemExit:
        raise
    except BaseException as error:
        return errors.report(error)
