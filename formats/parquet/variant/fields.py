"""The values of one shredded field, without the rest of the Variants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .checks import RowChecks
from .storage import STORAGE_TYPE
from .typed import cast_values
from .types import Kind
from .unshredding import reconstruct
from .values import open_values


def read_typed(group: Any, data_type: Any) -> Any:
    """Return the values of a group that is shredded as a primitive type.

    Parameters
    ----------
    group : pyarrow.StructArray
        The fields ``value`` and ``typed_value``; the former may be missing.
    data_type : pyarrow.DataType
        The type of ``typed_value``.

    Returns
    -------
    pyarrow.Array
        The values. One that does not fit the type is null.

    Raises
    ------
    InvalidDataError
        If both fields of a row are set, or a value is invalid.
    """
    fields = dict(zip([field.name for field in group.type], group.flatten(), strict=True))
    typed, value = fields["typed_value"], fields.get("value")
    if value is None or value.null_count == len(value):
        return typed
    checks = RowChecks(len(group))
    both = pc.and_(value.is_valid(), typed.is_valid()).to_numpy(zero_copy_only=False)
    checks.require(~both, np.arange(len(group)), "both value and typed_value are set")
    no_names = pa.repeat(pa.scalar(b"\x01\0\0"), len(group))  # a primitive value has no fields
    values = open_values(no_names, value, checks)
    values = values.take(np.isin(values.kinds(), _CONTAINERS, invert=True))
    return pc.coalesce(typed, cast_values(values, len(group), data_type, strict=False))


_CONTAINERS = (int(Kind.OBJECT), int(Kind.ARRAY))


def read_variants(metadata: Any, group: Any) -> Any:
    """Return the values of any group as Variants; those that are missing are null."""
    value = reconstruct(metadata, group).cast(pa.binary())
    present = value.is_valid()
    metadata = pc.if_else(present, metadata, pa.scalar(b"\x01\0\0", metadata.type))
    fields = [STORAGE_TYPE.field(index) for index in range(2)]
    mask = value.is_null() if value.null_count else None
    return pa.StructArray.from_arrays([metadata.cast(pa.binary()), value], fields=fields, mask=mask)
