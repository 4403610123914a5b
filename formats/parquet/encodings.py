"""Values in the bytes of Parquet, for types that pyarrow writes otherwise or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import InvalidDataError
from .conversions import INTERVAL_BYTES, fixed_values, validity_buffer

_MONTH_DAY_NANO = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_INTERVAL = np.dtype([("months", "<u4"), ("days", "<u4"), ("milliseconds", "<u4")])
_MILLISECOND = 1_000_000


def encode_intervals(array: Any) -> Any:
    """Return the values of an INTERVAL column ("INTERVAL").

    Parameters
    ----------
    array : pyarrow.MonthDayNanoIntervalArray
        The intervals.

    Returns
    -------
    pyarrow.FixedSizeBinaryArray
        Months, days and milliseconds, 12 bytes.

    Raises
    ------
    InvalidDataError
        If a part is negative, or the nanoseconds are not milliseconds of 32 bits.
    """
    values = fixed_values(array, 16, _MONTH_DAY_NANO)
    milliseconds = values["nanoseconds"] // _MILLISECOND
    fits = (values["months"] >= 0) & (values["days"] >= 0) & (milliseconds >= 0)
    fits &= (milliseconds < 1 << 32) & (values["nanoseconds"] % _MILLISECOND == 0)
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
    flat: Any = intervals
    return pa.Array.from_buffers(
        pa.binary(INTERVAL_BYTES),
        len(array),
        [validity_buffer(array), pa.py_buffer(flat)],
        array.null_count,
    )


def encode_decimals(array: Any) -> Any:
    """Return decimals as big-endian integers of the fewest bytes ("DECIMAL").

    Parameters
    ----------
    array : pyarrow.Decimal32Array, Decimal64Array, Decimal128Array or Decimal256Array
        The decimals.

    Returns
    -------
    pyarrow.BinaryArray
        The unscaled values in two's complement.
    """
    width: int = array.type.bit_width // 8
    count = len(array)
    little = fixed_values(array, width, np.dtype(np.uint8)).reshape(count, width)
    data: Any = np.ascontiguousarray(little[:, ::-1])
    signs = data[:, :1] >> 7
    filler = data == signs * 255
    # The bytes before the first that is more than the sign, of which one may hold the sign.
    leading = np.where(filler.all(axis=1), width, np.argmin(filler, axis=1))
    next_byte = data[np.arange(count), np.minimum(leading, width - 1)]
    keeps_sign = (leading == width) | (next_byte >> 7 != signs[:, 0])
    dropped = np.maximum(leading - keeps_sign, 0)
    dropped[~np.asarray(array.is_valid())] = width
    kept: Any = data[np.arange(width) >= dropped[:, None]]
    offsets: Any = np.concatenate(([0], np.cumsum(width - dropped))).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(),
        count,
        [validity_buffer(array), pa.py_buffer(offsets), pa.py_buffer(kept)],
        array.null_count,
    )
