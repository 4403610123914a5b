"""The table of types and comparisons in docs/guide/filters.md is what the code does.

``python tests/docs/test_filters_page.py`` writes it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from splitarrow.errors import UsageError
from splitarrow.filters.binding import bind
from splitarrow.filters.tree import Call, Column, Literal, make_literal

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "filters.md"
BEGIN = "<!-- begin comparisons: python tests/docs/test_filters_page.py -->\n"
END = "<!-- end comparisons -->"

TYPES: dict[str, Any] = {
    "`bool`": pa.bool_(),
    "integers": pa.uint64(),
    "`decimal32` to `decimal256`": pa.decimal128(9, 2),
    "`halffloat`, `float`, `double`": pa.float32(),
    "`string`, `large_string`, `string_view`": pa.string_view(),
    "`binary`, `large_binary`, `binary_view`, `fixed_size_binary`": pa.binary(16),
    "`uuid`": pa.uuid(),
    "`date32`, `date64`": pa.date32(),
    "`timestamp`, with and without a time zone": pa.timestamp("ns", "UTC"),
    "`time32`, `time64`": pa.time32("s"),
    "`duration`": pa.duration("ms"),
    "`null`": pa.null(),
    "`month_day_nano_interval`": pa.month_day_nano_interval(),
    "lists, maps, structs, unions": pa.list_(pa.int8()),
}
GROUPS = {
    "all numbers": ["integers", "`decimal32` to `decimal256`", "`halffloat`, `float`, `double`"],
    "dates and timestamps": ["`date32`, `date64`", "`timestamp`, with and without a time zone"],
}
"""The names of several rows together."""
LITERALS: dict[str, list[Any]] = {
    "`true`": [True],
    "numbers": [1, -1, Decimal("0.5"), 10**30],
    "texts of numbers": ["12"],
    "other texts": ["AA"],
    "texts of UUIDs, `uuid.UUID`": [UUID(int=1)],
    "bytes": [b"\0" * 16],
    "`DATE`, `date`": [date(2026, 1, 5)],
    "`TIMESTAMP`, `datetime`": [datetime(2026, 1, 5), datetime(2026, 1, 5, tzinfo=UTC)],
    "texts of dates": ["2026-01-05", "2026-01-05 12:00+01:00"],
    "`TIME`, `time`": [time(12)],
    "texts of times": ["12:30"],
    "`INTERVAL`, `timedelta`": [timedelta(hours=1)],
}


def binds(tree: Any, **types: Any) -> bool:
    schema = pa.schema(list(types.items()))
    try:
        bind(tree, schema)
    except UsageError:
        return False
    return True


def make_cells(name: str, data_type: Any) -> tuple[str, ...]:
    """Return the literals, the columns and the functions that a type can be compared with."""
    column = Column("a")
    literals = [
        label
        for label, values in LITERALS.items()
        if all(binds(Call("<", (column, make_literal(v))), a=data_type) for v in values)
    ]
    columns = [
        other
        for other, other_type in TYPES.items()
        if binds(Call("=", (column, Column("b"))), a=data_type, b=other_type)
    ]
    functions = {
        "`LIKE`": Call("like", (column, Literal("a%"))),
        "arithmetic": Call("<", (Call("*", (column, Literal(2))), Literal(5))),
        "`isnan`": Call("isnan", (column,)),
        "alone as a condition": column,
    }
    others = [label for label, tree in functions.items() if binds(tree, a=data_type)]
    if data_type == pa.null():  # null compared with anything is null
        literals, columns, others = ["anything: the result is null"], ["all"], []
    texts = [label for label in LITERALS if "texts" in label]
    if set(texts) <= set(literals):
        literals = ["texts", *(each for each in literals if each not in texts)]
    columns = [each for each in columns if each != "`null`"]
    if columns == [name]:
        columns = ["the same"]
    elif columns in GROUPS.values():
        columns = [label for label, members in GROUPS.items() if members == columns]
    return tuple(
        each or "–" for each in (", ".join(literals), "; ".join(columns), ", ".join(others))
    )


def make_table() -> str:
    cells = {name: make_cells(name, data_type) for name, data_type in TYPES.items()}
    rows: list[str] = []
    for outcome, names in groupby(TYPES, key=cells.__getitem__):
        rows.append(f"| {' | '.join(('; '.join(names), *outcome))} |\n")
    head = "| column | literals | columns of the types | also |\n| --- | --- | --- | --- |\n"
    return head + "".join(rows)


def replace_table(text: str) -> str:
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + make_table() + END + rest.partition(END)[2]


def test_the_table_is_what_the_code_does() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    assert replace_table(text) == text, "run: python tests/docs/test_filters_page.py"


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text()))
