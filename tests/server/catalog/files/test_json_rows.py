"""The types of the values of JSON Lines keep all of their digits."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.round_trips import read_ours

VALUES: dict[str, tuple[Any, Any]] = {
    "18446744073709551615": (pa.uint64(), 2**64 - 1),
    "18446744073709551616": (pa.decimal128(20, 0), Decimal(2**64)),
    "[null, null]": (pa.list_(pa.null()), [None, None]),
    "[1, 18446744073709551615]": (pa.list_(pa.uint64()), [1, 2**64 - 1]),
    '{"b": 12345678901234567.89}': (
        pa.struct([pa.field("b", pa.decimal128(19, 2))]),
        {"b": Decimal("12345678901234567.89")},
    ),
    '"Infinity"': (pa.string(), "Infinity"),
    "Infinity": (pa.float64(), float("inf")),
    '"2020-01-01 00:00:00"': (pa.string(), "2020-01-01 00:00:00"),
    "null": (pa.null(), None),
}


@pytest.mark.parametrize("text", VALUES)
def test_the_type_of_a_value_of_json_keeps_its_digits(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(f'{{"c": {text}}}\n')
    column = read_ours(tmp_path / "t.jsonl")["c"]
    assert (column.type, column[0].as_py()) == VALUES[text]
