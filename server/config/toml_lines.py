"""The lines of a TOML file at which its values are set, for error messages."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, cast


def find_line(text: str, path: Sequence[str]) -> int | None:
    r"""Return the number of the line that sets a value, or None if no line does.

    The standard parser reports no positions. So this parses ever longer beginnings of the file:
    the statement that sets the value is the last one of the first beginning that has it.

    Parameters
    ----------
    text : str
        The contents of the file.
    path : sequence of str
        The keys that lead to the value, from the outermost table inwards.

    Examples
    --------
    >>> find_line('workers = 2\n\n[datasets]\ntrips = "trips/"\n', ["datasets", "trips"])
    4
    """
    lines = text.splitlines()
    start = 0
    for end in range(1, len(lines) + 1):
        try:
            values = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # a statement of several lines is not complete
        if _has_value(values, path):
            statement = range(start, end)
            return 1 + next(at for at in statement if not _is_blank(lines[at]))
        start = end
    return None


def _has_value(values: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = cast("dict[str, Any]", values)[key]
    return True


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
