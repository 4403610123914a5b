"""The names of fields of structs: how they are resolved, and why they are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow import variant
from splitarrow.errors import UsageError
from splitarrow.formats.nested_fields import choose_fields, extract_field, select_schema

INTS = pa.struct([("x", pa.int8()), ("y.z", pa.int8()), ("y", pa.struct([("z", pa.int8())]))])
_FIELDS: Any = [
    ("st", pa.struct([("x", pa.int64()), ("l", pa.list_(pa.struct([("y", pa.int8())])))])),
    ("st.own", INTS),
    ("m", pa.map_(pa.string(), pa.struct([("z", pa.int8())]))),
    ("u", pa.struct([("union", pa.sparse_union([pa.field("v", pa.int8())]))])),
    ("twice", pa.struct([("x", pa.int8()), ("x", pa.int8())])),
    ("same", pa.struct([("x", pa.int8())])),
    ("same", pa.struct([("x", pa.int8())])),
    variant.field("v"),
]
SCHEMA = pa.schema(_FIELDS)


@pytest.mark.parametrize(
    ("name", "column", "steps"),
    [
        ("st.x", "st", ("x",)),
        ("st.l", "st", ("l",)),
        ("st.own.x", "st.own", ("x",)),
        ("st.own.y.z", "st.own", ("y.z",)),
        ("st.own.y", "st.own", ("y",)),
    ],
)
def test_the_longest_names_are_chosen(name: str, column: str, steps: tuple[str, ...]) -> None:
    field = choose_fields(SCHEMA, ["m", name, "absent"])[name]
    assert (field.column, field.steps) == (column, steps)
    assert select_schema(SCHEMA, [name, "m"]).names == [name, "m"]
    assert not choose_fields(SCHEMA, ["st", "st.own"])


def test_a_field_is_extracted_from_structs_without_the_other_fields() -> None:
    (field,) = choose_fields(SCHEMA, ["st.own.y"]).values()
    structs = [{"y": {"z": 1}}, None, {"y": None}, {"y": {"z": 2}}]
    column = pa.array(structs, pa.struct([("y", pa.struct([("z", pa.int8())]))]))
    assert extract_field(column, field).to_pylist() == [{"z": 1}, None, None, {"z": 2}]
    assert extract_field(column[1:], field).to_pylist() == [None, None, {"z": 2}]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("x.st", "; the columns are st, st.own, m, u, twice, same, same, v"),
        ("st.xx", ": 'st' has no field 'xx'; the columns are st.x, st.l"),
        ("st.own.y.q", ": 'st.own.y' has no field 'q'; the columns are st.own.y.z"),
        ("st.x.y", ": 'st.x' has the type int64, which has no fields"),
        ("st.l.y", ": a field inside of the list 'st.l' has no name; select 'st.l'"),
        ("m.z", ": a field inside of the map 'm' has no name; select 'm'"),
        ("u.union", ": values of the type sparse_union cannot be null by themselves; select 'u'"),
        ("v.metadata", ": 'v' is a Variant without the shredded field 'metadata'"),
        ("twice.x", ": 'twice' has 2 fields 'x'; the columns are twice.x, twice.x"),
        ("same.x", ": 2 columns are named 'same'"),
        ("same", ": 2 columns are named 'same'"),
        ("st.", ": 'st' has no field ''; the columns are st.x, st.l"),
        (f"st{'.x' * 101}", "; the columns are st, st.own, m, u, twice, same, same, v"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        select_schema(SCHEMA, ["st.x", name])
    assert raised.value.message == f"no column {name!r}{reason}"
