"""The Arrow type of unshredded Variants. This module needs no NumPy."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

EXTENSION_NAME: Final = "arrow.parquet.variant"
_FIELD_METADATA: Final = {
    b"ARROW:extension:name": EXTENSION_NAME.encode(),
    b"ARROW:extension:metadata": b"",
}
_SPARK_MARK: Final = {b"variant": b"true"}
"""Spark takes a struct for a Variant if its field ``metadata`` has this metadata."""

FIELDS_KEY: Final = b"splitarrow:shredded_fields"
"""The key in the metadata of a Variant field for the names and types of its shredded fields."""
STORAGE_TYPE: Any = pa.struct(
    [
        pa.field("metadata", pa.binary(), nullable=False, metadata=_SPARK_MARK),
        pa.field("value", pa.binary()),
    ]
)
"""The Arrow type of an unshredded Variant."""


def variant_field(name: str, *, nullable: bool = True, metadata: Any = None) -> Any:
    """Return the field of an unshredded Variant column, with further metadata."""
    former: dict[bytes, bytes] = metadata or {}
    return pa.field(name, STORAGE_TYPE, nullable, {**former, **_FIELD_METADATA})


def is_variant_field(field: Any) -> bool:
    """Return whether a field of Arrow is an unshredded Variant, as Arrow or Spark mark one."""
    data_type: Any = field.type
    if isinstance(data_type, pa.BaseExtensionType):
        return data_type.extension_name == EXTENSION_NAME
    if not isinstance(data_type, pa.StructType):
        return False
    names = sorted(data_type.field(index).name for index in range(data_type.num_fields))
    if names != ["metadata", "value"]:
        return False
    extension = (field.metadata or {}).get(b"ARROW:extension:name")
    mark = data_type.field("metadata").metadata or {}
    return extension == EXTENSION_NAME.encode() or mark.get(b"variant") == b"true"
