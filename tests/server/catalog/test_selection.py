"""Selections: requests are resolved against the schema, or refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from splitarrow.errors import InvalidRequestError, NotFoundError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.catalog.selection import Selection

SCHEMA = pa.schema(
    [("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8()), ("c", pa.int8())], metadata={"k": "v"}
)


def test_a_selection_is_resolved_against_the_schema() -> None:
    request = Request("x", columns=("c", "b"), limit=5)
    selection = Selection.resolve(request, Encoding("lz4", 100), SCHEMA)
    assert (selection.columns, selection.sorted_columns) == ((3, 1), [1, 3])
    assert selection.schema.equals(
        pa.schema([("c", pa.int8()), ("b", pa.int8())], metadata={"k": "v"}), check_metadata=True
    )
    assert (selection.limit, selection.batch_rows, selection.codec) == (5, 100, "lz4")
    own = Request("x", compression="none", batch_rows=7)
    selection = Selection.resolve(own, Encoding("lz4", 100), SCHEMA)
    assert (selection.columns, selection.batch_rows, selection.codec) == (None, 7, None)


@pytest.mark.parametrize(
    ("request_", "error", "reason"),
    [
        (Request("x", columns=("d",)), NotFoundError, "no column 'd'; there are 'a', 'b', 'c'"),
        (Request("x", columns=("A",)), NotFoundError, "no column 'A'; the nearest is 'a'"),
        (Request("x", columns=("a",)), InvalidRequestError, "'a' is ambiguous: 2 columns have it"),
        (Request("x", columns=("b", "b")), InvalidRequestError, "requested twice"),
        (Request("x", format="vortex"), InvalidRequestError, "in the format 'vortex'"),
    ],
)
def test_impossible_selections_are_refused(
    request_: Request, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason) as raised:
        Selection.resolve(request_, Encoding(), SCHEMA)
    assert raised.value.stream == "x"  # pyright: ignore[reportAttributeAccessIssue]
