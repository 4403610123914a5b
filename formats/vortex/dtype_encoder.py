"""The FlatBuffer of a dtype."""

from __future__ import annotations

from typing import Any

import flatbuffers

from .dtype import DType, TypeKind

_Field = tuple[str, Any]
"""The type of a field, as the builder names it, and its value."""


def encode_dtype(dtype: DType) -> bytes:
    """Return the body of a DTypeMessage.

    Raises
    ------
    ValueError
        If the dtype is a union, whose type IDs a `DType` does not have.

    Examples
    --------
    >>> from splitarrow.formats.vortex.dtype import PType, read_dtype
    >>> dtype = DType(TypeKind.PRIMITIVE, True, PType.I64)
    >>> read_dtype(encode_dtype(dtype)) == dtype
    True
    """
    builder: Any = flatbuffers.Builder(256)
    builder.Finish(_write(builder, dtype))
    return bytes(builder.Output())


def _write(builder: Any, dtype: DType) -> int:
    table = _write_table(builder, _list_fields(builder, dtype))
    return _write_table(builder, [("Uint8", int(dtype.kind)), ("UOffsetTRelative", table)])


def _list_fields(builder: Any, dtype: DType) -> list[_Field]:
    """Return the fields of the table of a type, in the order of the schema."""
    children = [_write(builder, child) for child in dtype.children]
    references: list[_Field] = [("UOffsetTRelative", child) for child in children]
    nullable: _Field = ("Bool", dtype.nullable)
    match dtype.kind:
        case TypeKind.NULL:
            return []
        case TypeKind.PRIMITIVE:
            return [("Uint8", int(dtype.ptype or 0)), nullable]
        case TypeKind.DECIMAL:
            return [("Uint8", dtype.precision), ("Int8", dtype.scale), nullable]
        case TypeKind.STRUCT:
            names = [builder.CreateString(name) for name in dtype.names]
            vectors = [_write_vector(builder, names), _write_vector(builder, children)]
            return [*(("UOffsetTRelative", vector) for vector in vectors), nullable]
        case TypeKind.FIXED_SIZE_LIST:
            return [*references, ("Uint32", dtype.size), nullable]
        case TypeKind.EXTENSION:
            name = builder.CreateString(dtype.id)
            metadata = builder.CreateByteVector(dtype.metadata)
            return [
                ("UOffsetTRelative", name),
                *references,
                ("UOffsetTRelative", metadata),
            ]
        case TypeKind.MAP:
            # Whether the keys are sorted is no property of a `DType`.
            return [*references, ("Bool", False), nullable]
        case TypeKind.UNION:
            raise ValueError("a dtype of unions cannot be encoded")
        case _:
            return [*references, nullable]


def _write_table(builder: Any, fields: list[_Field]) -> int:
    builder.StartObject(len(fields))
    for slot, (kind, value) in enumerate(fields):
        getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
    return builder.EndObject()


def _write_vector(builder: Any, references: list[int]) -> int:
    builder.StartVector(4, len(references), 4)
    for reference in reversed(references):
        builder.PrependUOffsetTRelative(reference)
    return builder.EndVector()
