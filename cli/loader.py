"""``splitarrow loader``: what the checkpoints of a training loader state."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from .connection import AsJson
from .formatting import escape_text
from .options import Subcommands
from .terminal import make_console, make_table, print_message, standard_output


def audit(
    states: Annotated[
        list[Path],
        typer.Argument(
            help="Files of state_dict: JSON, or of torch.save, also within larger checkpoints.",
            metavar="STATE...",
        ),
    ],
    as_json: AsJson = False,
) -> int:
    """Check that the checkpoints of a run cover each row of the epoch once.

    They may be of several steps and ranks of one run. The table states how many rows of each
    dataset were delivered once, several times, left out or not yet. The exit status is 1 if a row
    was delivered several times although the dataset was not to repeat rows.

    [dim]splitarrow loader audit checkpoints/*.json[/dim]
    """
    from ..pytorch.audit import audit, read_states

    found = audit([state for path in states for state in read_states(path)])
    with standard_output():
        if as_json:
            print(json.dumps([asdict(each) for each in found], ensure_ascii=False))
        else:
            table = make_table()
            table.add_column("dataset", overflow="fold")
            names = ("epoch", "rows", "once", "repeated", "skipped", "errors", "remaining")
            for name in names:
                table.add_column(name, justify="right")
            for each in found:
                numbers = (f"{getattr(each, name):,}" for name in names)
                table.add_row(Text(escape_text(each.dataset)), *map(Text, numbers))
            make_console().print(table)
    wrong = [escape_text(each.dataset) for each in found if not each.is_correct]
    if wrong:
        print_message(f"splitarrow: error: rows of {', '.join(wrong)} were delivered repeatedly")
    return 1 if wrong else 0


loader = Subcommands("Audit the checkpoints of a training loader.", {"audit": audit})
