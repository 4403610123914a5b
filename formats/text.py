"""Text for people: sizes such as ``64KiB``, descriptions of objects, and escaped characters.

A description has two lines, or is HTML for notebooks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from ..errors import UsageError

_SIZE = re.compile(r"(\d+) ?(?:([kmgt])(i?b?))?b?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DECIMAL_UNITS = ("kB", "MB", "GB", "TB", "PB")
_BINARY_UNITS = ("TiB", "GiB", "MiB", "KiB")


def escape_controls(text: str) -> str:
    r"""Return text with the characters escaped that could control a terminal or are invisible.

    >>> escape_controls("a\x1b[31m \u202e")
    'a\\x1b[31m \\u202e'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def parse_size(text: str) -> int:
    """Return a size in bytes.

    ``kB``, ``MB``, ``GB`` and ``TB`` are powers of 1000. ``K``, ``KiB`` and so on are powers of
    1024. Case does not matter. Raises `UsageError` if `text` is not a size.

    Examples
    --------
    >>> parse_size("64KiB"), parse_size("1 MB"), parse_size("2g"), parse_size("32")
    (65536, 1000000, 2147483648, 32)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not a size: give a number of bytes, or a unit as in 64KiB, 1MB or 2GiB"
        )
    number, prefix, unit = match.groups(default="")
    base = 1000 if unit.lower() == "b" else 1024
    return int(number) * base ** _EXPONENTS[prefix.lower()]


def format_size(nbytes: int) -> str:
    """Return a size that `parse_size` reads back, in the largest binary unit that divides it.

    Examples
    --------
    >>> format_size(10 << 30), format_size(1500)
    ('10GiB', '1500')
    """
    for exponent, unit in zip((4, 3, 2, 1), _BINARY_UNITS, strict=True):
        if nbytes and nbytes % 1024**exponent == 0:
            return f"{nbytes // 1024**exponent}{unit}"
    return str(nbytes)


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes with three digits and a decimal unit.

    Examples
    --------
    >>> format_bytes(999), format_bytes(12_345_678), format_bytes(1e9)
    ('999 B', '12.3 MB', '1.00 GB')
    """
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    value, exponent = nbytes / 1000, 0
    while value >= 999.5 and exponent < len(_DECIMAL_UNITS) - 1:
        value /= 1000
        exponent += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_DECIMAL_UNITS[exponent]}"


_MAX_COLUMNS = 6
_MAX_NAME = 40


def describe_object(title: str, schema: Any, facts: Sequence[str]) -> str:
    """Return two lines: the title with the facts, and the first columns.

    Examples
    --------
    >>> import pyarrow
    >>> schema = pyarrow.schema([("carrier", pyarrow.string()), ("delay", pyarrow.int16())])
    >>> print(describe_object("Stream 'flights'", schema, ["open", "tcp"]))
    <splitarrow.Stream 'flights': open, tcp>
      carrier: string, delay: int16
    """
    columns = [f"{_shorten(field.name)}: {field.type}" for field in list(schema)[:_MAX_COLUMNS]]
    if len(schema) > _MAX_COLUMNS:
        columns.append(f"… {len(schema) - _MAX_COLUMNS} more")
    return describe_lines(title, facts, ", ".join(columns) or "no columns")


def describe_lines(title: str, facts: Sequence[str], second_line: str) -> str:
    """Return two lines: the title with the facts, and another line."""
    return f"<splitarrow.{title}: {', '.join(facts)}>\n  {second_line}"


def format_count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> format_count(1, "row"), format_count(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe_rows(rows: int, *, ended: bool) -> str:
    """Return the number of rows that a stream has delivered.

    >>> describe_rows(1, ended=False), describe_rows(2000, ended=True)
    ('1 row so far', '2,000 rows')
    """
    return f"{format_count(rows, 'row')}{'' if ended else ' so far'}"


def describe_as_html(title: str, schema: Any, facts: Sequence[str]) -> str:
    """Return the title, the facts and a table of the columns as HTML."""
    rows = "".join(
        f"<tr><td>{escape(_shorten(field.name))}</td><td><code>{escape(str(field.type))}</code></td></tr>"
        for field in list(schema)[:_MAX_COLUMNS]
    )
    if len(schema) > _MAX_COLUMNS:
        rows += f"<tr><td colspan=2>… {len(schema) - _MAX_COLUMNS} more columns</td></tr>"
    heading = "<tr><th>column</th><th>type</th></tr>"
    return f"{html_title(title, facts)}<table>{heading}{rows}</table>"


def html_title(title: str, facts: Sequence[str]) -> str:
    """Return the title and the facts as HTML."""
    return f"<div><strong>{escape(title)}</strong>: {escape(', '.join(facts))}</div>"


def html_list(title: str, facts: Sequence[str], items: Sequence[str]) -> str:
    """Return the title, the facts and a list as HTML."""
    listed = "".join(f"<li><code>{escape(item)}</code></li>" for item in items)
    return f"{html_title(title, facts)}<ul>{listed}</ul>"


def html_lines(title: str, facts: Sequence[str], second_line: str) -> str:
    """Return the title, the facts and another line as HTML."""
    return f"{html_title(title, facts)}<p>{escape(second_line)}</p>"


def _shorten(name: str) -> str:
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 1]}…"
