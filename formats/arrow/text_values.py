"""The text of values, and the values of text, for formats that store text.

Numbers have as few digits as identify them. Dates, times and timestamps are those of ISO 8601 with
a space before the time; timestamps with a time zone are in UTC and end in ``Z``. A duration is
``PT1.5S``. Binary values are base64. `parse_values` returns what `format_values` was given.

Both look into extension types, dictionaries and runs. `json_values` adds nested types.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .data_types import is_text
from .truncation import pc

_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""The digits of the fractions of a second, by unit."""
_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The days from the year 1 to the year 9999, which pyarrow writes and reads."""
_NO_INSTANT = -(1 << 63)
"""A date or timestamp that NumPy does not have."""
_REFUSALS = (pa.ArrowException, ValueError, OverflowError, TypeError)
_DURATION = re.compile(r"PT(-?)([0-9]+)(?:\.([0-9]{1,9}))?S")


class ValueTextError(ValueError):
    """A value has no text, or a text is not a value of the type."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        """The position of the value in its column."""
        self.reason = reason
        """What is wrong with the value, for a message."""


def convert_column(convert: Callable[[Any], Any], values: Any) -> Any:
    """Return the result of a conversion; raise `ValueTextError` for the first value it refuses."""
    try:
        return convert(values)
    except _REFUSALS as error:
        refusal = error
    begin, end = 0, len(values)
    while begin < end:
        middle = (begin + end + 1) // 2
        try:
            convert(values[begin:middle])
            begin = middle
        except _REFUSALS as error:
            refusal = error
            end = middle if end - begin > 1 else begin
    raise ValueTextError(begin, str(refusal).partition("\n")[0])


def get_plain_type(data_type: Any) -> Any:
    """Return the type of the values of a dictionary, of runs or of an extension type.

    UUIDs and ``bool8`` have text of their own, and stay.
    """
    while True:
        if isinstance(data_type, (pa.DictionaryType, pa.RunEndEncodedType)):
            data_type = data_type.value_type
        elif _is_stored_plain(data_type):
            data_type = data_type.storage_type
        else:
            return data_type


def get_plain_values(array: Any) -> Any:
    """Return an array of the type that `get_plain_type` returns."""
    if _is_stored_plain(array.type):
        return get_plain_values(array.storage)
    if isinstance(array.type, pa.DictionaryType):
        values, indices = array.dictionary, array.indices
    elif isinstance(array.type, pa.RunEndEncodedType):
        import numpy as np

        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        values, indices = array.values, pa.array(runs)
    else:
        return array
    return get_plain_values(values).take(indices)


def _is_stored_plain(data_type: Any) -> bool:
    is_extension = isinstance(data_type, pa.BaseExtensionType)
    return is_extension and not isinstance(data_type, (pa.UuidType, pa.Bool8Type))


def is_quoted(data_type: Any) -> bool:
    """Return whether text is other than that of a number, a boolean, a date or a time."""
    plain = get_plain_type(data_type)
    types = pa.types
    is_bytes = types.is_fixed_size_binary(plain) or isinstance(plain, pa.UuidType)
    return is_text(plain) or is_bytes or types.is_duration(plain)


def format_values(array: Any) -> Any:
    """Return the text of each value that is not nested, as strings or large strings.

    Raises `ValueError` if a value has no text that `parse_values` reads.
    """
    array = get_plain_values(array)
    data_type = array.type
    types = pa.types
    if isinstance(data_type, pa.UuidType):
        return _map(array.storage, lambda value: str(uuid.UUID(bytes=value)))
    if isinstance(data_type, pa.Bool8Type):
        return array.storage.cast(pa.bool_()).cast(pa.string())
    if types.is_string(data_type) or types.is_large_string(data_type):
        return array
    if _is_binary(data_type):
        return _map(array, lambda value: base64.b64encode(value).decode())
    if types.is_floating(data_type):
        return _format_floats(array)
    if types.is_decimal(data_type):
        return _replace(array.cast(pa.string()), array, "E", lambda value: f"{value:f}")
    if types.is_date(data_type) or types.is_timestamp(data_type):
        return _format_instants(array)
    if types.is_time(data_type):
        return _format_times(array)
    if types.is_duration(data_type):
        digits = _UNITS[data_type.unit]
        return _map(array.view(pa.int64()), lambda value: _format_duration(value, digits))
    return array.cast(pa.string())


def parse_values(texts: Any, data_type: Any, parse: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return strings as values of a type. Nulls stay nulls.

    `parse` returns those of a plain type. Raises an exception if a text is not a value of the type;
    `convert_column` finds it.
    """
    if isinstance(data_type, pa.DictionaryType):
        encoded = texts.dictionary_encode()
        values = parse_values(encoded.dictionary, data_type.value_type, parse)
        indices = encoded.indices.cast(data_type.index_type)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=data_type.ordered)
    if isinstance(data_type, pa.RunEndEncodedType):
        values = parse_values(texts, data_type.value_type, parse)
        ends: Any = pa.array(range(1, len(values) + 1), data_type.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(ends, values, data_type)
    if _is_stored_plain(data_type):
        values = parse_values(texts, data_type.storage_type, parse)
        return pa.ExtensionArray.from_storage(data_type, values)
    return (parse or parse_plain)(texts, data_type)


def parse_plain(texts: Any, data_type: Any) -> Any:
    """Return strings as values of a type that `get_plain_type` returns."""
    types = pa.types
    if isinstance(data_type, pa.UuidType):
        values = _read_each(texts, lambda text: uuid.UUID(text).bytes, pa.binary(16))
        return pa.ExtensionArray.from_storage(data_type, values)
    if isinstance(data_type, pa.Bool8Type):
        values = texts.cast(pa.bool_()).cast(pa.int8())
        return pa.ExtensionArray.from_storage(data_type, values)
    if types.is_null(data_type):
        if texts.null_count < len(texts):
            raise ValueError("a value is not null")
        return pa.nulls(len(texts))
    if _is_binary(data_type):
        return _read_each(texts, lambda text: base64.b64decode(text, validate=True), data_type)
    if types.is_date(data_type) or types.is_timestamp(data_type):
        return _parse_instants(texts, data_type)
    if types.is_time(data_type):
        moments = pc.binary_join_element_wise("1970-01-01", texts, " ")
        return moments.cast(pa.timestamp(data_type.unit)).cast(data_type)
    if types.is_duration(data_type):
        digits = _UNITS[data_type.unit]
        read = _read_each(texts, lambda text: _parse_duration(text, digits), pa.int64())
        return read.view(data_type)
    values = texts.cast(data_type)
    if types.is_floating(data_type):
        written = texts.filter(pc.is_inf(values.cast(pa.float64())))
        if pc.all(pc.match_substring(written, "i", ignore_case=True)).as_py() is False:
            raise OverflowError("a number is too large")
    return values


def _is_binary(data_type: Any) -> bool:
    types = pa.types
    is_long = types.is_large_binary(data_type) or types.is_binary_view(data_type)
    return types.is_binary(data_type) or types.is_fixed_size_binary(data_type) or is_long


def _map(array: Any, function: Callable[[Any], str]) -> Any:
    """Return the text of each value by a function of Python's values."""
    values = array.to_pylist()
    return pa.array([None if value is None else function(value) for value in values], pa.string())


def _replace(texts: Any, array: Any, mark: str, function: Callable[[Any], str]) -> Any:
    """Return texts in which those with a mark are replaced by the result of a function."""
    marked = pc.fill_null(pc.match_substring(texts, mark), False)
    if not pc.any(marked).as_py():
        return texts
    return pc.replace_with_mask(texts, marked, _map(array.filter(marked), function))


def _format_floats(array: Any) -> Any:
    """Return the text of floats, with a fraction so that they are not integers."""
    texts = array.cast(pa.string())
    wide: Any = array.cast(pa.float32()) if pa.types.is_float16(array.type) else array
    if pc.any(pc.equal(pc.floor(wide), wide)).as_py():
        return pc.replace_substring_regex(texts, "^(-?[0-9]+)$", r"\1.0")
    return texts


def _format_instants(array: Any) -> Any:
    """Return the text of dates and timestamps, of all years."""
    import numpy as np

    data_type = array.type
    is_date = pa.types.is_date(data_type)
    unit: Any = "D" if is_date else data_type.unit
    integers = _count_days(array) if is_date else array.view(pa.int64())
    plain = _has_plain_year(integers, unit)
    usual = pc.if_else(plain, integers, None)
    if is_date:
        texts = usual.cast(pa.int32()).cast(pa.date32()).cast(pa.string())
    else:
        texts = usual.view(pa.timestamp(unit)).cast(pa.string())
    if pc.all(plain).as_py() is False:
        others = integers.filter(pc.invert(plain)).to_numpy()
        if (others == _NO_INSTANT).any():
            raise ValueError(f"the {data_type} {_NO_INSTANT} has no date")
        written = np.datetime_as_string(others.view(f"datetime64[{unit}]"), unit=unit)
        replacement = pa.array([text.replace("T", " ") for text in written.tolist()], pa.string())
        texts = pc.replace_with_mask(texts, pc.fill_null(pc.invert(plain), False), replacement)
    has_zone = not is_date and data_type.tz is not None
    return pc.binary_join_element_wise(texts, "Z", "") if has_zone else texts


def _has_plain_year(integers: Any, unit: str) -> Any:
    """Return whether the year of each date or timestamp has four digits."""
    if unit == "ns":  # it has no other years
        return pc.equal(integers, integers)
    scale = 1 if unit == "D" else _DAY * 10 ** _UNITS[unit]
    return pc.and_(
        pc.greater_equal(integers, _FIRST_DAY * scale),
        pc.less(integers, (_LAST_DAY + 1) * scale),
    )


def _count_days(array: Any) -> Any:
    """Return the days of dates since 1970."""
    if pa.types.is_date32(array.type):
        return array.view(pa.int32()).cast(pa.int64())
    integers = array.view(pa.int64())
    days = pc.divide(integers, _DAY * 1000)
    index = pc.index(pc.equal(pc.multiply(days, _DAY * 1000), integers), False).as_py()
    if index >= 0:
        raise ValueError(f"the date64 {integers[index]} ms is not a whole day")
    return days


def _format_times(array: Any) -> Any:
    data_type = array.type
    integers = array.view(pa.int32() if data_type.bit_width == 32 else pa.int64())
    end = _DAY * 10 ** _UNITS[data_type.unit]
    outside = pc.or_(pc.less(integers, 0), pc.greater_equal(integers, end))
    index = pc.index(outside, True).as_py()
    if index >= 0:
        raise ValueError(f"the {data_type} {integers[index]} is not a time of a day")
    return array.cast(pa.string())


def _format_duration(value: int, digits: int) -> str:
    whole, fraction = divmod(abs(value), 10**digits)
    rest = f".{fraction:0{digits}}".rstrip("0") if fraction else ""
    return f"PT{'-' if value < 0 else ''}{whole}{rest}S"


def _parse_duration(text: str, digits: int) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or len((match[3] or "").rstrip("0")) > digits:
        raise ValueError(text)
    value = int(match[2]) * 10**digits + int((match[3] or "").ljust(digits, "0")[:digits] or 0)
    return -value if match[1] else value


def _read_each(texts: Any, read: Callable[[str], Any], data_type: pa.DataType) -> Any:
    """Return the results of a function of each text."""
    values = [None if text is None else read(text) for text in texts.to_pylist()]
    return pa.array(values, data_type)


def _parse_instants(texts: Any, data_type: Any) -> Any:
    """Return dates and timestamps, of all years."""
    is_date64 = pa.types.is_date64(data_type)
    usual: Any = pa.date32() if is_date64 else data_type
    try:
        return texts.cast(usual).cast(data_type)
    except pa.ArrowException:
        return _parse_all_years(texts, data_type)


def _parse_all_years(texts: Any, data_type: Any) -> Any:
    """Return dates and timestamps, those of other than four digits as `_format_instants` has."""
    import numpy as np

    types = pa.types
    is_date = types.is_date(data_type)
    # pyarrow refuses the first second of nanoseconds, which is in 1677.
    odd = "0000-|1677-" if types.is_timestamp(data_type) and data_type.unit == "ns" else "0000-"
    plain = pc.fill_null(pc.match_substring_regex(texts, "^[0-9]{4}-"), True)
    plain = pc.and_not(plain, pc.fill_null(pc.match_substring_regex(texts, f"^({odd})"), False))
    usual = pc.if_else(plain, texts, None).cast(pa.date32() if is_date else data_type)
    width = pa.int32() if is_date else pa.int64()
    integers = usual.view(width).cast(pa.int64())
    others = texts.filter(pc.invert(plain))
    unit = "D" if is_date else data_type.unit
    written = [text.removesuffix("Z") for text in others.to_pylist()]
    parsed = np.array(written, f"datetime64[{unit}]").view("int64")
    numbers = pc.replace_with_mask(integers, pc.invert(plain), pa.array(parsed))
    if types.is_date64(data_type):
        numbers = pc.multiply_checked(numbers, _DAY * 1000)
    result = (numbers.cast(pa.int32()) if types.is_date32(data_type) else numbers).view(data_type)
    if not format_values(result).filter(pc.invert(plain)).equals(others):
        raise ValueError(data_type)
    return result
