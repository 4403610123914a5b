"""Fields of Variant columns in Parquet files. Shredded ones are read without the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....formats.parquet.columns import Columns
from ....formats.parquet.shredded_fields import (
    extract_field,
    find_field,
    fit_fields,
    physical_names,
)
from ..query.filters import RowFilter
from ..query.selection import Selection
from .file_dataset import FileContents


def selects_fields(contents: FileContents, selection: Selection) -> bool:
    """Return whether a selection has fields of Variants."""
    own = len(contents.schema) - len(contents.fields)
    if selection.columns is None:
        return bool(contents.fields)
    return any(index >= own for index in selection.columns)


class FieldReader:
    """Reads some columns and some fields of Variants of a file.

    Parameters
    ----------
    contents : FileContents
        The contents, with the fields; see `FileContents.with_fields`.
    selection : Selection
        The columns, of which at least one is a field.

    Attributes
    ----------
    physical_names : list of str
        The names by which pyarrow reads what is needed.
    column_names : list of str
        The columns of the file that have it.
    """

    def __init__(self, contents: FileContents, selection: Selection) -> None:
        self._columns: Columns = contents.plan.columns
        self._schema = contents.schema
        self._selection = selection
        self._fields = fit_fields(contents.fields, self._columns.shredded)
        columns = selection.columns
        indices: Sequence[int] = range(len(contents.schema)) if columns is None else columns
        self._names = [contents.schema.names[index] for index in indices]
        own = [name for name in self._names if name not in self._fields]
        fields = [self._fields[name] for name in self._names if name in self._fields]
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
        arrays: list[Any] = []
        for name in self._names:
            field = self._fields.get(name)
            if field is None:
                arrays.append(self._convert(batch, name))
            elif field.path:
                arrays.append(extract_field(batch.column(field.column), field))
            else:
                arrays.append(find_field(self._convert(batch, field.column), field))
        return pa.RecordBatch.from_arrays(arrays, schema=self._selection.schema)

    def _convert(self, batch: pa.RecordBatch, name: str) -> Any:
        """Return a column of the file as readers get it."""
        column: Any = batch.column(name)
        convert = self._columns.conversions.get(self._columns.schema.get_field_index(name))
        options = self._selection.budget.parquet_options
        return column if convert is None else convert(column, options)

    def select_row_groups(self, metadata: Any) -> list[int]:
        """Return the row groups to read. Statistics rule out those in which the filter is false."""
        selection, row_filter = self._selection, self._selection.filter
        groups = range(metadata.num_row_groups)[selection.first_batch : selection.end_batch]
        if row_filter is None or not row_filter.cost.allows_pruning(len(groups)):
            return list(groups)
        statements = [self._state_ranges(metadata.row_group(group), row_filter) for group in groups]
        return _prune(list(groups), statements, row_filter)

    def _state_ranges(self, row_group: Any, row_filter: RowFilter) -> Any:
        """Return an expression that is true for every row of a row group.

        Statistics of floating-point numbers leave out NaN, so they count only for a filter that is
        false for it.
        """
        statement: Any = pc.scalar(True)
        chunks = {
            row_group.column(index).path_in_schema: row_group.column(index)
            for index in range(row_group.num_columns)
            if index not in self._columns.malformed_statistics
        }
        for number, index in row_filter.fields.items():
            data_type = row_filter.types[number]
            if row_filter.may_hold_for_nan and pa.types.is_floating(data_type):
                continue
            statistics = self._find_statistics(chunks, index)
            if statistics is None or not statistics.has_min_max:
                continue
            try:
                low = pa.scalar(statistics.min, data_type)
                high = pa.scalar(statistics.max, data_type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                continue
            value: Any = pc.field(number)
            # Arrow understands a comparison or a null, but not a range or a null.
            above: Any = (value >= low) | value.is_null()
            statement = statement & above & ((value <= high) | value.is_null())
        return statement

    def _find_statistics(self, chunks: Mapping[str, Any], index: int) -> Any:
        """Return the statistics of a column or field; None if it has none that bound its values.

        Those of a shredded field say nothing of values of other types, so only those of a row group
        in which all values have the type of the field count ("Data Skipping").
        """
        name = self._schema.names[index]
        field = self._fields.get(name)
        if field is None:
            ordered = index not in self._columns.without_order
            return chunks[name].statistics if ordered and name in chunks else None
        typed = chunks.get(f"{field.path}.typed_value")
        if not field.path or typed is None:
            return None
        return typed.statistics if _is_always_null(chunks.get(f"{field.path}.value")) else None


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
