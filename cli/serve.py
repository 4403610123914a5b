"""``splitarrow serve``: run the daemon; ``check-config`` and ``reload`` for its configuration."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..client.uris import complete_uri
from ..errors import ConfigError, UriError, UsageError
from ..formats.text import format_bytes
from ..protocol.uri import DataUri, Streams
from ..publication.patterns import name_location
from ..server.config import Configuration, Declaration, Group, Settings, declarations
from .connection import (
    AsJson,
    ConnectTimeout,
    ControlUri,
    Token,
    open_single_client,
    with_tls_options,
)
from .formatting import escape_text, format_count, format_number
from .options import as_markup, option, with_parameters
from .terminal import is_terminal, make_table, print_message, standard_output

if TYPE_CHECKING:
    from rich.table import Table

    from ..server.daemon import Daemon


_MAX_DATASETS = 20


def print_banner(daemon: Daemon) -> None:
    """Print a table of the datasets, a command that fetches each of them, and Python code."""
    from rich.console import Console

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
    from rich.text import Text

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


def list_setting_parameters() -> Iterator[Parameter]:
    """Yield the parameters of the command: the datasets, the settings and ``--config``."""
    for declaration in declarations(Settings):
        if declaration.name == "datasets":
            yield _parameter("datasets", list[str], _datasets_argument(declaration))
        else:
            value_type = list[str] if declaration.is_repeatable else declaration.type
            yield _parameter(declaration.name, value_type, _setting_option(declaration))
        if declaration.name == "ready_file":
            yield _parameter("config", Path, _CONFIG)


_CONFIG = option(
    help="A TOML file with settings. A SPLITARROW_… variable wins over the file, and an option "
    "wins over both. The server serves the datasets of all three.",
    metavar="FILE",
)


def _parameter(name: str, value_type: Any, declaration: Any) -> Parameter:
    annotation = Annotated[value_type | None, declaration]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _datasets_argument(declaration: Declaration) -> Any:
    return typer.Argument(help=as_markup(declaration.help), metavar=declaration.metavar)


def _setting_option(declaration: Declaration) -> Any:
    flag, setting = declaration.flag, declaration.setting
    panel = None if setting.group is Group.GENERAL else setting.group.value
    help = as_markup(declaration.help)
    if declaration.is_flag:
        names = f"{flag}/--no-{flag.removeprefix('--')}" if setting.negatable else flag
        return option(names, help=help, metavar="", panel=panel)
    return option(
        flag,
        help=help,
        default=declaration.default_text,
        metavar=declaration.metavar or None,
        min=declaration.minimum,
        panel=panel,
    )


@with_parameters(list_setting_parameters())
def serve(datasets: list[str] | None, config: Path | None, **options: Any) -> int:
    """Serve datasets until SIGTERM or Ctrl-C.

    On a terminal, it prints the datasets and the commands that fetch them.

    [dim]splitarrow serve flights=flights.arrow trips=trips/ --control grpc://127.0.0.1:8815[/dim]
    """
    # An option that may be repeated is an empty list if it is absent.
    given = {name: None if value == [] else value for name, value in options.items()}
    given["datasets"] = parse_datasets(datasets or []) or None
    configuration = Configuration(config, given, uses_options=True)
    try:
        settings = configuration.load()
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if not settings.datasets and settings.writable is None:
        raise UsageError("nothing to serve: name a dataset, as in flights=flights.arrow")
    from ..server.process import serve_process

    return serve_process(configuration, print_banner if shows_banner(settings) else None)


def parse_datasets(arguments: list[str]) -> dict[str, str]:
    """Return the paths of datasets by name, from arguments ``NAME=PATH`` or ``PATH``.

    >>> parse_datasets(["trips=data/t.arrow", "data/flights.arrow"])
    {'trips': 'data/t.arrow', 'flights': 'data/flights.arrow'}
    >>> parse_datasets(["s3://lake/trips/year=*/*.parquet"])
    {'trips': 's3://lake/trips/year=*/*.parquet'}
    """
    paths: dict[str, str] = {}
    for argument in arguments:
        name, separator, path = argument.partition("=")
        # A path may itself have an equals sign, as year=2026/ does.
        if not separator or "://" in name or (Path(argument).exists() and not Path(path).exists()):
            name, path = name_location(argument), argument
        if not name or not path:
            raise UsageError(f"{argument!r} is not a dataset: give NAME=PATH")
        if paths.setdefault(name, path) != path:
            raise UsageError(f"two datasets are named {name!r}: {paths[name]} and {path}")
    return paths


def shows_banner(settings: Settings) -> bool:
    """Return whether a person reads the output; a program reads the log and the ready file."""
    if settings.log_format == "auto":
        return is_terminal(sys.stdout)
    return settings.log_format == "console"


def check_config(
    file: Annotated[
        Path, typer.Argument(help="A TOML file, as for serve --config.", metavar="FILE")
    ],
) -> None:
    """Check a configuration file of `serve` without starting a server.

    It checks settings, datasets, tokens, keys and certificates. It combines the file with the
    SPLITARROW_… variables, as a server does. It prints each problem on a line. The exit status is
    1 if there is one.

    [dim]splitarrow check-config splitarrow.toml[/dim]
    """
    from ..server.reload import check_configuration

    settings, problems = check_configuration(Configuration(file))
    for problem in problems:
        print_message(f"splitarrow: error: {escape_text(problem)}")
    if problems or settings is None:
        raise typer.Exit(1)
    with standard_output():
        print(f"{file}: valid, with {format_count(len(settings.datasets), 'dataset')}")


@with_tls_options
def reload(
    uri: ControlUri,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Let a server read its configuration again.

    It applies the datasets, tokens, keys, certificates and log level. Running streams continue. If
    anything is wrong, it keeps the old configuration. The token needs the right to write every
    dataset. SIGHUP does the same.

    [dim]splitarrow reload grpc://host:8815[/dim]
    """
    with open_single_client(uri, token, connect_timeout) as client:
        report: dict[str, Any] = json.loads(client.act("reload"))
    with standard_output():
        if as_json:
            print(json.dumps(report, ensure_ascii=False))
        else:
            print(f"reloaded{_describe_changes(report)}")
    if report.get("restart") and not as_json:
        names = escape_text(", ".join(report["restart"]))
        print_message(f"splitarrow: changed, but applied on a restart only: {names}")


def _describe_changes(report: dict[str, Any]) -> str:
    parts = [
        f"{verb} {escape_text(', '.join(map(str, report[verb])))}"
        for verb in ("added", "removed", "changed")
        if report.get(verb)
    ]
    return f": {'; '.join(parts)}" if parts else ""
