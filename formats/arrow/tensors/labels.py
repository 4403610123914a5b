"""The labels of tensors: custom metadata that names a tensor and its type in NumPy.

Arrow's tensors hold integers and floats. `splitarrow:dtype` names the type of an array that has
other values, so that a reader gets the array back:

=====================  ================================================
``bool``               stored as uint8
``complex64``          stored as float32, with a last dimension of 2
``complex128``         stored as float64, with a last dimension of 2
``datetime64[ms]``     stored as int64; so are the other units
``timedelta64[ms]``    stored as int64; so are the other units
=====================  ================================================

`splitarrow:name` is the name of the tensor in its dataset: that of its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ....errors import InvalidDataError
from ...flatbuffer import PARSE_ERRORS, find_vector, follow, read_root, read_string
from .layout import AnyLayout, SparseLayout, ValueType

CONTENT_KEY, CONTENT = b"splitarrow:content", b"tensor"
"""The custom metadata of the schema of a stream of tensors."""
DTYPE_KEY, NAME_KEY = b"splitarrow:dtype", b"splitarrow:name"
"""The keys of the labels in the custom metadata of a message."""
TENSOR_SCHEMA = pa.schema([], metadata={CONTENT_KEY: CONTENT})
"""The schema of a stream of tensors. Tensors have no columns."""
MAX_NAME_CHARS = 1024
"""The largest name of a tensor, in characters."""

_KEY_LENGTHS = (len(NAME_KEY), len(DTYPE_KEY))
_MESSAGE_CUSTOM_METADATA = 12
_PAIR_KEY, _PAIR_VALUE = 4, 6
"""The slots of fields in the vtables of Message.fbs and Schema.fbs."""

_TIME = re.compile(
    r"(?:datetime|timedelta)64\[(?:[1-9][0-9]{0,9})?(?:[YMWDhms]|ms|us|ns|ps|fs|as)\]"
)
_STORED_TYPES: dict[str, ValueType] = {
    "bool": pa.uint8(),
    "complex64": pa.float32(),
    "complex128": pa.float64(),
}


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a tensor."""

    name: str | None = None
    """The name of the tensor; None if it has none."""
    dtype: str | None = None
    """The type of its values in NumPy, if Arrow stores them as another type; None if not."""

    @property
    def is_complex(self) -> bool:
        """Whether the last dimension holds the parts of complex numbers."""
        return self.dtype is not None and self.dtype.startswith("complex")

    def to_metadata(self) -> dict[bytes, bytes]:
        """Return the custom metadata of a message with these labels."""
        pairs = ((NAME_KEY, self.name), (DTYPE_KEY, self.dtype))
        return {key: text.encode() for key, text in pairs if text is not None}


NO_LABELS = Labels()


def is_tensor_content(schema: pa.Schema) -> bool:
    """Return whether a schema announces a stream of tensors."""
    return (schema.metadata or {}).get(CONTENT_KEY) == CONTENT


def read_labels(metadata: bytes | memoryview, layout: AnyLayout) -> Labels:
    """Read and check the labels of a tensor."""
    try:
        pairs = dict(_find_labels(metadata))
        name, dtype = (
            None if (text := pairs.get(key)) is None else text.decode()
            for key in (NAME_KEY, DTYPE_KEY)
        )
    except PARSE_ERRORS:
        raise InvalidDataError("the custom metadata of the tensor is malformed") from None
    except UnicodeDecodeError:
        raise InvalidDataError("a label of the tensor is not UTF-8") from None
    if name is None and dtype is None:
        return NO_LABELS
    if name is not None and len(name) > MAX_NAME_CHARS:
        raise InvalidDataError(
            f"the name of the tensor has {len(name)} characters; the limit is {MAX_NAME_CHARS}"
        )
    if dtype is not None:
        _check_dtype(dtype, layout)
    return Labels(name, dtype)


def _find_labels(metadata: bytes | memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Yield the labels in the custom metadata of a message, and skip everything else."""
    start, count = find_vector(metadata, read_root(metadata), _MESSAGE_CUSTOM_METADATA, 4)
    for position in range(start, start + 4 * count, 4):
        pair = follow(metadata, position)
        begin, length = find_vector(metadata, pair, _PAIR_KEY, 1)
        key = bytes(metadata[begin : begin + length]) if length in _KEY_LENGTHS else b""
        if key in (NAME_KEY, DTYPE_KEY):
            yield key, read_string(metadata, pair, _PAIR_VALUE) or b""


def find_stored_type(dtype: str) -> ValueType | None:
    """Return the type that stores the values of a label, None if the label is unknown."""
    if _TIME.fullmatch(dtype):
        return pa.int64()
    return _STORED_TYPES.get(dtype)


def _check_dtype(dtype: str, layout: AnyLayout) -> None:
    stored = find_stored_type(dtype)
    if stored is None:
        raise InvalidDataError(
            f"the tensor has the unknown type {dtype[:40]!r} in splitarrow:dtype"
        )
    if stored != layout.type:
        raise InvalidDataError(
            f"the tensor is labeled {dtype}, which is stored as {stored}; it has {layout.type}"
        )
    if dtype.startswith("complex"):
        width = layout.type.bit_width // 8
        if isinstance(layout, SparseLayout) or not (
            layout.shape and layout.shape[-1] == 2 and layout.strides[-1] == width
        ):
            raise InvalidDataError(
                f"the tensor is labeled {dtype}, so its last dimension must be 2 neighboring values"
            )
