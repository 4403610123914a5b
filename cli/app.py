"""The command ``splitarrow``: its subcommands and the options that all of them share.

A subcommand's module is imported only when the subcommand runs, so that help starts quickly.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from ..errors import UsageError
from .completion import complete_for_bash, is_bash_completion
from .exit_status import DEBUG_VARIABLE, report_error
from .formatting import suggest
from .options import Subcommands, as_paragraphs, flag
from .terminal import standard_output

Process = Callable[[Any, Any], Any]


class Command(TyperCommand):
    """A command that converts only values that do not have their type yet."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the command."""
        return hide_flag_types(skip_needless_conversions(super().get_params(ctx)))


class CommandGroup(TyperGroup):
    """The same, with subcommands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the group."""
        return hide_flag_types(skip_needless_conversions(super().get_params(ctx)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; suggest one for an unknown name."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}{suggest(args[0], names)}")
        return super().resolve_command(ctx, args)


def hide_flag_types(parameters: list[Any]) -> list[Any]:
    """Show flags that typer adds, such as ``--help``, without a type, as those of `flag`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def skip_needless_conversions(parameters: list[Any]) -> list[Any]:
    """Let parameters convert only values that do not have their type yet. Idempotent.

    To convert a value, typer builds a validator of pydantic, even for an option that is absent.
    That takes longer than most commands.
    """
    for parameter in parameters:
        descriptor = getattr(parameter, "type_descriptor", None)  # not in typer 0.28
        if descriptor is not None and not isinstance(parameter.process_value, partial):
            convert: Process = parameter.process_value
            parameter.process_value = partial(_process, parameter, descriptor.annotation, convert)
    return parameters


def _process(parameter: Any, annotation: Any, convert: Process, context: Any, value: Any) -> Any:
    """Return the value of a parameter; call its callback as typer does."""
    if value is None:
        if parameter.required:
            return convert(context, value)
        value = () if parameter.multiple or parameter.nargs == -1 else None
    elif annotation == list[str] and all(isinstance(item, str) for item in value or (None,)):
        value = list(value)
    elif not (type(value) is annotation is str or value == parameter.default):
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


_COMMON = (
    *("DEBUG", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"),
    *("TOKEN", "CLIENT_TOKEN_FILE", "LOGINS", "CLIENT_SECRET"),
)
"""Known without the list of settings, which takes time to import."""


def check_variables(environ: Mapping[str, str]) -> None:
    """Raise `UsageError`, which suggests a name, for an unknown variable ``SPLITARROW_…``."""
    prefix = "SPLITARROW_"
    if all(name.removeprefix(prefix) in _COMMON for name in environ if name.startswith(prefix)):
        return
    from ..server.config.configuration import unknown_variables

    problems = unknown_variables(environ)
    if problems:
        raise UsageError("; ".join(problems))


class CommandEntry(NamedTuple):
    """Where a subcommand is defined, and the first line of its description."""

    module: str
    help: str


COMMANDS = {
    "serve": CommandEntry("serve", "Serve datasets until SIGTERM or Ctrl-C."),
    "relay": CommandEntry("relay", "Serve the datasets of other servers, and cache their shards."),
    "ls": CommandEntry("datasets", "List the datasets that you can read."),
    "info": CommandEntry("datasets", "Show the columns, size and locations of a dataset."),
    "fetch": CommandEntry("fetch", "Fetch a dataset into a file, or preview it."),
    "convert": CommandEntry("fetch", "Copy data from any input to any format."),
    "head": CommandEntry("show", "Show the first rows of an input."),
    "cat": CommandEntry("show", "Show all rows of an input."),
    "schema": CommandEntry("show", "Show the schema of an input."),
    "stats": CommandEntry("show", "Show statistics of the columns of an input."),
    "put": CommandEntry("datasets", "Upload a file as a dataset."),
    "check": CommandEntry("check", "Check files and datasets for defects."),
    "publish": CommandEntry(
        "publish", "Prepare files or a table with Spark, and publish them as a dataset of shards."
    ),
    "status": CommandEntry("status", "Show the state, metrics and running streams of a server."),
    "top": CommandEntry(
        "status", "Watch the streams, rates, leases and shared memory of a server."
    ),
    "cancel": CommandEntry("status", "Cancel running streams of a server."),
    "drop": CommandEntry("datasets", "Remove an uploaded or published dataset from a server."),
    "reload": CommandEntry("serve", "Let a server read its configuration again."),
    "check-config": CommandEntry(
        "serve", "Check a configuration file of `serve` without starting a server."
    ),
    "loader": CommandEntry("loader", "Audit the checkpoints of a training loader."),
    "login": CommandEntry("login", "Log in at the issuer of a server, and keep the token."),
    "logout": CommandEntry("login", "Remove the kept token of a server."),
    "token": CommandEntry("token", "Create and list the tokens of a server's token file."),
    "cert": CommandEntry("cert", "Check the certificates of files and servers."),
    "bench": CommandEntry("bench", "Measure the transports and their peers on this machine."),
    "demo": CommandEntry(
        "demo", "Serve a table, read it in another process, verify it, and time it."
    ),
    "doctor": CommandEntry("doctor", "Check this machine, and the connection to a server."),
}
"""The subcommands in the order of help.

Each is a function of the same name in its module, with underscores for hyphens, or a `Subcommands`
there."""
_UNCOLLECTED = {
    *("serve", "relay"),
    *("ls", "info", "drop", "cancel", "reload", "status", "login", "logout", "token", "cert"),
}
"""The subcommands that resume the garbage collector themselves, or end before it has work."""
_SETTINGS: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False}


class _Commands(CommandGroup):
    """Imports the module of a subcommand when it runs, so that each, and help, starts quickly."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that help can list. `resolve_command` loads the command itself."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else Command(cmd_name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, and the arguments that follow."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import a subcommand."""
    module = import_module(f".{COMMANDS[name].module}", __package__)
    if name not in _UNCOLLECTED:
        gc.enable()
    function = getattr(module, name.replace("-", "_"))
    if isinstance(function, Subcommands):
        return _load_group(name, function)
    single = typer.Typer(add_completion=False, **_SETTINGS)
    single.command(name, cls=Command, help=as_paragraphs(function))(function)
    return typer.main.get_command(single)


def _load_group(name: str, subcommands: Subcommands) -> Any:
    class Group(CommandGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Name the default subcommand unless another one is named."""
            named = bool(args) and args[0] in subcommands.commands
            default = [] if named or subcommands.default is None else [subcommands.default]
            return super().parse_args(ctx, [*default, *args])

    group = typer.Typer(
        cls=Group,
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
        bool, flag("--debug", help=f"Show tracebacks, as {DEBUG_VARIABLE}=1 does.")
    ] = False,
) -> None:
    """Serve Arrow datasets and fetch them, over the Dissociated IPC protocol.

    A server prints a URI for each dataset. A reader needs only that URI.
    """
    check_variables(os.environ)
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"  # the processes that a command starts inherit it


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    If the command fails, its error has been printed on standard error.
    """
    # gRPC reads the variables on import; see `transport.grpc_usage`, which would import it now.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
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
        return report_error(error)
