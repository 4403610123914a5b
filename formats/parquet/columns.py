"""The columns of a Parquet file in Arrow: their types, metadata and conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from ..arrow.data_types import replace_fields
from .conversions import (
    Convert,
    ParquetOptions,
    PlannedField,
    check_nulls,
    convert_list,
    convert_map,
    convert_struct,
    drop_duplicate_keys,
    entries_to_maps,
    is_list,
    keeps_annotation,
)
from .geo.crs import extension_metadata, find_projjson
from .int96_interval import convert_int96, convert_intervals
from .logical_types import Kind
from .schema import INTERVAL_BYTES, Node, Physical, is_list_of_entries, list_element, map_entries
from .variant.arrow_fields import VariantField, describe_fields
from .variant_columns import list_shredded_fields, plan_variant

LOGICAL_TYPE = b"PARQUET:logical_type"
"""The key in field metadata for an annotation that the Arrow type does not express."""
PHYSICAL_TYPE = b"PARQUET:physical_type"
"""The key in field metadata for a physical type that the Arrow type does not express."""
ADJUSTED_TO_UTC = b"PARQUET:isAdjustedToUTC"
"""The key in field metadata of a TIME or TIMESTAMP: ``true`` or ``false``."""
_MARKED = (Kind.ENUM, Kind.BSON, Kind.INTERVAL, Kind.FUTURE)

KeyValues = Mapping[bytes, bytes]
"""The key-value metadata of a file."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a file."""

    schema: pa.Schema
    """The schema that readers get."""
    conversions: Mapping[int, Convert] = field(default_factory=dict[int, Convert])
    """The conversions, by the index of the column."""
    without_order: frozenset[int] = frozenset()
    """The columns whose statistics must not be used, because their type has no order, or because
    pyarrow compares them in another type."""
    shredded: Mapping[str, VariantField] = field(default_factory=dict[str, VariantField])
    """The shredded fields of Variant columns, by their names, which are no columns of `schema`."""
    leaves: tuple[int, ...] = ()
    """The index of the first column chunk of each column in a row group."""
    malformed_statistics: frozenset[int] = frozenset()
    """The indices of the column chunks whose statistics must not be given to pyarrow."""

    def convert(
        self, batch: pa.RecordBatch, *, by_name: bool, options: ParquetOptions
    ) -> pa.RecordBatch:
        """Return a batch with the types and the metadata that readers get.

        A batch has all columns, or, `by_name`, some of them. Raises `InvalidDataError` if a value
        cannot be converted.
        """
        indices = range(len(self.schema))
        if by_name:
            indices = [self.schema.get_field_index(name) for name in batch.schema.names]
        arrays = [
            self.conversions[index](array, options) if index in self.conversions else array
            for index, array in zip(indices, batch.columns, strict=True)
        ]
        metadata: Any = self.schema.metadata
        fields = [self.schema.field(index) for index in indices]
        if not fields:
            return batch
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))


def plan_columns(
    root: Node,
    schema: pa.Schema,
    key_values: KeyValues,
    malformed_statistics: frozenset[int] = frozenset(),
) -> Columns:
    """Return the columns of a file."""
    fields: list[pa.Field[Any]] = []
    conversions: dict[int, Convert] = {}
    without_order: set[int] = set()
    leaves = [0]
    for index, (node, column) in enumerate(zip(root.children, schema, strict=True)):
        planned, convert = _plan(node, column, key_values)
        fields.append(planned)
        leaves.append(leaves[-1] + node.leaves)
        if convert is not None:
            conversions[index] = convert
        chunks = range(leaves[-2], leaves[-1])
        if (
            convert is not None
            or not _has_order(node)
            or not malformed_statistics.isdisjoint(chunks)
        ):
            without_order.add(index)
    metadata: Any = {**(schema.metadata or {}), **find_projjson(root, key_values)} or None
    shredded = list_shredded_fields(root, schema)
    return Columns(
        describe_fields(pa.schema(fields, metadata=metadata), shredded),
        conversions,
        frozenset(without_order),
        shredded,
        tuple(leaves[:-1]),
        malformed_statistics,
    )


def _has_order(node: Node) -> bool:
    """Return whether pyarrow compares the values of a column in the order of its type."""
    kinds = (Kind.INTERVAL, Kind.GEOMETRY, Kind.GEOGRAPHY, Kind.VARIANT, Kind.FUTURE, Kind.BSON)
    if node.kind is Kind.TIMESTAMP and node.physical is Physical.FIXED_LEN_BYTE_ARRAY:
        return False
    return node.kind not in kinds and keeps_annotation(node)


def _plan(node: Node, column: pa.Field[Any], key_values: KeyValues) -> PlannedField:
    """Return the field of a node, and the conversion of its arrays."""
    data_type: Any = column.type
    if node.is_repeated and is_list(data_type):
        element, convert = _plan_value(node, data_type.value_field, key_values)
        return _wrap_list(column, element, convert)
    return _plan_value(node, column, key_values)


