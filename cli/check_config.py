"""``splitarrow check-config``: check a configuration file without starting a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..server.config import Configuration
from .formatting import escape_text
from .terminal import print_message, standard_output


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
        count = len(settings.datasets)
        print(f"{file}: valid, with {count} dataset{'' if count == 1 else 's'}")
