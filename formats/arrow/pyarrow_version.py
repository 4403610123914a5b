"""What older versions of pyarrow cannot do.

Before version 25, pyarrow crashes when it writes a slice of string views, and cannot compute the
size of a slice of any view. The types can still be sent unchanged from files, and received.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

VIEWS_VERSION = 25
"""The first version that slices and writes views."""


def read_major_version() -> int:
    """Return the major version of pyarrow."""
    return int(pa.__version__.partition(".")[0])


def find_view_problem(schema: pa.Schema) -> str | None:
    """Return the reason why record batches of a schema cannot be sliced and written, or None.

    Examples
    --------
    >>> find_view_problem(pa.schema({"delay": pa.int64()})) is None
    True
    """
    if read_major_version() >= VIEWS_VERSION:
        return None
    for field in schema:
        if _contains_view(field.type):
            return (
                f"the column {field.name!r} is {field.type}, which needs pyarrow {VIEWS_VERSION} "
                f"or newer; this is pyarrow {pa.__version__}"
            )
    return None


def _contains_view(data_type: Any) -> bool:
    types = pa.types
    if (
        types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
        or types.is_string_view(data_type)
        or types.is_binary_view(data_type)
    ):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _contains_view(data_type.storage_type)
    if isinstance(data_type, pa.DictionaryType):
        return _contains_view(data_type.value_type)
    return any(_contains_view(data_type.field(index).type) for index in range(data_type.num_fields))
