"""Shredded fields of Variant columns in Parquet files, read without the rest of the Variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....formats.parquet.columns import Columns
from ....formats.parquet.shredded_fields import ShreddedField, extract_field, physical_names
from ....protocol.request import Request
from ..query.filters import RowFilter
from ..query.selection import Selection
from .file_dataset import FileContents


def add_shredded_fields(contents: FileContents, request: Request) -> tuple[FileContents, Request]:
    """Return contents with the shredded fields as columns, if a request may name one.

    They follow the columns of the file. The request then names all columns to send.
    """
    columns: Columns = contents.plan.columns
    if not columns.shredded:
        return contents, request
    schema = contents.schema
    names = schema.names
    asked = request.columns or ()
    if request.filter is None and not any(name in columns.shredded for name in asked):
        return contents, request
    added = [each.field for each in columns.shredded.values()]
    metadata: Any = schema.metadata
    extended = pa.schema([*schema, *added], metadata)
    chosen = tuple(names) if request.columns is None else request.columns
    return replace(contents, schema=extended), replace(request, columns=chosen)


def selects_shredded(contents: FileContents, selection: Selection) -> bool:
    """Return whether a selection has shredded fields."""
    own = len(contents.plan.columns.schema)
    return selection.columns is not None and any(index >= own for index in selection.columns)


class ShreddedReader:
    """Reads some columns and some shredded fields of a file.

    Parameters
    ----------
    contents : FileContents
        The contents, with the shredded fields; see `add_shredded_fields`.
    selection : Selection
        The columns, of which at least one is a shredded field.

    Attributes
    ----------
    physical_names : list of str
        The names by which pyarrow reads what is needed.
    column_names : list of str
        The columns of the file that have it.
    """

    def __init__(self, contents: FileContents, selection: Selection) -> None:
        assert selection.columns is not None
        self._columns: Columns = contents.plan.columns
        self._schema = contents.schema
        self._selection = selection
        self._names = [contents.schema.names[index] for index in selection.columns]
        own = [name for name in self._names if name not in self._columns.shredded]
        fields = [self._columns.shredded[name] for name in self._names if name not in own]
        parts = [path for each in fields if each.column not in own for path in physical_names(each)]
        self.physical_names = list(dict.fromkeys([*own, *parts]))
        self.column_names = list(dict.fromkeys([*own, *(each.column for each in fields)]))

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected columns of a batch that pyarrow has read.

        Raises
        ------
        InvalidDataError
            If a value is invalid.
        """
        options = self._selection.budget.parquet_options
        arrays: list[Any] = []
        for name in self._names:
            shredded = self._columns.shredded.get(name)
            column: Any = batch.column(name if shredded is None else shredded.column)
            if shredded is not None:
                arrays.append(extract_field(column, shredded))
                continue
            convert = self._columns.conversions.get(self._columns.schema.get_field_index(name))
            arrays.append(column if convert is None else convert(column, options))
        return pa.RecordBatch.from_arrays(arrays, schema=self._selection.schema)

    def select_row_groups(self, metadata: Any) -> list[int]:
        """Return the row groups to read. Statistics rule out those in which the filter is false.

        Statistics of a shredded field say nothing of values of other types, so only those of a row
        group in which all values have the type of the field count ("Data Skipping").
        """
        selection, row_filter = self._selection, self._selection.filter
        groups = range(metadata.num_row_groups)[selection.first_batch : selection.end_batch]
        if row_filter is None or not row_filter.cost.allows_pruning(len(groups)):
            return list(groups)
        used = {
            number: self._columns.shredded[self._schema.names[index]]
            for number, index in row_filter.fields.items()
            if self._schema.names[index] in self._columns.shredded
        }
        if row_filter.may_hold_for_nan:
            used = {
                number: each
                for number, each in used.items()
                if not pa.types.is_floating(each.data_type)
            }
        statements = [_state_ranges(metadata.row_group(group), used) for group in groups]
        return _prune(list(groups), statements, row_filter)


def _prune(groups: list[int], statements: list[Any], row_filter: RowFilter) -> list[int]:
    """Return the row groups for which a filter and a statement about all rows do not contradict.

    Arrow's dataset scanner compares them: each row group stands for a file that is never opened.
    """
    import pyarrow.dataset as ds  # takes a third of a second
    from pyarrow.fs import LocalFileSystem

    fields = pa.schema(
        [(str(number), data_type) for number, data_type in enumerate(row_filter.types)]
    )
    try:
        dataset: Any = ds.FileSystemDataset.from_paths(
            [str(group) for group in groups],
            schema=fields,
            format=ds.IpcFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=statements,
        )
        fragments = list(dataset.get_fragments(filter=row_filter.expression))
    except (pa.ArrowException, ValueError, TypeError):
        return groups  # Arrow cannot compare this expression with ranges
    return sorted(int(fragment.path) for fragment in fragments)


def _state_ranges(row_group: Any, used: Mapping[int, ShreddedField]) -> Any:
    """Return an expression that is true for every row of a row group."""
    statement: Any = pc.scalar(True)
    columns = {
        row_group.column(index).path_in_schema: row_group.column(index)
        for index in range(row_group.num_columns)
    }
    for number, each in used.items():
        typed = columns.get(f"{each.path}.typed_value")
        if typed is None or not _is_always_null(columns.get(f"{each.path}.value")):
            continue
        statistics = typed.statistics
        if statistics is None or not statistics.has_min_max:
            continue
        try:
            low = pa.scalar(statistics.min, each.data_type)
            high = pa.scalar(statistics.max, each.data_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            continue
        value: Any = pc.field(number)
        # Arrow understands a comparison or a null, but not a range or a null.
        above: Any = (value >= low) | value.is_null()
        statement = statement & above & ((value <= high) | value.is_null())
    return statement


def _is_always_null(column: Any) -> bool:
    """Return whether all encoded values are missing, or are the Variant null."""
    if column is None:
        return True
    statistics = column.statistics
    if statistics is None or not statistics.has_null_count:
        return False
    if statistics.null_count == column.num_values:
        return True
    return bool(statistics.has_min_max and statistics.min == statistics.max == b"\0")
