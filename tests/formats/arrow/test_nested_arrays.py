from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from splitarrow.formats.arrow.nested_arrays import map_children, read_integers

NESTED = {
    name: array
    for name, array in make_arrays_of_all_types().items()
    if pa.types.is_nested(array.type) and not isinstance(array, pa.ExtensionArray)
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize(("start", "rows"), [(0, 9), (1, 2), (2, 0)])
def test_an_array_with_its_own_children_is_equal(name: str, start: int, rows: int) -> None:
    array = NESTED[name].slice(start, rows)
    mapped = map_children(array, array.type, lambda child, *_: child)
    mapped.validate(full=True)
    assert mapped.type == array.type
    assert mapped.to_pylist() == array.to_pylist()


def test_children_are_given_with_their_types_and_templates() -> None:
    calls: list[tuple[Any, ...]] = []

    def widen(*arguments: Any) -> Any:
        calls.append(arguments)
        return arguments[0].cast(arguments[1])

    array: Any = pa.array([{"a": 1, "b": 2}, None], pa.struct([("a", pa.int8()), ("b", pa.int8())]))
    wide = pa.struct([("a", pa.int16()), ("b", pa.int32())])
    template = pa.array([], wide)
    mapped = map_children(array, wide, widen, template)
    assert mapped.to_pylist() == array.to_pylist()
    assert [call[1] for call in calls] == [pa.int16(), pa.int32()]
    assert [call[2].type for call in calls] == [pa.int16(), pa.int32()]


def test_integers_are_those_of_the_slice() -> None:
    array = pa.array([5, 6, 7, 8], pa.int32())
    assert read_integers(array.slice(1, 2), 1, pa.int32()).to_pylist() == [6, 7]
    assert read_integers(array.slice(1, 0), 1, pa.int32()).to_pylist() == []
