"""Logical types: the annotations of columns, and the older ConvertedType ("Logical Types")."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from ...errors import InvalidDataError
from .thrift import Struct, Type, Value

UNITS = ("MILLIS", "MICROS", "NANOS")
"""The units of TIME and TIMESTAMP, by their field number in the union TimeUnit, from 1."""
EDGES = ("spherical", "vincenty", "thomas", "andoyer", "karney")
"""The algorithms that interpolate the edges of a GEOGRAPHY, by their number, from 0."""
_UNKNOWN_MARK = "unknown logical type"


class Kind(Enum):
    """The logical types. The value is the field number in the union LogicalType."""

    STRING = 1
    MAP = 2
    LIST = 3
    ENUM = 4
    DECIMAL = 5
    DATE = 6
    TIME = 7
    TIMESTAMP = 8
    INTERVAL = 9
    """A ConvertedType only: its number in the union is reserved."""
    INT = 10
    UNKNOWN = 11
    """A column of nulls."""
    JSON = 12
    BSON = 13
    UUID = 14
    FLOAT16 = 15
    VARIANT = 16
    GEOMETRY = 17
    GEOGRAPHY = 18
    FUTURE = -1
    """A logical type or a unit that this version does not know."""


class Converted(IntEnum):
    """The older annotations, as `ConvertedType` numbers them."""

    UTF8 = 0
    MAP = 1
    MAP_KEY_VALUE = 2
    LIST = 3
    ENUM = 4
    DECIMAL = 5
    DATE = 6
    TIME_MILLIS = 7
    TIME_MICROS = 8
    TIMESTAMP_MILLIS = 9
    TIMESTAMP_MICROS = 10
    UINT_8 = 11
    UINT_16 = 12
    UINT_32 = 13
    UINT_64 = 14
    INT_8 = 15
    INT_16 = 16
    INT_32 = 17
    INT_64 = 18
    JSON = 19
    BSON = 20
    INTERVAL = 21


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A logical type with its parameters.

    Examples
    --------
    >>> str(LogicalType(Kind.TIME, utc=False, unit="MICROS"))
    'TIME(isAdjustedToUTC=false, unit=MICROS)'
    """

    kind: Kind
    """The kind."""
    utc: bool = False
    """Whether a TIME or TIMESTAMP is adjusted to UTC (isAdjustedToUTC)."""
    unit: str = ""
    """The unit of a TIME or TIMESTAMP."""
    bits: int = 0
    """The width of an INT in bits."""
    signed: bool = True
    """Whether an INT has a sign."""
    precision: int = 0
    """The number of digits of a DECIMAL."""
    scale: int = 0
    """The number of digits of a DECIMAL after the point."""
    crs: str | None = None
    """The coordinate reference system of a GEOMETRY or GEOGRAPHY. None stands for OGC:CRS84."""
    edges: str | None = None
    """The algorithm of a GEOGRAPHY. None stands for spherical."""
    mark: str = ""
    """A description of a logical type that is not known."""

    def __str__(self) -> str:
        if self.kind is Kind.FUTURE:
            return self.mark
        if self.kind in (Kind.TIME, Kind.TIMESTAMP):
            utc = str(self.utc).lower()
            return f"{self.kind.name}(isAdjustedToUTC={utc}, unit={self.unit})"
        if self.kind is Kind.INT:
            return f"INT({self.bits}, {str(self.signed).lower()})"
        if self.kind is Kind.DECIMAL:
            return f"DECIMAL({self.precision}, {self.scale})"
        return self.kind.name


_UTC_TIMES = {
    Converted.TIME_MILLIS: LogicalType(Kind.TIME, utc=True, unit="MILLIS"),
    Converted.TIME_MICROS: LogicalType(Kind.TIME, utc=True, unit="MICROS"),
    Converted.TIMESTAMP_MILLIS: LogicalType(Kind.TIMESTAMP, utc=True, unit="MILLIS"),
    Converted.TIMESTAMP_MICROS: LogicalType(Kind.TIMESTAMP, utc=True, unit="MICROS"),
}
_SAME_NAMES = {
    Converted.UTF8: Kind.STRING,
    Converted.MAP: Kind.MAP,
    Converted.MAP_KEY_VALUE: Kind.MAP,
    Converted.LIST: Kind.LIST,
    Converted.ENUM: Kind.ENUM,
    Converted.DATE: Kind.DATE,
    Converted.JSON: Kind.JSON,
    Converted.BSON: Kind.BSON,
    Converted.INTERVAL: Kind.INTERVAL,
}
_TO_CONVERTED = {
    kind: converted
    for converted, kind in _SAME_NAMES.items()
    if converted is not Converted.MAP_KEY_VALUE
}


def parse_logical_type(union: Struct) -> LogicalType:
    """Return the logical type that a union LogicalType holds.

    Raises `InvalidDataError` if the union does not have exactly one member, or a parameter is
    missing or malformed.
    """
    if len(union) != 1:
        raise InvalidDataError(f"a logical type has {len(union)} members; expected one")
    ((number, value),) = union.items()
    parameters: Struct = value.content if value.type is Type.STRUCT else {}
    try:
        kind = Kind(number)
    except ValueError:
        kind = Kind.FUTURE
    if kind in (Kind.FUTURE, Kind.INTERVAL):
        return LogicalType(Kind.FUTURE, mark=f"{_UNKNOWN_MARK} {number}")
    if kind in (Kind.TIME, Kind.TIMESTAMP):
        return _parse_time(kind, parameters)
    if kind is Kind.DECIMAL:
        scale = _get_parameter(parameters, 1, int, "the scale of a DECIMAL")
        precision = _get_parameter(parameters, 2, int, "the precision of a DECIMAL")
        return LogicalType(kind, precision=precision, scale=scale)
    if kind is Kind.INT:
        bits = _get_parameter(parameters, 1, int, "the width of an INT")
        return LogicalType(
            kind, bits=bits, signed=_get_parameter(parameters, 2, bool, "the sign of an INT")
        )
    if kind in (Kind.GEOMETRY, Kind.GEOGRAPHY):
        return _parse_geospatial(kind, parameters)
    return LogicalType(kind)


