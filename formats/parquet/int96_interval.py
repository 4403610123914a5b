"""INT96 timestamps and INTERVAL values, which have 12 bytes, and which pyarrow leaves as bytes.

An INT96 is the time of the day in nanoseconds and the Julian day. An INTERVAL is a number of
months, days and milliseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import InvalidDataError
from .conversions import ParquetOptions, fixed_values, validity_buffer
from .schema import INT96_BYTES, INTERVAL_BYTES

_DAY_MICROSECONDS = 86_400_000_000
_EPOCH_JULIAN_DAY = 2_440_588
_MAX_DAYS = (1 << 63) // _DAY_MICROSECONDS
_INT96 = np.dtype([("nanoseconds", "<i8"), ("day", "<i4")])
_INTERVAL = np.dtype([("months", "<u4"), ("days", "<u4"), ("milliseconds", "<u4")])
_MONTH_DAY_NANO = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_MAX_INT32 = (1 << 31) - 1


def convert_int96(path: str, array: Any, options: ParquetOptions) -> Any:
    """Return the timestamps of an INT96 column, in microseconds.

    Raises `InvalidDataError` if a timestamp does not fit in 64 bits, or has digits below a
    microsecond although the options demand exact values.
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


def convert_intervals(path: str, array: Any, options: ParquetOptions) -> Any:
    """Return the values of an INTERVAL column as months, days and nanoseconds ("INTERVAL").

    Raises `InvalidDataError` if there are more months or days than Arrow's 31 bits hold.
    """
    values = fixed_values(array, INTERVAL_BYTES, _INTERVAL)
    fits = (values["months"] <= _MAX_INT32) & (values["days"] <= _MAX_INT32)
    _check_values(array, fits, path, "an INTERVAL of more months or days than 31 bits hold")
    intervals = np.empty(len(values), _MONTH_DAY_NANO)
    intervals["months"] = values["months"]
    intervals["days"] = values["days"]
    intervals["nanoseconds"] = values["milliseconds"].astype(np.int64) * 1_000_000
    return _build(pa.month_day_nano_interval(), array, intervals)


def encode_intervals(array: Any, _options: Any = None) -> Any:
    """Return the values of an INTERVAL column ("INTERVAL").

    Raises `InvalidDataError` if a part is negative, or the nanoseconds are not milliseconds of 32
    bits.
    """
    values = fixed_values(array, 16, _MONTH_DAY_NANO)
    milliseconds = values["nanoseconds"] // 1_000_000
    fits = (values["months"] >= 0) & (values["days"] >= 0) & (milliseconds >= 0)
    fits &= (milliseconds < 1 << 32) & (values["nanoseconds"] % 1_000_000 == 0)
    valid = np.asarray(array.is_valid())
    if (~fits & valid).any():
        row = int(np.flatnonzero(~fits & valid)[0])
        raise InvalidDataError(
            f"the interval {array[row].as_py()} is not one of Parquet, which has no negative "
            "parts, and whole milliseconds of 32 bits"
        )
    intervals = np.zeros(len(values), _INTERVAL)
    intervals["months"][valid] = values["months"][valid]
    intervals["days"][valid] = values["days"][valid]
    intervals["milliseconds"][valid] = milliseconds[valid]
    return _build(pa.binary(INTERVAL_BYTES), array, intervals)


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
