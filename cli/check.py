"""``splitarrow check``: check files and datasets for defects, and recover damaged files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .connection import (
    AsJson,
    ConnectTimeout,
    Quiet,
    Token,
    with_tls_options,
)
from .exit_status import raise_on_signals
from .options import flag, option
from .terminal import TransferProgress, standard_output

if TYPE_CHECKING:
    from .checks import CheckReport


@with_tls_options
def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, published datasets, or URIs of datasets or servers.",
            metavar="FILE|URI...",
        ),
    ],
    full: Annotated[
        bool, flag("--full", help="Decode everything, and validate the values, too.")
    ] = False,
    recover: Annotated[
        Path | None,
        option(
            "--recover",
            help="Write the readable record batches of one damaged Arrow file or stream to OUT.",
            metavar="OUT",
        ),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check files and datasets for defects.

    It compares every count, offset and size in the metadata with the schema and the file, in time
    that depends on the metadata only. `--full` decodes everything. `--recover` writes
    what is readable into a new file and lists what was lost.

    The exit status is 1 if there is a defect, or if something was lost.

    [dim]splitarrow check trips.arrow[/dim]

    [dim]splitarrow check --recover repaired.arrow trips.arrow[/dim]
    """
    if recover is not None:
        is_sound = _recover(targets, recover, full=full, quiet=quiet, as_json=as_json)
    else:
        is_sound = True
        for report in _check_all(
            targets, full=full, token=token, connect_timeout=connect_timeout, quiet=quiet
        ):
            is_sound &= report.is_sound
            _print(report.describe() if as_json else report.lines())
    if not is_sound:
        raise typer.Exit(1)


def _check_all(
    targets: list[str], *, full: bool, token: str | None, connect_timeout: float, quiet: bool
) -> Iterator[CheckReport]:
    from .checks import check_path, check_uri, is_local

    with raise_on_signals():
        for target in targets:
            progress = TransferProgress(target, enabled=not quiet)
            if is_local(target):
                reports = check_path(Path(target), full=full, progress=progress.update)
            else:
                reports = check_uri(
                    target,
                    full=full,
                    progress=progress.update,
                    token=token,
                    connect_timeout=connect_timeout,
                )
            while True:
                # No progress is shown while a report is printed.
                with progress:
                    report = next(reports, None)
                if report is None:
                    break
                yield report


def _recover(targets: list[str], out: Path, *, full: bool, quiet: bool, as_json: bool) -> bool:
    """Recover a file, print the result, and return whether nothing was lost."""
    from .checks import is_local
    from .recovery import recover

    if len(targets) != 1 or not is_local(targets[0]):
        raise UsageError("--recover takes one file: splitarrow check --recover OUT FILE")
    if full:
        raise UsageError("--recover always decodes everything; leave --full out")
    with (
        raise_on_signals(),
        TransferProgress(targets[0], enabled=not quiet) as progress,
    ):
        result = recover(Path(targets[0]), out, progress.update)
    _print({"target": targets[0], **result.describe()} if as_json else result.lines())
    return not result.lost


def _print(result: dict[str, object] | list[str]) -> None:
    with standard_output():
        if isinstance(result, dict):
            print(json.dumps(result, ensure_ascii=False))
        else:
            print("\n".join(result))
