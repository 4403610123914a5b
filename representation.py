"""Representations of objects for people: two lines of text, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_MAX_COLUMNS = 6
_MAX_NAME = 40


def describe_object(title: str, schema: Any, facts: Sequence[str]) -> str:
    """Return two lines: the title with the facts, and the first columns.

    Parameters
    ----------
    title : str
        The type of the object and its name.
    schema : pyarrow.Schema
        The columns.
    facts : sequence of str
        Short descriptions.

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


def describe_rows(rows: int, *, ended: bool) -> str:
    """Return the number of rows that a stream has delivered.

    >>> describe_rows(1, ended=False), describe_rows(2000, ended=True)
    ('1 row so far', '2,000 rows')
    """
    return f"{rows:,} row{'' if rows == 1 else 's'}{'' if ended else ' so far'}"


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
