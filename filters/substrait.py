"""Filters of other clients: Substrait extended expressions.

Such an expression refers to fields by number, in a schema of its own. That schema names its fields,
and the names connect it to the columns of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import UInt64Value

from ..errors import InvalidDataError
from ..proto.SubstraitFilter_pb2 import ExtendedExpression
from .binding import FLOAT_FUNCTIONS
from .literals import kind_of
from .tree import DAY, MAX_DEPTH, Call, Cast, Column, Instant, Literal, combine, make_decimal

_FUNCTIONS: Final = {
    "equal": "=",
    "not_equal": "<>",
    "lt": "<",
    "lte": "<=",
    "gt": ">",
    "gte": ">=",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "not": "not",
    "is_null": "is null",
    "is_nan": "isnan",
    "is_true": "is true",
    "is_false": "is false",
    "like": "like",
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "contains": "contains",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "divide",
    "negate": "negate",
    "abs": "abs",
    "coalesce": "coalesce",
    **{name: name for name in FLOAT_FUNCTIONS},
}
_TYPES: Final[dict[str, Any]] = {
    "bool": pa.bool_(),
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "fp32": pa.float32(),
    "fp64": pa.float64(),
    "string": pa.string(),
    "fixed_char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us"),
    "timestamp_tz": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "fp16": pa.float16(),
}
_UNITS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_MAX_NAMES: Final = 100_000


def decode_substrait(data: bytes) -> Any:
    """Return the tree of an extended expression with one condition.

    Raises `InvalidDataError` if it is malformed, or has a part that filters lack.
    """
    try:
        message = ExtendedExpression.FromString(data)
    except DecodeError:
        message = None
    if message is None or not message.referred_expr:
        raise InvalidDataError("the filter is not a Substrait extended expression")
    count = len(message.referred_expr)
    if count != 1:
        raise InvalidDataError(f"the filter has {count} expressions; expected one")
    return _Reader(message).read(message.referred_expr[0].expression, 0)


class _Reader:
    """Reads the parts of a message."""

    def __init__(self, message: Any) -> None:
        declared = list(message.extensions)
        # A declaration of the other kind has an empty name.
        functions = [each.extension_function for each in declared if each.extension_function.name]
        types = [each.extension_type for each in declared if each.extension_type.name]
        self._functions = {each.function_anchor: each.name.partition(":")[0] for each in functions}
        self._types = {each.type_anchor: each.name for each in types}
        names = iter(message.base_schema.names[:_MAX_NAMES])
        self._fields = [*self._name_fields(message.base_schema.struct, names)]
        # A schema without types has only top-level columns.
        self._fields += [(name, None, []) for name in names]

    def _name_fields(self, struct: Any, names: Iterator[str]) -> Iterator[tuple[str, Any, Any]]:
        """Yield the name, the type and the fields of each field. Names are listed depth first."""
        for each in struct.types:
            name = next(names, None)
            if name is None:
                return
            yield name, self._find_number_type(each), self._name_children(each, names)

    def _name_children(self, data_type: Any, names: Iterator[str]) -> list[Any]:
        match data_type.WhichOneof("kind"):
            case "struct":
                return [*self._name_fields(data_type.struct, names)]
            case "list":
                self._name_children(data_type.list.type, names)
            case "map":
                self._name_children(data_type.map.key, names)
                self._name_children(data_type.map.value, names)
            case _:
                pass
        return []

    def _find_number_type(self, data_type: Any) -> Any:
        """Return the type of a column of numbers. What is computed from it depends on it."""
        name = data_type.WhichOneof("kind")
        if name == "user_defined":
            name = self._types.get(data_type.user_defined.type_reference, "")
        found: Any = _TYPES.get(name or "")
        return found if found is not None and kind_of(found) in ("integer", "float") else None

    def read(self, node: Any, depth: int) -> Any:
        """Return the tree of an expression."""
        if depth > MAX_DEPTH:
            raise InvalidDataError(f"the filter is nested deeper than {MAX_DEPTH}")
        depth += 1
        match node.WhichOneof("rex_type"):
            case "literal":
                return Literal(self._read_literal(node.literal))
            case "selection":
                return self._read_column(node.selection.direct_reference)
            case "scalar_function":
                return self._read_function(node.scalar_function, depth)
            case "singular_or_list":
                parts = [node.singular_or_list.value, *node.singular_or_list.options]
                return Call("in", tuple(self.read(each, depth) for each in parts))
            case "if_then":
                result = self.read(getattr(node.if_then, "else"), depth)
                for clause in reversed(node.if_then.ifs):
                    condition = Call("is true", (self.read(getattr(clause, "if"), depth),))
                    result = Call("if_else", (condition, self.read(clause.then, depth), result))
                return result
            case "cast":
                target = self._read_type(node.cast.type)
                return Cast(self.read(node.cast.input, depth), target, safe=False)
            case _:
                raise InvalidDataError("the filter has a kind of expression that filters lack")

    def _read_column(self, segment: Any) -> Any:
        fields, names = self._fields, list[str]()
        expected: Any = None
        while segment.HasField("struct_field"):
            number = segment.struct_field.field
            if not 0 <= number < len(fields):
                raise InvalidDataError(f"the filter refers to the field {number}, which it lacks")
            name, expected, fields = fields[number]
            names.append(name)
            segment = segment.struct_field.child
        if not names:
            raise InvalidDataError("the filter has a reference that is not a field")
        column = Column(".".join(names))
        return column if expected is None else Cast(column, expected)

    def _read_function(self, call: Any, depth: int) -> Any:
        name = self._functions.get(call.function_reference, "")
        arguments = [self.read(each.value, depth) for each in call.arguments]
        options = {each.name: list(each.preference) for each in call.options}
        if "CASE_INSENSITIVE" in options.get("case_sensitivity", ()):
            raise InvalidDataError(f"the filter calls {name!r} without regard to case")
        if name == "is_not_null":
            return Call("not", (Call("is null", tuple(arguments)),))
        function = _FUNCTIONS.get(name)
        if function is None:
            raise InvalidDataError(
                f"the filter calls {name!r}, which is not a standard Substrait function that "
                "filters have"
            )
        if function in ("and", "or") and arguments:
            return combine(function, arguments)
        return Call(function, tuple(arguments))

    def _read_type(self, data_type: Any) -> Any:
        name: str = data_type.WhichOneof("kind") or ""
        match name:
            case "decimal":
                precision, scale = data_type.decimal.precision, data_type.decimal.scale
                make: Any = pa.decimal128 if precision <= 38 else pa.decimal256
                return self._make_type(make, precision, scale)
            case "fixed_binary":
                return self._make_type(pa.binary, data_type.fixed_binary.size)
            case "precision_timestamp" | "precision_timestamp_tz":
                unit = _UNITS.get(getattr(data_type, name).size)
                zone = "UTC" if name.endswith("tz") else None
                return self._make_type(pa.timestamp, unit, zone)
            case "user_defined":
                name = self._types.get(data_type.user_defined.type_reference, "")
            case _:
                pass
        if name not in _TYPES:
            raise InvalidDataError(f"the filter converts to the type {name!r}, which filters lack")
        return _TYPES[name]

    def _make_type(self, make: Any, *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidDataError(f"the filter has an invalid type: {error}") from None

    def _read_literal(self, literal: Any) -> Any:
        name = literal.WhichOneof("literal_type")
        value: Any = None if name is None else getattr(literal, name)
        match name:
            case "null":
                return None
            case "fp32" | "fp64":
                return float(value)
            case "boolean" | "i8" | "i16" | "i32" | "i64" | "string" | "binary":
                return value
            case "fixed_char" | "fixed_binary":
                return value
            case "var_char":
                return value.value
            case "decimal":
                number = int.from_bytes(value.value, "little", signed=True)
                return make_decimal(number, value.scale)
            case "date":
                return Instant("date", value * DAY)
            case "timestamp" | "timestamp_tz" | "time":
                kind = "timestamptz" if name == "timestamp_tz" else name
                return Instant(kind, value * 1000)
            case "precision_timestamp" | "precision_timestamp_tz" | "precision_time":
                kind = name.removeprefix("precision_").replace("_tz", "tz")
                if not 0 <= value.precision <= 9:
                    raise InvalidDataError(f"the filter has the precision {value.precision}")
                return Instant(kind, value.value * 10 ** (9 - value.precision))
            case "uuid" if len(value) == 16:
                return str(UUID(bytes=value))
            case "user_defined" if value.value.type_url.endswith("google.protobuf.UInt64Value"):
                return self._read_unsigned(value.value.value)
            case _:
                raise InvalidDataError(f"the filter has a literal of the type {name}")

    def _read_unsigned(self, data: bytes) -> int:
        try:
            return UInt64Value.FromString(data).value
        except DecodeError:
            raise InvalidDataError("the filter has a malformed literal") from None
