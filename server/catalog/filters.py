"""Filters: which rows a reader wants, as a Substrait extended expression.

The expression says which columns it takes by their places in a schema of its own; they are
matched with the dataset's columns by name. Columns that it does not use may be anything there.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidRequestError
from ...formats.arrow.truncation import needs_truncation, truncated
from .names import nearest

_PLACES = re.compile(r"FieldPath\((\d+)")
# Arrow's own functions besides those of Substrait: some take any amount of memory or time.
_FOREIGN = b"substrait_simple_extension_function"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter that fits a dataset."""

    expression: Any
    """The expression (``pyarrow.compute.Expression``); it takes columns by their places."""
    places: Mapping[int, int]
    """For each place that it takes: the column of the dataset."""
    types: Sequence[Any]
    """For all places: the type (``pyarrow.DataType``) that the expression takes there."""
    dataset: str
    """The dataset's name, for errors."""

    @classmethod
    def resolve(cls, text: str, schema: pa.Schema, dataset: str) -> RowFilter:
        """Read a filter and match it with the schema of a dataset.

        Parameters
        ----------
        text : str
            The Substrait extended expression, in base64url.
        schema : pyarrow.Schema
            The dataset's.
        dataset : str
            The dataset's name, for errors.

        Raises
        ------
        InvalidRequestError
            If it is malformed, is not one boolean expression, takes a column that the dataset
            has not, or does not fit the columns.
        """
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise InvalidRequestError("the filter is not base64url", stream=dataset) from None
        if _FOREIGN in data:
            raise InvalidRequestError(
                "the filter calls functions that are none of Substrait's", stream=dataset
            )
        expression, expected = _parsed(data, dataset)
        names = expected.names
        taken = sorted({int(place) for place in _PLACES.findall(str(expression))})
        places = {
            place: _column(schema, names[place], dataset) for place in taken if place < len(names)
        }
        found = cls(expression, places, expected.types, dataset)
        found.check(schema)
        return found

    @property
    def columns(self) -> frozenset[int]:
        """The columns of the dataset that it looks at."""
        return frozenset(self.places.values())

    @property
    def is_in_place(self) -> bool:
        """Whether the columns have the places in the dataset that the expression says."""
        return all(place == column for place, column in self.places.items())

    def check(self, schema: pa.Schema) -> None:
        """Check that it gives a boolean for rows of a schema; raise `InvalidRequestError`."""
        try:
            columns = {column: pa.nulls(1, schema.field(column).type) for column in self.columns}
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRequestError(
                f"the filter takes a column that it cannot look at: {_line(error)}",
                stream=self.dataset,
            ) from None
        mask = self._mask(columns, 1)
        if not pa.types.is_boolean(mask.type):
            raise InvalidRequestError(
                f"the filter gives {mask.type}, not a boolean", stream=self.dataset
            )

    def apply(self, batch: pa.RecordBatch, columns: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of a batch that it keeps.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            What it looks at must be known to be valid.
        columns : sequence of int
            Which columns of the dataset the batch has.

        Raises
        ------
        InvalidRequestError
            If it cannot be applied to the values that there are.
        """
        arrays: dict[int, Any] = dict(zip(columns, batch.columns, strict=True))
        mask = self._mask(arrays, batch.num_rows)
        kept = pc.sum(mask).as_py() or 0
        if kept == batch.num_rows:
            return batch
        if not kept:
            return batch.slice(0, 0)
        filtered = [_filtered(array, mask) for array in batch.columns]
        found = pa.RecordBatch.from_arrays(filtered, schema=batch.schema)
        return truncated(found) if needs_truncation(batch.schema) else found

    def _mask(self, arrays: Mapping[int, Any], rows: int) -> Any:
        """Return which rows it keeps, as a chunked array; `arrays` are columns by their index."""
        from pyarrow import acero

        names = [str(place) for place in range(len(self.types))]
        project = acero.ProjectNodeOptions([self.expression], ["mask"])
        try:
            taken = [
                _as(arrays[self.places[place]], data_type)
                if place in self.places
                else pa.nulls(rows)
                for place, data_type in enumerate(self.types)
            ]
            table = pa.Table.from_arrays(taken, names=names)
            steps = [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
                acero.Declaration("project", project),
            ]
            return acero.Declaration.from_sequence(steps).to_table(use_threads=False).column(0)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRequestError(
                f"the filter cannot be applied: {_line(error)}", stream=self.dataset
            ) from None


def _as(array: Any, data_type: Any) -> Any:
    """Return an array as the type that an expression takes."""
    return array if array.type == data_type else array.cast(data_type)


def _parsed(data: bytes, dataset: str) -> tuple[Any, pa.Schema]:
    """Return the one expression in a message, and the columns that it may take."""
    import pyarrow.substrait as substrait

    try:
        message: Any = substrait.deserialize_expressions(data)
        expressions: list[Any] = list(message.expressions.values())
        schema: pa.Schema = message.schema
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise InvalidRequestError(
            f"the filter is no Substrait extended expression: {_line(error)}", stream=dataset
        ) from None
    if len(expressions) != 1:
        raise InvalidRequestError(
            f"the filter has {len(expressions)} expressions, not one", stream=dataset
        )
    return expressions[0], schema


def _column(schema: pa.Schema, name: str, dataset: str) -> int:
    found = schema.get_all_field_indices(name)
    if not found:
        raise InvalidRequestError(
            f"the filter takes the column {name!r}, which the dataset has not"
            f"{nearest(name, schema.names)}",
            stream=dataset,
        )
    if len(found) > 1:
        raise InvalidRequestError(
            f"the filter takes the column {name!r}, but {len(found)} columns have that name",
            stream=dataset,
        )
    return found[0]


def _filtered(array: Any, mask: Any) -> Any:
    """Return the values of an array where a mask is true."""
    flat: Any = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
    try:
        return array.filter(flat)
    except pa.ArrowNotImplementedError:
        # Views and run ends: put together from the stretches that are kept.
        places: Any = pc.indices_nonzero(flat)
        kept: list[int] = places.to_pylist()
        parts: list[Any] = []
        begin = end = kept[0]
        for place in kept:
            if place != end:
                parts.append(array.slice(begin, end - begin))
                begin = place
            end = place + 1
        parts.append(array.slice(begin, end - begin))
        return pa.concat_arrays(parts)


def _line(error: BaseException) -> str:
    """Return the part of an error's text that says what is wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if "debugproto" not in line]
    return (said or [type(error).__name__])[0].rstrip(".")[:200]
