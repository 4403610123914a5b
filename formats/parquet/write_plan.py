"""Writing Parquet: the footer gets the annotations that pyarrow cannot write.

A file is written with the schema `WritePlan.schema` and the batches of `WritePlan.convert`. Then
`WritePlan.annotate` returns the footer to put in place of pyarrow's. Intervals and some decimals
are encoded before, because pyarrow writes them otherwise or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import InvalidDataError
from ..arrow.data_types import replace_fields
from .columns import ADJUSTED_TO_UTC, LOGICAL_TYPE, PHYSICAL_TYPE
from .conversions import (
    DEFAULT_OPTIONS,
    Convert,
    PlannedField,
    convert_list,
    convert_map,
    convert_struct,
    fixed_values,
    is_list,
    validity_buffer,
)
from .footer import TAIL_BYTES, Footer, read_footer_size, wrap_footer
from .geo.boxes import Box, BoxTracker
from .geo.crs import METADATA_KEY, NAME_KEY, is_geospatial, make_logical_type
from .int96_interval import encode_intervals
from .logical_types import Kind, LogicalType, find_converted_type
from .schema import INTERVAL_BYTES, Node, annotate
from .thrift import CompactReader, Struct, ThriftList, Type, Value, encode_struct


def encode_decimals(array: Any, _options: Any = None) -> Any:
    """Return decimals as big-endian integers of the fewest bytes ("DECIMAL")."""
    width: int = array.type.bit_width // 8
    count = len(array)
    little = fixed_values(array, width, np.dtype(np.uint8)).reshape(count, width)
    data: Any = np.ascontiguousarray(little[:, ::-1])
    signs = data[:, :1] >> 7
    filler = data == signs * 255
    # The bytes before the first that is more than the sign, of which one may hold the sign.
    leading = np.where(filler.all(axis=1), width, np.argmin(filler, axis=1))
    next_byte = data[np.arange(count), np.minimum(leading, width - 1)]
    keeps_sign = (leading == width) | (next_byte >> 7 != signs[:, 0])
    dropped = np.maximum(leading - keeps_sign, 0)
    dropped[~np.asarray(array.is_valid())] = width
    kept: Any = data[np.arange(width) >= dropped[:, None]]
    offsets: Any = np.concatenate(([0], np.cumsum(width - dropped))).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(),
        count,
        [validity_buffer(array), pa.py_buffer(offsets), pa.py_buffer(kept)],
        array.null_count,
    )


_ROW_GROUPS, _COLUMNS, _COLUMN_METADATA, _STATISTICS, _GEO_STATISTICS = 4, 1, 3, 12, 17
_COUNTS = (3, 4)
"""The fields of Statistics that need no order: the numbers of nulls and of distinct values."""
_MAX_VALUES = 1 << 26
_WITHOUT_BOUNDS = (Kind.INTERVAL, Kind.GEOMETRY, Kind.GEOGRAPHY, Kind.DECIMAL)
"""The annotations whose minimum and maximum, as pyarrow computes them, are wrong or forbidden."""

Annotations = Mapping[str, LogicalType]
"""The annotations to add, by the path of the schema element."""


@dataclass(frozen=True, slots=True)
class GeoStatistics:
    """The statistics of a geospatial column in a row group ("Statistics")."""

    box: Box | None
    """The box of all values. None if there is none."""
    types: Sequence[int]
    """The type codes of the values."""


@dataclass(frozen=True, slots=True)
class GeoColumn:
    """A geospatial column, perhaps inside of others."""

    steps: tuple[int | None, ...]
    """The index of the top-level column, then for each level the index of a field, or None for the
    elements of a list or the entries of a map."""
    edges: str | None
    """The edges of a GEOGRAPHY; None for a GEOMETRY."""

    def find_statistics(self, table: Any) -> GeoStatistics:
        """Return the statistics of the column in a table."""
        tracker = BoxTracker(self.edges)
        first, *steps = self.steps
        for chunk in table.column(first).chunks:
            array: Any = chunk
            for step in steps:
                if step is not None:
                    array = array.flatten()[step]
                elif isinstance(array, pa.MapArray):
                    start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
                    array = array.values.slice(start, end - start)
                else:
                    array = array.flatten()
            tracker.add(array)
        box = tracker.box
        if box is not None and not box.is_valid(geographic=self.edges is not None):
            box = None
        return GeoStatistics(box, tracker.types)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How to write record batches with a schema."""

    schema: pa.Schema
    """The schema that pyarrow writes."""
    conversions: Mapping[int, Convert]
    """The conversions, by the index of the column."""
    annotations: Annotations
    """The annotations to add."""
    unordered: frozenset[int]
    """The leaf columns that must not have a minimum and a maximum, by their index."""
    geospatial: Mapping[int, GeoColumn]
    """The geospatial leaf columns, by their index."""
    key_values: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Key-value metadata that the file needs."""

    @classmethod
    def of(cls, schema: pa.Schema) -> WritePlan:
        """Return the plan for a schema.

        Raises `InvalidDataError` if the metadata of a geospatial column is malformed, and
        `pyarrow.ArrowException` if Parquet cannot hold a column.
        """
        metadata: Any = schema.metadata
        planner = _Planner(metadata or {})
        planned = [planner.plan(each) for each in schema]
        fields = [each for each, _ in planned]
        conversions = {
            index: convert for index, (_, convert) in enumerate(planned) if convert is not None
        }
        storage = pa.schema(fields, metadata=metadata)
        root = _write_empty(storage)
        for index, (node, each) in enumerate(zip(root.children, schema, strict=True)):
            planner.annotate(node, each, (index,))
        leaves = [node for node in _nodes(root) if node.physical is not None]
        indices = {leaf.path: index for index, leaf in enumerate(leaves)}
        return cls(
            storage,
            conversions,
            planner.annotations,
            frozenset(
                index
                for index, leaf in enumerate(leaves)
                if leaf.path in planner.annotations
                and planner.annotations[leaf.path].kind in _WITHOUT_BOUNDS
            ),
            {indices[path]: each for path, each in planner.geospatial.items()},
            planner.key_values,
        )

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch as pyarrow writes it; raise `InvalidDataError` for an impossible value."""
        if not self.conversions:
            return batch
        arrays = [
            self.conversions[index](array, DEFAULT_OPTIONS) if index in self.conversions else array
            for index, array in enumerate(batch.columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def find_statistics(self, table: Any) -> dict[int, GeoStatistics]:
        """Return the statistics of the geospatial columns of a row group, as it is written."""
        return {index: column.find_statistics(table) for index, column in self.geospatial.items()}

    def annotate(
        self, data: bytes, statistics: Sequence[Mapping[int, GeoStatistics]] = ()
    ) -> bytes:
        """Return a footer with all annotations and statistics.

        Raises `InvalidDataError` if the new footer, read back, lacks an annotation or has other
        rows.
        """
        footer = Footer.parse(data)
        changed = data
        elements = list(footer.elements)
        for node in _nodes(footer.root):
            logical = self.annotations.get(node.path, node.logical)
            if logical is not None and (
                logical != node.logical or find_converted_type(logical) != node.converted
            ):
                elements[node.index] = annotate(elements[node.index], logical)
        if elements != list(footer.elements):
            changed = footer.with_elements(elements)
        if self.unordered:
            changed = _change_statistics(changed, self.unordered, statistics)
        if changed != data:
            self._check(data, changed)
        return changed

    def _check(self, former: bytes, changed: bytes) -> None:
        """Read a footer back, and compare it with the former one."""
        nodes = {node.path: node for node in _nodes(Footer.parse(changed).root)}
        for path, logical in self.annotations.items():
            if path not in nodes or nodes[path].logical != logical:
                raise InvalidDataError(f"the annotation {logical} of {path!r} was not written")
        before = pq.read_metadata(pa.BufferReader(wrap_footer(former)))
        after = pq.read_metadata(pa.BufferReader(wrap_footer(changed)))
        if (
            before.num_rows != after.num_rows
            or before.num_row_groups != after.num_row_groups
            or before.metadata != after.metadata
        ):
            raise InvalidDataError("the footer has other rows than before it was annotated")


def _cast(data_type: Any, array: Any, _options: Any) -> Any:
    """Return dates with days of 32 bits. pyarrow's writer drops the bits of later ones.

    Raises `pyarrow.ArrowInvalid` for those.
    """
    return array.cast(data_type)


class _Planner:
    """Plans the fields of a schema."""

    def __init__(self, metadata: Mapping[bytes, bytes]) -> None:
        self._metadata = metadata
        self.annotations: dict[str, LogicalType] = {}
        self.key_values: dict[bytes, bytes] = {}
        self.geospatial: dict[str, GeoColumn] = {}
        """The geospatial columns, by the path of the schema element."""

    def plan(self, column: pa.Field[Any]) -> PlannedField:
        """Return the field that pyarrow writes, and the conversion of its arrays."""
        data_type: Any = column.type
        if is_geospatial(column):
            return _plan_geospatial(column)
        if data_type == pa.month_day_nano_interval():
            return column.with_type(pa.binary(INTERVAL_BYTES)), encode_intervals
        if data_type == pa.date64():
            return column.with_type(pa.date32()), partial(_cast, pa.date32())
        if isinstance(data_type, pa.DictionaryType) and data_type.value_type == pa.date64():
            days = pa.dictionary(data_type.index_type, pa.date32(), data_type.ordered)
            return column.with_type(days), partial(_cast, days)
        if _is_byte_array_decimal(column):
            return column.with_type(pa.binary()), encode_decimals
        if isinstance(data_type, pa.StructType):
            planned = [self.plan(data_type.field(index)) for index in range(data_type.num_fields)]
            new_type: Any = pa.struct([each for each, _ in planned])
            converts = [convert for _, convert in planned]
            if not any(converts):
                return column, None
            return column.with_type(new_type), partial(convert_struct, new_type, converts)
        if isinstance(data_type, pa.MapType):
            key, convert_key = self.plan(data_type.key_field)
            item, convert_item = self.plan(data_type.item_field)
            if convert_key is None and convert_item is None:
                return column, None
            make_map: Any = pa.map_
            new_type = make_map(key, item)
            return column.with_type(new_type), partial(
                convert_map, new_type, convert_key, convert_item
            )
        if not is_list(data_type):
            return column, None
        element, convert = self.plan(column.type.value_field)
        if convert is None:
            return column, None
        new_type = replace_fields(data_type, [element])
        return column.with_type(new_type), partial(convert_list, new_type, convert)

    def annotate(self, node: Node, column: pa.Field[Any], steps: tuple[int | None, ...]) -> None:
        """Find the annotations of a field as it was written, and of the fields in it."""
        data_type: Any = column.type
        logical = self._find_annotation(node, column)
        if logical is not None and logical != node.logical:
            self.annotations[node.path] = logical
        if logical is not None and logical.kind in (Kind.GEOMETRY, Kind.GEOGRAPHY):
            edges = None if logical.kind is Kind.GEOMETRY else logical.edges or "spherical"
            self.geospatial[node.path] = GeoColumn(steps, edges)
        elif isinstance(data_type, pa.StructType):
            for child, index in zip(node.children, range(data_type.num_fields), strict=False):
                self.annotate(child, data_type.field(index), (*steps, index))
        elif isinstance(data_type, pa.MapType):
            key, *items = node.children[0].children
            self.annotate(key, data_type.key_field, (*steps, None, 0))
            for item in items:
                self.annotate(item, data_type.item_field, (*steps, None, 1))
        elif node.kind is Kind.LIST and hasattr(data_type, "value_field"):
            element = node.children[0].children[0]
            self.annotate(element, data_type.value_field, (*steps, None))

    def _find_annotation(self, node: Node, column: pa.Field[Any]) -> LogicalType | None:
        data_type: Any = column.type
        metadata: Mapping[bytes, bytes] = column.metadata or {}
        if is_geospatial(column):
            logical, added = make_logical_type(column, {**self._metadata, **self.key_values})
            self.key_values.update(added)
            return logical
        if data_type == pa.month_day_nano_interval():
            return LogicalType(Kind.INTERVAL)
        if _is_byte_array_decimal(column):
            precision, scale = data_type.precision, data_type.scale
            return LogicalType(Kind.DECIMAL, precision=precision, scale=scale)
        if node.kind is Kind.TIME and node.logical is not None:
            utc = metadata.get(ADJUSTED_TO_UTC) == b"true"
            return LogicalType(Kind.TIME, utc=utc, unit=node.logical.unit)
        mark = metadata.get(LOGICAL_TYPE)
        if mark == b"ENUM" and node.kind is Kind.STRING:
            return LogicalType(Kind.ENUM)
        if mark == b"BSON" and node.physical is not None and node.logical is None:
            return LogicalType(Kind.BSON)
        return None


def read_footer(data: bytes) -> bytes:
    """Return the footer at the end of a file; raise `InvalidDataError` if there is none."""
    size = read_footer_size(data[-TAIL_BYTES:], len(data))
    return data[-TAIL_BYTES - size : -TAIL_BYTES]


def _plan_geospatial(column: pa.Field[Any]) -> PlannedField:
    data_type: Any = column.type
    if not isinstance(data_type, pa.ExtensionType):
        return column, None
    metadata: Any = {
        **(column.metadata or {}),
        NAME_KEY: data_type.extension_name.encode(),
        METADATA_KEY: data_type.__arrow_ext_serialize__(),
    }
    return column.with_type(data_type.storage_type).with_metadata(metadata), (
        lambda array, _options: array.storage
    )


def _is_byte_array_decimal(column: pa.Field[Any]) -> bool:
    metadata: Mapping[bytes, bytes] = column.metadata or {}
    return metadata.get(PHYSICAL_TYPE) == b"BYTE_ARRAY" and pa.types.is_decimal(column.type)


def _write_empty(schema: pa.Schema) -> Node:
    """Return the Parquet schema in which pyarrow writes a schema of Arrow."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    return Footer.parse(read_footer(sink.getvalue().to_pybytes())).root


def _nodes(node: Node) -> list[Node]:
    found: list[Node] = []
    stack = list(reversed(node.children))
    while stack:
        each = stack.pop()
        found.append(each)
        stack.extend(reversed(each.children))
    return found


def _change_statistics(
    data: bytes, unordered: frozenset[int], statistics: Sequence[Mapping[int, GeoStatistics]]
) -> bytes:
    """Return a footer without bounds of columns that have no order, and with boxes."""
    footer = CompactReader(data, max_values=_MAX_VALUES).read_struct()
    for number, group in enumerate(footer[_ROW_GROUPS].content.items):
        chunks: list[Struct] = group[_COLUMNS].content.items
        boxes = statistics[number] if statistics else {}
        for index in unordered:
            metadata: Struct = chunks[index][_COLUMN_METADATA].content
            if _STATISTICS in metadata:
                kept = {n: v for n, v in metadata[_STATISTICS].content.items() if n in _COUNTS}
                metadata[_STATISTICS] = Value(Type.STRUCT, kept)
            if index in boxes:
                metadata[_GEO_STATISTICS] = Value(Type.STRUCT, _encode_statistics(boxes[index]))
    return encode_struct(footer)


def _encode_statistics(statistics: GeoStatistics) -> Struct:
    fields: Struct = {}
    box = statistics.box
    if box is not None:
        sides = (box.xmin, box.xmax, box.ymin, box.ymax, box.zmin, box.zmax, box.mmin, box.mmax)
        fields[1] = Value(
            Type.STRUCT,
            {
                index + 1: Value(Type.DOUBLE, float(side))
                for index, side in enumerate(sides)
                if side is not None
            },
        )
    fields[2] = Value(Type.LIST, ThriftList(Type.I32, list[Any](statistics.types)))
    return fields
