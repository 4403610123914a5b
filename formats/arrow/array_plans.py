"""The arrays that a schema implies: their field nodes, buffers and smallest sizes.

A record batch lists the field nodes and the buffers of its arrays in depth-first order ("Field and
Buffer Flattening"). The schema determines how many there are, and the lengths in the field nodes
determine the smallest size of most buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa


class BufferPlan(NamedTuple):
    """A buffer of an array."""

    name: str
    """Its role: ``validity``, ``offsets``, ``values`` …"""
    bits: int
    """The size of the entry for each slot of the array, in bits."""
    extra: int = 0
    """The number of entries beyond one for each slot, if the array is not empty."""


class ArrayPlan(NamedTuple):
    """An array of a record batch: a column or a child of another array."""

    path: str
    """The names of its field and of the fields above, joined with dots."""
    parent: int
    """The index of the array above; -1 for a column."""
    slots: int
    """The slots that each slot of the array above takes. 0 if the data determines them."""
    has_validity: bool
    """Whether it has a validity bitmap, which precedes the other buffers."""
    buffers: tuple[BufferPlan, ...]
    """The other buffers, without the variadic buffers of views."""
    is_view: bool
    """Whether variadic data buffers follow."""
    run_ends: bool
    """Whether it holds run ends, whose number is that of the values that follow."""


class BatchPlan(NamedTuple):
    """The arrays of the record batches of a schema."""

    arrays: list[ArrayPlan]
    """The arrays in depth-first order."""
    buffers: int
    """The number of their buffers, without variadic ones."""
    views: int
    """The number of arrays of views."""


def plan_batch(fields: Iterable[Any], *, is_v5: bool = True) -> BatchPlan:
    """Return the arrays of the record batches of a schema.

    Parameters
    ----------
    fields : iterable of pyarrow.Field
        The columns.
    is_v5 : bool
        Whether the metadata version is V5 or later. Before, unions had a validity bitmap.

    Examples
    --------
    >>> plan = plan_batch([pa.field("a", pa.list_(pa.string()))])
    >>> [array.path for array in plan.arrays], plan.buffers
    (['a', 'a.item'], 5)
    """
    arrays: list[ArrayPlan] = []
    for field in fields:
        _add_plans(arrays, field.name, field.type, -1, 0, is_v5)
    buffers = sum(plan.has_validity + len(plan.buffers) for plan in arrays)
    return BatchPlan(arrays, buffers, sum(plan.is_view for plan in arrays))


def _add_plans(
    plans: list[ArrayPlan],
    path: str,
    data_type: Any,
    parent: int,
    slots: int,
    is_v5: bool,
    *,
    run_ends: bool = False,
) -> None:
    """Append the plan of an array and those of its children."""
    while isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if isinstance(data_type, pa.DictionaryType):
        data_type = data_type.index_type
    has_validity, buffers, child_slots = _plan_type(data_type, is_v5)
    is_view = data_type in (pa.string_view(), pa.binary_view())
    index = len(plans)
    plans.append(ArrayPlan(path, parent, slots, has_validity, buffers, is_view, run_ends))
    if pa.types.is_run_end_encoded(data_type):
        ends, values = data_type.run_end_type, data_type.value_type
        _add_plans(plans, f"{path}.run_ends", ends, index, 0, is_v5, run_ends=True)
        _add_plans(plans, f"{path}.values", values, index, 0, is_v5)
        return
    for number in range(data_type.num_fields):
        child = data_type.field(number)
        _add_plans(plans, f"{path}.{child.name}", child.type, index, child_slots, is_v5)


def _plan_type(data_type: Any, is_v5: bool) -> tuple[bool, tuple[BufferPlan, ...], int]:
    """Return whether a type has a validity bitmap, its other buffers, and the slots of children."""
    types = pa.types
    if types.is_null(data_type) or types.is_run_end_encoded(data_type):
        return False, (), 0
    if types.is_struct(data_type):
        return True, (), 1
    if types.is_fixed_size_list(data_type):
        return True, (), data_type.list_size
    if types.is_union(data_type):
        type_ids = BufferPlan("type ids", 8)
        if data_type.mode == "sparse":
            return not is_v5, (type_ids,), 1
        return not is_v5, (type_ids, BufferPlan("offsets", 32)), 0
    if types.is_list(data_type) or types.is_map(data_type):
        return True, (BufferPlan("offsets", 32, 1),), 0
    if types.is_large_list(data_type):
        return True, (BufferPlan("offsets", 64, 1),), 0
    if types.is_list_view(data_type):
        return True, (BufferPlan("offsets", 32), BufferPlan("sizes", 32)), 0
    if types.is_large_list_view(data_type):
        return True, (BufferPlan("offsets", 64), BufferPlan("sizes", 64)), 0
    if data_type in (pa.string(), pa.binary()):
        return True, (BufferPlan("offsets", 32, 1), BufferPlan("data", 0)), 0
    if data_type in (pa.large_string(), pa.large_binary()):
        return True, (BufferPlan("offsets", 64, 1), BufferPlan("data", 0)), 0
    if data_type in (pa.string_view(), pa.binary_view()):
        return True, (BufferPlan("views", 128),), 0
    return True, (BufferPlan("values", data_type.bit_width),), 0
