"""One Variant at a time from a Python value, as a reference for the encoding of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from splitarrow.formats.parquet.variant.metadata import encode_metadata
from splitarrow.formats.parquet.variant.python_values import encode_scalar
from splitarrow.formats.parquet.variant.types import ARRAY, OBJECT, header_byte


def encode(value: Any) -> tuple[bytes, bytes]:
    """Return the metadata, whose names are sorted, and the value."""
    names = sorted(set(_list_names(value)), key=str.encode)
    return encode_metadata(names), encode_with(value, {name: i for i, name in enumerate(names)})


def encode_with(value: Any, ids: Mapping[str, int]) -> bytes:
    """Return the value of a Variant whose metadata has the field names `ids`, sorted."""
    if isinstance(value, Mapping):
        fields = sorted((ids[name], name) for name in value)
        encoded = [encode_with(value[name], ids) for _, name in fields]
        return _join(encoded, [field_id for field_id, _ in fields])
    if isinstance(value, list | tuple):
        return _join([encode_with(item, ids) for item in value], None)
    return encode_scalar(value)


def _list_names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _list_names(item)


def _join(encoded: list[bytes], ids: list[int] | None) -> bytes:
    offsets = [0, *accumulate(map(len, encoded))]
    count, width = len(encoded), _width(offsets[-1])
    is_large = count > 255
    parts = [count.to_bytes(4 if is_large else 1, "little")]
    if ids is None:
        header = header_byte(ARRAY, (width - 1) | is_large << 2)
    else:
        id_width = _width(max(ids, default=0))
        header = header_byte(OBJECT, (width - 1) | (id_width - 1) << 2 | is_large << 4)
        parts += [field_id.to_bytes(id_width, "little") for field_id in ids]
    parts += [offset.to_bytes(width, "little") for offset in offsets]
    return b"".join([bytes([header]), *parts, *encoded])


def _width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)
