"""The types of the columns of CSV keep all of their digits."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.round_trips import read_ours

# Without a header, the only column is "c".
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "1\n\n3\n": (pa.int64(), [1, None, 3]),
    "1\r\n\r\n3\r\n": (pa.int64(), [1, None, 3]),
    '1\n""\n3\n': (pa.int64(), [1, None, 3]),
    "\n\n": (pa.null(), [None, None]),
    '""\n""\n': (pa.string(), ["", ""]),
    '"x\ny"\n"p""q"\n': (pa.string(), ["x\ny", 'p"q']),
    '"1"\n""\n\n': (pa.string(), ["1", "", None]),
    "5'10\"\n6'\n": (pa.string(), ["5'10\"", "6'"]),
    "x\0y\n": (pa.string(), ["x\0y"]),
    "01067\n1\n": (pa.string(), ["01067", "1"]),
    "+1\n": (pa.string(), ["+1"]),
    "-9223372036854775808\n": (pa.int64(), [-(2**63)]),
    "18446744073709551615\n1\n": (pa.uint64(), [2**64 - 1, 1]),
    "18446744073709551615\n-1\n": (pa.decimal128(20, 0), [Decimal(2**64 - 1), Decimal(-1)]),
    "9" * 77 + "\n": (pa.string(), ["9" * 77]),
    "NA\n1\n": (pa.int64(), [None, 1]),
    "NA\nx\n": (pa.string(), ["NA", "x"]),
    "0.1\n5e-324\n": (pa.float64(), [0.1, 5e-324]),
    "0.1\n1e400\n": (pa.string(), ["0.1", "1e400"]),
    "inf\n-inf\n1\n": (pa.float64(), [float("inf"), -float("inf"), 1.0]),
    "12345678901234567.89\n": (pa.decimal128(19, 2), [Decimal("12345678901234567.89")]),
    "true\nFalse\n": (pa.bool_(), [True, False]),
}


@pytest.mark.parametrize("text", COLUMNS)
def test_the_type_of_a_column_of_csv_keeps_its_digits(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfc\n" + text.encode())
    column = read_ours(tmp_path / "t.csv")["c"]
    assert (column.type, column.to_pylist()) == COLUMNS[text]
