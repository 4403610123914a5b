"""Conversions of arrays that pyarrow reads in the physical type of their column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidDataError
from .annotations import INTERVAL_BYTES
from .corrections import INT96_BYTES, ReadOptions

_DAY_MICROSECONDS = 86_400_000_000
_EPOCH_JULIAN_DAY = 2_440_588
_MAX_DAYS = (1 << 63) // _DAY_MICROSECONDS
_INT96 = np.dtype([("nanoseconds", "<i8"), ("day", "<i4")])
_INTERVAL = np.dtype([("months", "<u4"), ("days", "<u4"), ("milliseconds", "<u4")])
_MONTH_DAY_NANO = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_MAX_INT32 = (1 << 31) - 1


def validity_buffer(array: Any) -> pa.Buffer | None:
    """Return the validity bitmap of an array from its first value on; None if no value is null."""
    if not array.null_count:
        return None
    if not array.offset:
        return array.buffers()[0]
    return array.is_valid().buffers()[1]


def convert_int96(array: Any, path: str, options: ReadOptions) -> Any:
    """Return the timestamps of an INT96 column, in microseconds.

    Parameters
    ----------
    array : pyarrow.FixedSizeBinaryArray
        The values: the nanoseconds of the day and the Julian day.
    path : str
        The column, for errors.
    options : ReadOptions
        Whether digits below a microsecond are an error.

    Returns
    -------
    pyarrow.TimestampArray
        The timestamps, without a time zone.

    Raises
    ------
    InvalidDataError
        If a timestamp does not fit in 64 bits, or has digits below a microsecond.
    """
    values = fixed_values(array, INT96_BYTES, _INT96)
    days = values["day"].astype(np.int64) - _EPOCH_JULIAN_DAY
    times = values["nanoseconds"] // 1000
    fits = (days > -_MAX_DAYS) & (days < _MAX_DAYS)
    stamps = np.where(fits, days, 0) * _DAY_MICROSECONDS
    with np.errstate(over="ignore"):
        sums = stamps + times
    fits &= (times >= 0) == (sums >= stamps)
    _check_values(array, fits, path, "an INT96 timestamp outside of the years -290000 to 290000")
    if options.int96 == "exact":
        exact = values["nanoseconds"] % 1000 == 0
        _check_values(array, exact, path, "an INT96 timestamp with digits below a microsecond")
    return _build(pa.timestamp("us"), array, sums)


def convert_intervals(array: Any, path: str, options: ReadOptions) -> Any:
    """Return the values of an INTERVAL column as months, days and nanoseconds ("INTERVAL").

    Parameters and errors are those of `convert_int96`. Arrow's months and days have 31 bits.
    """
    values = fixed_values(array, INTERVAL_BYTES, _INTERVAL)
    fits = (values["months"] <= _MAX_INT32) & (values["days"] <= _MAX_INT32)
    _check_values(array, fits, path, "an INTERVAL of more months or days than 31 bits hold")
    intervals = np.empty(len(values), _MONTH_DAY_NANO)
    intervals["months"] = values["months"]
    intervals["days"] = values["days"]
    intervals["nanoseconds"] = values["milliseconds"].astype(np.int64) * 1_000_000
    return _build(pa.month_day_nano_interval(), array, intervals)


def check_nulls(array: Any, path: str, options: ReadOptions) -> Any:
    """Return an UNKNOWN column as a null array. Parameters are those of `convert_int96`.

    Raises
    ------
    InvalidDataError
        If a value is not null ("UNKNOWN").
    """
    if array.null_count != len(array):
        raise InvalidDataError(f"the column {path!r} has values, but UNKNOWN allows only nulls")
    return pa.nulls(len(array))


def drop_duplicate_keys(array: Any, path: str, options: ReadOptions) -> Any:
    """Return a map array in which the last value of each key wins ("Maps").

    Parameters
    ----------
    array : pyarrow.MapArray
        The maps.
    path : str
        The column, for errors.
    options : ReadOptions
        Whether all entries are kept.
    """
    if options.duplicate_keys == "keep" or not len(array):
        return array
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    if end - start < 2:
        return array
    keys = array.keys.slice(start, end - start)
    owners = np.repeat(np.arange(len(array), dtype=np.int64), np.diff(offsets))
    codes, count = _encode_keys(keys)
    pairs = owners * count + codes
    _, last = np.unique(pairs[::-1], return_index=True)
    if len(last) == len(pairs):
        return array
    kept = np.zeros(len(pairs), np.bool_)
    kept[len(pairs) - 1 - last] = True
    entries = array.values.slice(start, end - start).filter(pa.array(kept))
    sums = np.concatenate(([0], np.cumsum(kept)))
    return rebuild_list(array, sums[offsets - start], entries, array.type)


def entries_to_maps(array: Any, path: str, data_type: pa.DataType) -> Any:
    """Return lists of entries as maps. Their keys are optional in the file.

    Raises
    ------
    InvalidDataError
        If a key is null, which the specification forbids.
    """
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    entries = array.values.slice(start, end - start)
    keys = entries.field(0)
    if keys.null_count:
        raise InvalidDataError(f"the column {path!r} has a map with a null key")
    return rebuild_list(array, offsets - start, entries, data_type)


def rebuild_list(array: Any, offsets: Any, values: Any, data_type: Any) -> Any:
    """Return a list or map array with other values.

    Parameters
    ----------
    array : pyarrow.ListArray, LargeListArray or MapArray
        The former array, whose nulls the new one has.
    offsets : numpy.ndarray
        The offset of each list in `values`, and the end of the last. The first is 0.
    values : pyarrow.Array
        The elements of all lists. Entries of a map are structs.
    data_type : pyarrow.DataType
        The type of the new array.
    """
    if isinstance(data_type, pa.MapType):
        # The entries get the type, and the nullability, that the map expects.
        entry = pa.struct([data_type.key_field, data_type.item_field])
        parts = [values.field(0), values.field(1)]
        values = pa.Array.from_buffers(entry, len(values), [None], 0, 0, parts)
    width = np.int64 if isinstance(data_type, pa.LargeListType) else np.int32
    ends: Any = np.ascontiguousarray(offsets, width)
    buffers = [validity_buffer(array), pa.py_buffer(ends)]
    return pa.Array.from_buffers(
        data_type, len(array), buffers, array.null_count, children=[values]
    )


def _encode_keys(keys: Any) -> tuple[Any, int]:
    """Return an integer for each key, equal for equal keys, and the number of keys."""
    if isinstance(keys, pa.ExtensionArray):
        keys = keys.storage
    if isinstance(keys, pa.DictionaryArray):
        keys = keys.dictionary_decode()
    try:
        encoded: Any = pc.dictionary_encode(keys)
        return np.asarray(encoded.indices, np.int64), max(len(encoded.dictionary), 1)
    except pa.ArrowNotImplementedError:  # nested keys
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(repr(key), len(numbers)) for key in keys.to_pylist()]
        return np.array(codes, np.int64), max(len(numbers), 1)


def fixed_values(array: Any, width: int, dtype: np.dtype[Any]) -> Any:
    """Return the values of an array of fixed width as a NumPy array that shares its memory."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    begin = array.offset * width
    return np.frombuffer(data, np.uint8)[begin : begin + len(array) * width].view(dtype)


def _build(data_type: pa.DataType, array: Any, values: Any) -> Any:
    flat: Any = np.ascontiguousarray(values)
    buffers = [validity_buffer(array), pa.py_buffer(flat)]
    return pa.Array.from_buffers(data_type, len(array), buffers, array.null_count)


def _check_values(array: Any, is_good: Any, path: str, problem: str) -> None:
    if is_good.all():
        return
    bad = ~is_good
    if array.null_count:
        bad &= np.asarray(array.is_valid())
    if bad.any():
        raise InvalidDataError(f"the column {path!r} has {problem}")