def _plan_value(node: Node, column: pa.Field[Any], key_values: KeyValues) -> PlannedField:
    """Plan a node that is not repeated, or one value of a repeated one."""
    data_type: Any = column.type
    if node.physical is not None:
        return _plan_leaf(node, column, key_values)
    if node.kind is Kind.LIST and is_list(data_type):
        return _plan_list(node, column, key_values)
    if node.kind is Kind.MAP and not node.is_repeated:
        return _plan_map(node, column, key_values)
    if isinstance(data_type, pa.StructType) and data_type.num_fields == len(node.children):
        if node.kind is Kind.VARIANT:
            return plan_variant(node, column)
        return _plan_struct(node, column, key_values)
    return column, None


def _plan_list(node: Node, column: pa.Field[Any], key_values: KeyValues) -> PlannedField:
    data_type: Any = column.type
    child = list_element(node)
    plan = _plan_value if child.is_repeated else _plan
    return _wrap_list(column, *plan(child, data_type.value_field, key_values))


def _plan_struct(node: Node, column: pa.Field[Any], key_values: KeyValues) -> PlannedField:
    data_type: Any = column.type
    plans = [
        _plan(child, data_type.field(index), key_values)
        for index, child in enumerate(node.children)
    ]
    fields = [planned for planned, _ in plans]
    converts = [convert for _, convert in plans]
    new_type = pa.struct(fields)
    marked = _with_metadata(column.with_type(new_type), _marks(node))
    if not any(converts):
        return marked, None
    return marked, partial(convert_struct, new_type, converts)


def _plan_map(node: Node, column: pa.Field[Any], key_values: KeyValues) -> PlannedField:
    data_type: Any = column.type
    entries = map_entries(node)
    if len(entries.children) == 1:  # a set of keys, which pyarrow reads as a list
        return _plan_list(node, column, key_values) if is_list(data_type) else (column, None)
    as_list = is_list_of_entries(node) and is_list(data_type)
    if not as_list and not isinstance(data_type, pa.MapType):
        return column, None
    old_key, old_item = _entry_fields(data_type)
    key, convert_key = _plan(entries.children[0], old_key, key_values)
    item, convert_item = _plan(entries.children[1], old_item, key_values)
    new_type = _map_type(key, item)
    path = node.path

    def convert_maps(array: Any, options: ParquetOptions) -> Any:
        if as_list:
            array = entries_to_maps(array, path, _map_type(old_key, old_item))
        if convert_key is not None or convert_item is not None:
            array = convert_map(new_type, convert_key, convert_item, array, options)
        return drop_duplicate_keys(array, options)

    return column.with_type(new_type), convert_maps


def _entry_fields(data_type: Any) -> tuple[Any, Any]:
    """Return the fields of the keys and values of a map, or of a list of entries."""
    if isinstance(data_type, pa.MapType):
        return data_type.key_field, data_type.item_field
    return data_type.value_type.field(0), data_type.value_type.field(1)


def _map_type(key: Any, item: Any) -> Any:
    make_map: Any = pa.map_
    return make_map(key.with_nullable(False).with_name("key"), item.with_name("value"))


def _plan_leaf(node: Node, column: pa.Field[Any], key_values: KeyValues) -> PlannedField:
    data_type: Any = column.type
    if node.kind in (Kind.GEOMETRY, Kind.GEOGRAPHY):
        assert node.logical is not None
        if isinstance(data_type, pa.BaseExtensionType):
            column = column.with_type(data_type.storage_type)
        return _with_metadata(column, extension_metadata(node.logical, key_values)), None
    column = _with_metadata(column, _marks(node))
    if node.physical is Physical.INT96 and _is_fixed(data_type):
        convert = partial(convert_int96, node.path)
        return column.with_type(pa.timestamp("us")), convert
    if node.kind is Kind.INTERVAL and _is_fixed(data_type):
        convert = partial(convert_intervals, node.path)
        return column.with_type(pa.month_day_nano_interval()), convert
    if node.kind is Kind.UNKNOWN:
        return column.with_type(pa.null()), partial(check_nulls, node.path)
    return column, None


def _marks(node: Node) -> dict[bytes, bytes]:
    """Return the metadata for what the Arrow type of a node does not express."""
    logical = node.logical
    marks: dict[bytes, bytes] = {}
    if node.physical is Physical.INT96:
        marks[PHYSICAL_TYPE] = b"INT96"
    if logical is None:
        return marks
    if logical.kind in _MARKED or not keeps_annotation(node):
        marks[LOGICAL_TYPE] = str(logical).encode()
    if logical.kind in (Kind.TIME, Kind.TIMESTAMP):
        marks[ADJUSTED_TO_UTC] = b"true" if logical.utc else b"false"
    if logical.kind is Kind.DECIMAL and node.physical is Physical.BYTE_ARRAY:
        marks[PHYSICAL_TYPE] = b"BYTE_ARRAY"
    return marks


def _with_metadata(column: pa.Field[Any], added: Mapping[bytes, bytes]) -> pa.Field[Any]:
    if not added:
        return column
    former: Mapping[bytes, bytes] = column.metadata or {}
    return column.with_metadata({**former, **added})


def _is_fixed(data_type: Any) -> bool:
    return data_type == pa.binary(INTERVAL_BYTES)


def _wrap_list(
    column: pa.Field[Any], element: pa.Field[Any], convert: Convert | None
) -> PlannedField:
    new_type = replace_fields(column.type, [element])
    planned = column.with_type(new_type)
    return planned, None if convert is None else partial(convert_list, new_type, convert)
