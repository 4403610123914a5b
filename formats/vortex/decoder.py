"""Decoding of checked messages with vortex-data (extra ``vortex``), in this process.

The library panics on some malformed input, which Python sees as a ``PanicException`` outside of
``Exception``. Here it becomes an `InvalidDataError`. Input that makes the library run for very long
or take much memory cannot be recognized in general: decode data from strangers in a process of its
own, with `splitarrow.isolation`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import pyarrow as pa

from ...errors import InvalidDataError, MissingExtraError, install_hint
from .array_body import decode_body
from .checker import CheckedArray, check_array, check_body_size
from .dtype import DType, read_dtype
from .message import (
    DEFAULT_LIMITS,
    Message,
    MessageKind,
    VortexLimits,
    build_message,
    encode_message,
    read_parts,
)

_Result = TypeVar("_Result")
_MAX_REASON_CHARS = 300


def import_library(module: str = "vortex") -> Any:
    """Return a module of vortex-data; raises `MissingExtraError` if it is not installed."""
    require_library()
    return import_module(module)


def require_library() -> None:
    """Check that vortex-data is installed, without importing it."""
    if find_spec("vortex") is None:
        raise MissingExtraError(
            f"arrays in Vortex need the package vortex-data; run {install_hint('vortex')}"
        )


def encode_array(array: Any) -> tuple[Message, Message]:
    """Return the dtype message and the array message of an array of vortex-data."""
    serde = import_library("vortex.serde")
    parts, dtype_parts = call_library(lambda: serde.encode_ipc_array_buffers(array), "encoded")
    return read_parts(dtype_parts), read_parts(parts)


def call_library(call: Callable[[], _Result], participle: str = "decoded") -> _Result:
    """Return the result of a call of vortex-data; its errors become `InvalidDataError`."""
    try:
        return call()
    except Exception as error:
        raise InvalidDataError(f"the array cannot be {participle}: {_first_line(error)}") from None
    except BaseException as error:
        # The library's exception for panics has no public name, and derives from no other.
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidDataError(
            f"the array cannot be {participle}: vortex-data panicked: {_first_line(error)}"
        ) from None


def _first_line(error: BaseException) -> str:
    """Return the reason of an error of the library, without its backtrace."""
    reason = str(error).partition("\nBacktrace")[0].strip() or type(error).__name__
    return " ".join(reason.split())[:_MAX_REASON_CHARS]


class ArrayDecoder:
    """Decodes the arrays of one stream, which begins with the dtype message.

    Examples
    --------
    >>> import vortex
    >>> dtype, message = encode_array(vortex.array([60, 75]))
    >>> ArrayDecoder(dtype).decode_arrow(message).to_pylist()
    [60, 75]
    """

    def __init__(self, dtype: Message, limits: VortexLimits = DEFAULT_LIMITS) -> None:
        self._serde = import_library("vortex.serde")
        self._limits = limits
        self.dtype, self._dtype_parts = read_dtype_message(dtype, limits)
        """The type of all arrays, and the dtype message as the library reads it."""

    def decode(self, message: Message) -> Any:
        """Check an array message, and return its array of vortex-data, still in its encodings.

        The array has its own memory, or refers to that of the message's body.
        """
        parts = encode_message(prepare_message(message, self.dtype, self._limits)[1])
        decode = self._serde.decode_ipc_array_buffers
        return call_library(lambda: decode(parts, self._dtype_parts))

    def decode_arrow(self, message: Message, data_type: Any = None) -> pa.Array[Any]:
        """Check and decode an array message, and return it as an Arrow array.

        The library chooses the type if `data_type` is None.
        """
        array = self.decode(message)
        return convert_to_arrow(array, message.header.row_count, data_type)


def read_dtype_message(dtype: Message, limits: VortexLimits) -> tuple[DType, list[bytes]]:
    """Check a dtype message; return the type, and the message as the library reads it."""
    if dtype.header.kind is not MessageKind.DTYPE:
        raise InvalidDataError(f"the message is of the type {dtype.header.kind.name}, not DTYPE")
    body = dtype.join_body()
    check_body_size(dtype.header, body)
    found = read_dtype(body, limits)
    return found, [b"".join(encode_message(dtype))]


def prepare_message(
    message: Message, dtype: DType, limits: VortexLimits
) -> tuple[CheckedArray, Message]:
    """Check an array message, and return it as vortex-data reads it."""
    pieces = message.body
    body = pieces[0] if len(pieces) == 1 else message.join_body()
    checked = check_array(message.header, body, dtype, limits)
    pieces = decode_body(checked.body, limits.decoded_bytes)
    if pieces[0] is checked.body.data:
        return checked, message._replace(body=pieces)
    header = message.header
    rewritten = build_message(
        MessageKind.ARRAY, pieces, row_count=header.row_count, encodings=header.encodings
    )
    return checked, rewritten


def convert_to_arrow(array: Any, rows: int, data_type: Any = None) -> pa.Array[Any]:
    """Return an array of vortex-data as an Arrow array, which owns its memory."""
    found: Any = call_library(lambda: array.to_arrow_array(arrow_type=data_type))
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if len(found) != rows:
        raise InvalidDataError(
            f"the array has {len(found)} rows once decoded; the field row_count of the header is "
            f"{rows}"
        )
    if data_type is not None and not found.type.equals(data_type):
        raise InvalidDataError(f"the array has the type {found.type} once decoded, not {data_type}")
    return found
