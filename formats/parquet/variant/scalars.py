"""The values of primitive types, as arrays (Variant Encoding, "Variant primitive types")."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .buffers import Index, Mask, to_buffer
from .names import find_utf8
from .types import MAX_DECIMAL_SCALE, MICROSECONDS_PER_DAY, SHORT_STRING, Kind
from .values import Values

INTEGER_BYTES = {Kind.INT8: 1, Kind.INT16: 2, Kind.INT32: 4, Kind.INT64: 8}
DECIMAL_BYTES = {Kind.DECIMAL4: 4, Kind.DECIMAL8: 8, Kind.DECIMAL16: 16}
_DECIMAL_LIMIT = 10**38
_LIMIT_HIGH, _LIMIT_LOW = _DECIMAL_LIMIT >> 64, _DECIMAL_LIMIT & (2**64 - 1)


def check_scalars(values: Values, kind: Any) -> None:
    """Check the values of primitive types: scales, digits, times of day, and UTF-8.

    Their sizes must have been checked. An invalid value is reported and stays.
    """
    present = np.bincount(kind.clip(0), minlength=Kind.ARRAY + 1)
    for decimal in DECIMAL_BYTES:
        if present[decimal]:
            _check_decimals(values.take(kind == decimal), decimal)
    if present[Kind.TIME_NTZ]:
        part = values.take(kind == Kind.TIME_NTZ)
        time = read_int64(part)
        ok = (time >= 0) & (time < MICROSECONDS_PER_DAY)
        part.context.checks.require(ok, part.row, "a time is not within a day")
    if present[Kind.STRING]:
        part = values.take(kind == Kind.STRING)
        if not _is_ascii(part):
            ok = find_utf8(read_bytes(part))
            part.context.checks.require(ok, part.row, "a string is not UTF-8")


def _is_ascii(values: Values) -> bool:
    """Return whether the whole buffer is ASCII, which is quick to find out."""
    return int(values.context.buffer.bytes.max()) < 0x80


def _check_decimals(values: Values, kind: Kind) -> None:
    checks = values.context.checks
    scale = values.context.buffer.read_u8(values.start + 1)
    checks.require(scale <= MAX_DECIMAL_SCALE, values.row, "the scale of a decimal is above 38")
    if kind == Kind.DECIMAL16:
        unscaled = read_decimals(values, kind)
        negative = unscaled[:, 1].view(np.int64) < 0
        low = np.where(negative, -unscaled[:, 0].view(np.int64), unscaled[:, 0].view(np.int64))
        low = low.view(np.uint64)
        high = np.where(negative, ~unscaled[:, 1] + (low == 0), unscaled[:, 1])
        ok = (high < _LIMIT_HIGH) | ((high == _LIMIT_HIGH) & (low < _LIMIT_LOW))
        checks.require(ok, values.row, "a decimal has more than 38 digits")


def read_int64(values: Values) -> Index:
    """Return values of 8 bytes as int64."""
    return values.context.buffer.read_u64(values.start + 1).view(np.int64)


def read_integers(values: Values, kind: Any) -> Index:
    """Return integers of any size.

    Parameters
    ----------
    values : Values
        Values of the kinds INT8 to INT64.
    kind : ndarray of int8
        Their kinds.
    """
    bits = np.int64(8) << (kind.astype(np.int64) - int(Kind.INT8))
    widest = int(kind.max()) if len(kind) else Kind.INT8
    if widest == Kind.INT8:
        return values.context.buffer.read_u8(values.start + 1).view(np.int8).astype(np.int64)
    raw = values.context.buffer.read_u64(values.start + 1)
    shift = 64 - bits
    return (raw << shift.view(np.uint64)).view(np.int64) >> shift


def read_int32(values: Values) -> NDArray[np.int32]:
    """Return values of 4 bytes as int32."""
    return values.context.buffer.read_u32(values.start + 1).view(np.int32)


def read_float64(values: Values) -> NDArray[np.float64]:
    """Return values of the kind DOUBLE."""
    return values.context.buffer.read_u64(values.start + 1).view(np.float64)


def read_float32(values: Values) -> NDArray[np.float32]:
    """Return values of the kind FLOAT."""
    return values.context.buffer.read_u32(values.start + 1).view(np.float32)


def read_scales(values: Values) -> NDArray[np.uint8]:
    """Return the scales of decimals."""
    return values.context.buffer.read_u8(values.start + 1)


def read_decimals(values: Values, kind: Kind) -> NDArray[np.uint64]:
    """Return the unscaled values of decimals of one kind, as Arrow stores them.

    Returns
    -------
    ndarray of uint64, shape (n, 2)
        The low and the high half of each value, in two's complement.
    """
    buffer, at = values.context.buffer, values.start + 2
    result = np.empty((len(values), 2), np.uint64)
    if kind == Kind.DECIMAL16:
        result[:, 0] = buffer.read_u64(at)
        result[:, 1] = buffer.read_u64(at + 8)
        return result
    if kind == Kind.DECIMAL8:
        low = buffer.read_u64(at).view(np.int64)
    else:
        low = buffer.read_u32(at).view(np.int32).astype(np.int64)
    result[:, 0] = low.view(np.uint64)
    result[:, 1] = (low >> 63).view(np.uint64)
    return result


def decimal_array(unscaled: NDArray[np.uint64], scale: int) -> Any:
    """Return a `pyarrow.Decimal128Array` of 38 digits over unscaled values of one scale."""
    return pa.Array.from_buffers(
        pa.decimal128(38, scale),
        len(unscaled),
        [None, to_buffer(unscaled)],
    )


def read_bytes(values: Values) -> Any:
    """Return the content of strings or binary values, as a `pyarrow.LargeBinaryArray`."""
    head = _head_sizes(values)
    return values.context.buffer.slice(values.start + head, values.size - head)


def read_fixed(values: Values, width: int) -> NDArray[np.uint8]:
    """Return the bytes of values of a fixed size, as an array of shape (n, width)."""
    at = values.start[:, None] + np.arange(1, width + 1)
    return values.context.buffer.bytes[at]


def _head_sizes(values: Values) -> Index:
    """Return the sizes of the headers of strings and binary values."""
    short: Mask = (values.context.buffer.read_u8(values.start) & 3) == SHORT_STRING
    return np.where(short, 1, 5)