def parse_converted_type(number: int, precision: int | None, scale: int | None) -> LogicalType:
    """Return the logical type that a ConvertedType stands for.

    Raises `InvalidDataError` if a DECIMAL has no precision.
    """
    try:
        converted = Converted(number)
    except ValueError:
        return LogicalType(Kind.FUTURE, mark=f"unknown converted type {number}")
    if converted in _UTC_TIMES:
        return _UTC_TIMES[converted]
    if converted is Converted.DECIMAL:
        if precision is None:
            raise InvalidDataError("a DECIMAL has no precision")
        return LogicalType(Kind.DECIMAL, precision=precision, scale=scale or 0)
    if converted in _SAME_NAMES:
        return LogicalType(_SAME_NAMES[converted])
    sign, bits = converted.name.split("_")
    return LogicalType(Kind.INT, bits=int(bits), signed=sign == "INT")


def find_converted_type(logical: LogicalType) -> Converted | None:
    """Return the ConvertedType to write for a logical type, or None if there is none.

    A local TIME or TIMESTAMP gets the one of UTC, as the specification demands for older readers.
    """
    if logical.kind in (Kind.TIME, Kind.TIMESTAMP):
        name = f"{logical.kind.name}_{logical.unit}"
        return Converted[name] if logical.unit in ("MILLIS", "MICROS") else None
    if logical.kind is Kind.DECIMAL:
        return Converted.DECIMAL
    if logical.kind is Kind.INT:
        return Converted[f"{'' if logical.signed else 'U'}INT_{logical.bits}"]
    return _TO_CONVERTED.get(logical.kind)


def encode_logical_type(logical: LogicalType) -> Struct | None:
    """Return the union LogicalType; None for INTERVAL, which has only a ConvertedType."""
    parameters: Struct = {}
    if logical.kind is Kind.INTERVAL:
        return None
    if logical.kind in (Kind.TIME, Kind.TIMESTAMP):
        unit: Struct = {UNITS.index(logical.unit) + 1: Value(Type.STRUCT, {})}
        parameters = {1: Value(Type.TRUE, logical.utc), 2: Value(Type.STRUCT, unit)}
    elif logical.kind is Kind.DECIMAL:
        parameters = {1: Value(Type.I32, logical.scale), 2: Value(Type.I32, logical.precision)}
    elif logical.kind is Kind.INT:
        parameters = {1: Value(Type.I8, logical.bits), 2: Value(Type.TRUE, logical.signed)}
    elif logical.kind in (Kind.GEOMETRY, Kind.GEOGRAPHY):
        if logical.crs is not None:
            parameters[1] = Value(Type.BINARY, logical.crs.encode())
        if logical.edges is not None:
            parameters[2] = Value(Type.I32, EDGES.index(logical.edges))
    elif logical.kind is Kind.VARIANT:
        parameters = {1: Value(Type.I8, 1)}
    return {logical.kind.value: Value(Type.STRUCT, parameters)}


def _parse_time(kind: Kind, parameters: Struct) -> LogicalType:
    utc = _get_parameter(parameters, 1, bool, f"isAdjustedToUTC of a {kind.name}")
    unit: Struct = _get_parameter(parameters, 2, dict, f"the unit of a {kind.name}")
    if len(unit) == 1 and 1 <= next(iter(unit)) <= len(UNITS):
        return LogicalType(kind, utc=utc, unit=UNITS[next(iter(unit)) - 1])
    numbers = ", ".join(map(str, sorted(unit))) or "missing"
    mark = f"{kind.name}(isAdjustedToUTC={str(utc).lower()}, unit={numbers})"
    return LogicalType(Kind.FUTURE, mark=mark)


def _parse_geospatial(kind: Kind, parameters: Struct) -> LogicalType:
    crs = edges = None
    if 1 in parameters:
        data: bytes = _get_parameter(parameters, 1, bytes, f"the CRS of a {kind.name}")
        try:
            crs = data.decode()
        except UnicodeDecodeError:
            raise InvalidDataError(f"the CRS of a {kind.name} is not UTF-8") from None
    if kind is Kind.GEOGRAPHY and 2 in parameters:
        number = _get_parameter(parameters, 2, int, "the algorithm of a GEOGRAPHY")
        if not 0 <= number < len(EDGES):
            return LogicalType(Kind.FUTURE, mark=f"GEOGRAPHY(algorithm={number})")
        edges = EDGES[number]
    return LogicalType(kind, crs=crs, edges=edges)


def _get_parameter(parameters: Struct, number: int, kind: type, name: str) -> Any:
    value = parameters.get(number)
    if value is None or type(value.content) is not kind:
        raise InvalidDataError(f"{name} is missing or malformed")
    return value.content
