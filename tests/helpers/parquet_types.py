"""One column of each logical type of Parquet, as docs/guide/parquet.md lists them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from splitarrow.formats.parquet.logical_types import Kind, LogicalType
from splitarrow.formats.parquet.schema import LENGTH, TYPE, Node, Physical, annotate
from splitarrow.formats.parquet.thrift import Type, Value

from .parquet_files import Edit, edit_schema, write_parquet

_DAY = pa.array([1], pa.int32())
_LONG = pa.array([1], pa.int64())
_BYTES = pa.array([b"x"])
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _kind(kind: Kind, **parameters: Any) -> Edit:
    return lambda element: annotate(element, LogicalType(kind, **parameters))


def _future(element: Any) -> Any:
    return element | {10: Value(Type.STRUCT, {99: Value(Type.STRUCT, {})})}


def _int96(element: Any) -> Any:
    kept = {number: value for number, value in element.items() if number != LENGTH}
    return kept | {TYPE: Value(Type.I32, int(Physical.INT96))}


def _keep(element: Any) -> Any:
    return element


def _decimal(precision: int) -> Edit:
    return _kind(Kind.DECIMAL, precision=precision, scale=2)


def list_columns() -> dict[str, tuple[Any, Edit]]:
    """Return an array and the edit of its schema element for each row of the table."""
    columns: dict[str, tuple[Any, Edit]] = {
        "BOOLEAN": (pa.array([True]), _keep),
        "FLOAT": (pa.array([1.5], pa.float32()), _keep),
        "DOUBLE": (pa.array([1.5]), _keep),
        "BYTE_ARRAY": (_BYTES, _keep),
        "FIXED_LEN_BYTE_ARRAY(4)": (pa.array([b"abcd"], pa.binary(4)), _keep),
        "INT96": (pa.array([bytes(8) + b"\x8c\x3d\x25\0"], pa.binary(12)), _int96),
        "STRING": (pa.array(["x"]), _keep),
        "ENUM": (_BYTES, _kind(Kind.ENUM)),
        "UUID": (pa.array([bytes(16)], pa.uuid()), _keep),
        "JSON": (pa.array(["{}"], pa.json_()), _keep),
        "BSON": (_BYTES, _kind(Kind.BSON)),
        "FLOAT16": (pa.array([1.5], pa.float16()), _keep),
        "UNKNOWN": (pa.nulls(1), _keep),
        "DATE": (pa.array([1], pa.date32()), _keep),
        "INTERVAL": (pa.array([bytes(12)], pa.binary(12)), _kind(Kind.INTERVAL)),
        "GEOMETRY": (pa.array([None], pa.binary()), _kind(Kind.GEOMETRY)),
        "GEOGRAPHY": (pa.array([None], pa.binary()), _kind(Kind.GEOGRAPHY)),
        "unknown logical type 99": (_LONG, _future),
        "DECIMAL(9, 2) on INT32": (_DAY, _decimal(9)),
        "DECIMAL(18, 2) on INT64": (_LONG, _decimal(18)),
        "DECIMAL(38, 2) on FIXED_LEN_BYTE_ARRAY(16)": (
            pa.array([bytes(16)], pa.binary(16)),
            _decimal(38),
        ),
        "DECIMAL(9, 2) on BYTE_ARRAY": (_BYTES, _decimal(9)),
        "DECIMAL(60, 2) on BYTE_ARRAY": (_BYTES, _decimal(60)),
        "DECIMAL(90, 2) on BYTE_ARRAY": (_BYTES, _decimal(90)),
    }
    for bits in (8, 16, 32, 64):
        columns[f"INT({bits}, true)"] = (pa.array([1], _SIGNED[bits]), _keep)
        columns[f"INT({bits}, false)"] = (pa.array([1], _UNSIGNED[bits]), _keep)
    for utc in (True, False):
        zone = "UTC" if utc else "local"
        for unit in ("MILLIS", "MICROS", "NANOS"):
            array = _DAY if unit == "MILLIS" else _LONG
            columns[f"TIME({unit}, {zone})"] = (array, _kind(Kind.TIME, utc=utc, unit=unit))
            columns[f"TIMESTAMP({unit}, {zone})"] = (
                _LONG,
                _kind(Kind.TIMESTAMP, utc=utc, unit=unit),
            )
    return columns


def write_columns() -> bytes:
    """Return a file with all columns, named by their rows of the table."""
    columns = list_columns()
    # Dots in a name would be a path.
    arrays = {name: array for name, (array, _) in columns.items()}
    file = write_parquet(pa.table(arrays), use_dictionary=False, write_statistics=False)
    return edit_schema(file, {name: edit for name, (_, edit) in columns.items()})


def describe(node: Node) -> str:
    """Return the text of a column in the table."""
    logical, physical = node.logical, node.physical
    assert physical is not None
    stored = physical.name
    if physical is Physical.FIXED_LEN_BYTE_ARRAY:
        stored = f"{stored}({node.length})"
    if logical is None:
        if physical in (Physical.INT32, Physical.INT64):
            return f"INT({physical.name[3:]}, true)"
        return stored
    if logical.kind in (Kind.TIME, Kind.TIMESTAMP):
        return f"{logical.kind.name}({logical.unit}, {'UTC' if logical.utc else 'local'})"
    if logical.kind is Kind.DECIMAL:
        return f"{logical} on {stored}"
    return str(logical)
