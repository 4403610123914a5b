"""Decoding with pyarrow: the file of buffers that it reads, and the validation of the arrays.

`BufferFile` lets pyarrow read messages without a copy. `validate_memory` checks what a consumer's
memory depends on: invalid offsets, indices, unions or UTF-8 make consumers read outside of buffers.
A value outside of its type's range (a decimal with too many digits, a `date64` within a day, a time
of more than a day) only means nothing, and other implementations of Arrow write such values.
``validate(full=True)`` of pyarrow refuses both.
"""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pyarrow as pa

from .data_types import list_fields, replace_fields
from .message import encapsulate
from .supported_types import hide_intervals

DECODING_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    MemoryError,
    StopIteration,
)
"""The exceptions that pyarrow raises for data that it cannot decode.

`StopIteration` means that it found no message.
"""


class BufferFile:
    """A readable file that returns slices of its buffers instead of copies."""

    closed = False

    def __init__(self) -> None:
        self._pieces: deque[pa.Buffer] = deque()
        self._position = 0

    def add(self, metadata: bytes, body: pa.Buffer | None) -> None:
        """Append a message: its FlatBuffer and its body."""
        self._pieces.append(pa.py_buffer(encapsulate(metadata)))
        if body is not None and body.size:
            self._pieces.append(body)

    def read_buffer(self, nbytes: int) -> pa.Buffer:
        """Return the next bytes: at most `nbytes`, and never across the end of a buffer."""
        if not self._pieces:
            return pa.py_buffer(b"")
        piece = self._pieces[0]
        if piece.size <= nbytes:
            self._pieces.popleft()
        else:
            self._pieces[0] = piece.slice(nbytes)
            piece = piece.slice(0, nbytes)
        self._position += piece.size
        return piece

    def read(self, nbytes: int) -> pa.Buffer:
        """Return the next bytes; see `read_buffer`."""
        return self.read_buffer(nbytes)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: the file has no random access."""
        return False

    def writable(self) -> bool:
        """Return False."""
        return False

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._position

    def close(self) -> None:
        """Release the buffers."""
        self._pieces.clear()


def validate_memory(data: pa.Array[Any] | pa.RecordBatch) -> bool:
    """Validate everything except the ranges of values; return whether these are valid, too.

    Raises `pyarrow.ArrowInvalid` if the data is not safe to use.
    """
    try:
        data.validate(full=True)
    except pa.ArrowInvalid:
        data.validate()  # lengths first: pyarrow aborts when it slices an array of negative length
        if not isinstance(data, pa.RecordBatch):
            data = pa.RecordBatch.from_arrays([data], [""])
        columns: list[Any] = hide_intervals(data).columns
        plain = [_reinterpret(column) for column in columns]
        if all(one is other for one, other in zip(plain, columns, strict=True)):
            raise
        for column in plain:
            column.validate(full=True)
        return False
    return True


def _reinterpret(array: Any) -> Any:
    """Return the array, or one with the same buffers whose types allow every value."""
    data_type = array.type
    if isinstance(data_type, pa.BaseExtensionType):
        return _reinterpret(array.storage)
    plain_type = _find_plain_type(data_type)
    if plain_type is not None:
        return pa.Array.from_buffers(
            plain_type, len(array), array.buffers(), array.null_count, array.offset
        )
    if isinstance(data_type, pa.DictionaryType):
        dictionary = _reinterpret(array.dictionary)
        if dictionary is array.dictionary or dictionary.type.equals(array.dictionary.type):
            return array
        return pa.DictionaryArray.from_arrays(array.indices, dictionary, safe=False)
    children = _list_children(array)
    plain = [_reinterpret(child) for child in children]
    if all(one.type.equals(other.type) for one, other in zip(plain, children, strict=True)):
        return array
    own_buffers = array.buffers()[: data_type.num_buffers]
    pairs = zip(list_fields(data_type), plain, strict=True)
    nested_type = replace_fields(data_type, [field.with_type(child.type) for field, child in pairs])
    return pa.Array.from_buffers(
        nested_type, len(array), own_buffers, array.null_count, array.offset, children=plain
    )


def _find_plain_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return a type of the same width without a range; None if the type has none."""
    types = pa.types
    if types.is_decimal(data_type):
        return pa.binary(cast(Any, data_type).byte_width)
    if types.is_date64(data_type) or types.is_time64(data_type):
        return pa.int64()
    return pa.int32() if types.is_time32(data_type) else None


def _list_children(array: Any) -> list[Any]:
    data_type = array.type
    types = pa.types
    if types.is_struct(data_type) or types.is_union(data_type):
        return [array.field(index) for index in range(data_type.num_fields)]
    if types.is_run_end_encoded(data_type):
        return [array.run_ends, array.values]
    return [array.values] if data_type.num_fields else []
