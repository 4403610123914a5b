"""The logical type of Vortex arrays, written, and read from bytes that may be malformed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import flatbuffers

from ...errors import InvalidDataError, LimitError
from ...fbs import vortex_generated as fbs
from ..flatbuffer import (
    PARSE_ERRORS,
    Bytes,
    find_table,
    find_vector,
    follow,
    read_byte,
    read_int32,
    read_root,
    read_string,
    write_references,
)
from .message import DEFAULT_LIMITS, VortexLimits

_U32_MAX = 0xFFFFFFFF
_TYPE_TYPE, _TYPE = 4, 6
_MAX_PRECISION = 76


class TypeKind(IntEnum):
    """The kind of a logical type."""

    NULL = fbs.Type.Null
    BOOL = fbs.Type.Bool
    PRIMITIVE = fbs.Type.Primitive
    DECIMAL = fbs.Type.Decimal
    UTF8 = fbs.Type.Utf8
    BINARY = fbs.Type.Binary
    STRUCT = fbs.Type.Struct_
    LIST = fbs.Type.List
    EXTENSION = fbs.Type.Extension
    FIXED_SIZE_LIST = fbs.Type.FixedSizeList
    VARIANT = fbs.Type.Variant
    UNION = fbs.Type.Union
    MAP = fbs.Type.Map


class PType(IntEnum):
    """The type of a number."""

    U8 = fbs.PType.U8
    U16 = fbs.PType.U16
    U32 = fbs.PType.U32
    U64 = fbs.PType.U64
    I8 = fbs.PType.I8
    I16 = fbs.PType.I16
    I32 = fbs.PType.I32
    I64 = fbs.PType.I64
    F16 = fbs.PType.F16
    F32 = fbs.PType.F32
    F64 = fbs.PType.F64

    @property
    def nbytes(self) -> int:
        """The size of a value in bytes."""
        return _PTYPE_BYTES[self]


_PTYPE_BYTES = (1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8)


class DType(NamedTuple):
    """A logical type."""

    kind: TypeKind
    """The kind of the type."""
    nullable: bool = False
    """Whether values may be null. An extension has that of its storage."""
    ptype: PType | None = None
    """The type of numbers."""
    precision: int = 0
    """The number of digits of decimals."""
    scale: int = 0
    """The number of digits of decimals after the point."""
    names: tuple[str, ...] = ()
    """The names of the fields of a struct or a union."""
    children: tuple[DType, ...] = ()
    """The types of the fields, the elements, the key and value, or the storage of an extension."""
    size: int = 0
    """The number of elements of a list of fixed size."""
    id: str = ""
    """The identifier of an extension."""
    metadata: bytes = b""
    """The parameters of an extension."""

    def __str__(self) -> str:
        is_optional = self.nullable and self.kind is not TypeKind.NULL
        return f"{self._describe()}{'?' * is_optional}"

    def _describe(self) -> str:
        match self.kind:
            case TypeKind.PRIMITIVE if self.ptype is not None:
                return self.ptype.name.lower()
            case TypeKind.DECIMAL:
                return f"decimal({self.precision},{self.scale})"
            case TypeKind.STRUCT | TypeKind.UNION:
                fields = zip(self.names, self.children, strict=True)
                return "{" + ", ".join(f"{name}={dtype}" for name, dtype in fields) + "}"
            case TypeKind.LIST:
                return f"list({self.children[0]})"
            case TypeKind.FIXED_SIZE_LIST:
                return f"fixed_size_list({self.children[0]})[{self.size}]"
            case TypeKind.MAP:
                return f"map({self.children[0]}, {self.children[1]})"
            case TypeKind.EXTENSION:
                return f"{self.id}({self.children[0]})"
            case _:
                return self.kind.name.lower()

    def count_row_bits(self) -> int:
        """Return the smallest size of a decoded row in Arrow, in bits.

        Lists and strings count with their views or offsets alone.
        """
        match self.kind:
            case TypeKind.NULL:
                return 0
            case TypeKind.BOOL:
                return 1
            case TypeKind.PRIMITIVE:
                return 8 * (self.ptype or PType.U8).nbytes
            case TypeKind.DECIMAL:
                return 128 if self.precision <= 38 else 256
            case TypeKind.UTF8 | TypeKind.BINARY:
                return 128
            case TypeKind.LIST | TypeKind.MAP:
                return 32
            case TypeKind.FIXED_SIZE_LIST:
                return self.size * self.children[0].count_row_bits()
            case _:
                return sum(child.count_row_bits() for child in self.children)


def read_dtype(body: Bytes, limits: VortexLimits = DEFAULT_LIMITS) -> DType:
    """Read and check the body of a DTypeMessage.

    Raises `InvalidDataError`, which names the field, or `LimitError`.
    """
    if len(body) > limits.metadata_bytes:
        raise LimitError(f"the dtype has {len(body)} bytes; the limit is {limits.metadata_bytes}")
    try:
        return _DTypeReader(body, limits).read(read_root(body), 1)
    except PARSE_ERRORS:
        raise InvalidDataError(
            "the dtype is malformed: it is not the FlatBuffer of a type"
        ) from None
    except UnicodeDecodeError:
        raise InvalidDataError("a name in the dtype is not valid UTF-8") from None


class _DTypeReader:
    """Reads one dtype, with a budget for its types and its names."""

    def __init__(self, data: Bytes, limits: VortexLimits) -> None:
        self._data = data
        self._limits = limits
        self._types = limits.nodes
        # References to one long name would otherwise multiply it.
        self._text_bytes = len(data)

    def read(self, table: int, depth: int) -> DType:
        data, limits = self._data, self._limits
        self._types -= 1
        if depth > limits.nesting:
            raise LimitError(f"the dtype nests more than {limits.nesting} levels of types")
        if self._types < 0:
            raise LimitError(f"the dtype has more than {limits.nodes} types")
        number = read_byte(data, table, _TYPE_TYPE)
        try:
            kind = TypeKind(number)
        except ValueError:
            raise InvalidDataError(
                f"the field type_type of a dtype is {number}; expected 1 to {max(TypeKind)}"
            ) from None
        at = find_table(data, table, _TYPE)
        if not at:
            raise InvalidDataError(f"the field type of a dtype is missing ({kind.name})")
        return self._read_kind(kind, at, depth)

    def _read_kind(self, kind: TypeKind, at: int, depth: int) -> DType:
        data = self._data
        match kind:
            case TypeKind.NULL:
                read_byte(data, at, 4)
                return DType(kind, True)
            case TypeKind.PRIMITIVE:
                number = read_byte(data, at, 4)
                if number > max(PType):
                    raise InvalidDataError(
                        f"the field ptype of a dtype is {number}; expected 0 to {max(PType)}"
                    )
                return DType(kind, self._read_flag(at, 6), PType(number))
            case TypeKind.DECIMAL:
                return self._read_decimal(at)
            case TypeKind.STRUCT | TypeKind.UNION:
                return self._read_struct(kind, at, depth)
            case TypeKind.LIST:
                return DType(kind, self._read_flag(at, 6), children=(self._child(at, 4, depth),))
            case TypeKind.FIXED_SIZE_LIST:
                size = read_int32(data, at, 6) & _U32_MAX
                child = (self._child(at, 4, depth),)
                return DType(kind, self._read_flag(at, 8), children=child, size=size)
            case TypeKind.MAP:
                children = (self._child(at, 4, depth), self._child(at, 6, depth))
                return DType(kind, self._read_flag(at, 10), children=children)
            case TypeKind.EXTENSION:
                storage = self._child(at, 6, depth)
                return DType(
                    kind,
                    storage.nullable,
                    children=(storage,),
                    id=self._decode(read_string(data, at, 4)),
                    metadata=read_string(data, at, 8) or b"",
                )
            case _:
                return DType(kind, self._read_flag(at, 4))

    def _read_decimal(self, at: int) -> DType:
        precision, scale = read_byte(self._data, at, 4), read_byte(self._data, at, 6)
        if not 1 <= precision <= _MAX_PRECISION:
            raise InvalidDataError(
                f"the field precision of a dtype is {precision}; expected 1 to {_MAX_PRECISION}"
            )
        scale -= (scale & 128) << 1
        nullable = self._read_flag(at, 8)
        return DType(TypeKind.DECIMAL, nullable, precision=precision, scale=scale)

    def _read_struct(self, kind: TypeKind, at: int, depth: int) -> DType:
        data = self._data
        names_at, names = find_vector(data, at, 4, 4)
        types_at, types = find_vector(data, at, 6, 4)
        if names != types:
            raise InvalidDataError(f"a dtype has {names} names of fields and {types} types")
        if types > self._types:
            raise LimitError(f"the dtype has more than {self._limits.nodes} types")
        texts: list[str] = []
        for index in range(names):
            begin = follow(data, names_at + 4 * index)
            length = int.from_bytes(data[begin : begin + 4], "little")
            if begin + 4 + length > len(data):
                raise IndexError
            texts.append(self._decode(bytes(data[begin + 4 : begin + 4 + length])))
        children = tuple(
            self.read(follow(data, types_at + 4 * index), depth + 1) for index in range(types)
        )
        nullable = kind is TypeKind.STRUCT and self._read_flag(at, 8)
        return DType(kind, nullable, names=tuple(texts), children=children)

    def _child(self, at: int, slot: int, depth: int) -> DType:
        child = find_table(self._data, at, slot)
        if not child:
            raise InvalidDataError("a nested dtype is missing")
        return self.read(child, depth + 1)

    def _read_flag(self, at: int, slot: int) -> bool:
        return bool(read_byte(self._data, at, slot))

    def _decode(self, text: bytes | None) -> str:
        self._text_bytes -= len(text or b"")
        if self._text_bytes < 0:
            raise IndexError
        return (text or b"").decode()


_Field = tuple[str, Any]
"""The type of a field, as the builder names it, and its value."""


def encode_dtype(dtype: DType) -> bytes:
    """Return the body of a DTypeMessage; not of a union, whose type IDs a `DType` does not have.

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
            vectors = [write_references(builder, names), write_references(builder, children)]
            return [*(("UOffsetTRelative", vector) for vector in vectors), nullable]
        case TypeKind.FIXED_SIZE_LIST:
            return [*references, ("Uint32", dtype.size), nullable]
        case TypeKind.EXTENSION:
            name = builder.CreateString(dtype.id)
            metadata = builder.CreateByteVector(dtype.metadata)
            return [("UOffsetTRelative", name), *references, ("UOffsetTRelative", metadata)]
        case TypeKind.MAP:
            # A `DType` does not record whether the keys are sorted.
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
