"""``splitarrow serve``: run the daemon."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, UsageError
from ..publication.patterns import has_wildcards
from ..server.config import Configuration, Declaration, Group, Settings, declarations
from .options import as_markup, option, with_parameters
from .terminal import is_terminal


def _parameters() -> Iterator[Parameter]:
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


@with_parameters(_parameters())
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
    from .banner import print_banner

    return serve_process(configuration, print_banner if _shows_banner(settings) else None)


def parse_datasets(arguments: list[str]) -> dict[str, str]:
    """Return the paths of datasets by name, from arguments ``NAME=PATH`` or ``PATH``.

    Raises `UsageError` if a name or a path is empty, or two paths have the same name.

    Examples
    --------
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
            name, path = _name_dataset(argument), argument
        if not name or not path:
            raise UsageError(f"{argument!r} is not a dataset: give NAME=PATH")
        if paths.setdefault(name, path) != path:
            raise UsageError(f"two datasets are named {name!r}: {paths[name]} and {path}")
    return paths


def _name_dataset(location: str) -> str:
    """Return the name of a file without its suffix, or of a folder; wildcards name nothing."""
    parts = [part for part in location.split("/") if not has_wildcards(part)]
    return Path("/".join(parts)).resolve().stem


def _shows_banner(settings: Settings) -> bool:
    """Return whether a person reads the output; a program reads the log and the ready file."""
    if settings.log_format == "auto":
        return is_terminal(sys.stdout)
    return settings.log_format == "console"
