"""Run a transfer with its progress, and report its result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import signals
from .connection import describe_schema
from .formatting import escape_text, format_bytes, format_count, format_duration, format_rate
from .selection import count_expected_rows
from .terminal import print_message, standard_output

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .output_form import OutputForm
    from .remote_sources import Source
    from .transfer import Transfer


def run_transfer(
    source: AbstractContextManager[Source],
    output: str | None,
    form: OutputForm | None,
    selection: dict[str, Any],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Copy a source to an output, and print a summary.

    `output` is the file, ``-`` for standard output, or None to preview the data.
    """
    with signals.raise_on_signals(), source as (name, row_count, open_stream):
        # A transfer whose source cannot be opened needs none of these.
        from .output_form import PLAIN
        from .progress import TransferProgress
        from .transfer import transfer

        total = count_expected_rows(row_count, selection)
        progress = TransferProgress(name, total, enabled=not quiet)
        result = transfer(open_stream, output, progress, form or PLAIN)
    with standard_output():
        if as_json:
            print(json.dumps(_summary(name, result, output), ensure_ascii=False))
        elif output is None and not quiet:
            result.preview.show()
    if not quiet:
        target = "" if output is None else f" -> {'standard output' if output == '-' else output}"
        print_message(
            f"{escape_text(name)}: {_describe_count(result)}, "
            f"{format_bytes(result.nbytes)} in {format_duration(result.data_seconds)}, "
            f"{format_rate(result.nbytes, result.data_seconds)}{target}"
        )


def _describe_count(result: Transfer) -> str:
    if result.tensors:
        return format_count(result.tensors, "tensor")
    return format_count(result.rows, "row")


def _summary(name: str, result: Transfer, output: str | None) -> dict[str, Any]:
    return {
        "dataset": name,
        "rows": result.rows,
        "batches": result.batches,
        **({"tensors": result.tensors} if result.tensors else {}),
        "bytes": result.nbytes,
        "seconds": round(result.seconds, 6),
        "path": output,
        "transport": result.transport,
        "columns": describe_schema(result.schema),
    }
