"""Filters: the rows that a reader requests, as a Substrait extended expression.

The expression refers to fields by number, in its own schema. That schema names its fields, and
the names connect it to the columns of the dataset. Fields that the expression does not use need
not exist in the dataset.

A short expression can take any amount of memory and time. So the memory for each row is
estimated from the expression, and a batch is evaluated in slices whose estimates stay within a
constant. The processor time of all slices is added up.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ExhaustedError, InvalidDataError, InvalidRequestError
from ...formats.arrow.truncation import needs_truncation, truncate
from ...formats.parquet.geo.conditions import MARK, BoxCondition, decode_conditions, find_edges
from .suggestions import suggest_names

EVALUATION_BYTES = 32 << 20
"""The largest size of the values that one evaluation may compute, in bytes, as estimated."""
_NUMBER_BYTES = 16
"""The size of most numbers and times, in bytes."""
_BOOLEANS_PER_BYTE = 4
"""Each has a bit for its value and a bit for its validity."""
_LIST_FACTOR = 8
"""The largest ratio of the size of a list literal in memory to its size in the message."""
_MAX_COMPARISONS = 100_000
"""The largest number of calls that pruning evaluates. Each takes about 10 µs."""
_SECONDS_PER_ROW = 1e-7
_SECONDS_PER_BYTE = 1e-9

# Text in a literal may match as well. It makes an estimate larger, never smaller.
_CALL = re.compile(r"(?<!\w)(\w*)\(")
_FIELD_NUMBER = re.compile(r"FieldPath\((\d+)")
_FIXED_WIDTH = re.compile(r"(?:fixed_size_binary\[|length:)(\d+)")
_TRUTH_OF_NAN = re.compile(r"(?<!FieldPath)(?<=\w)\(|!=")
# The extension of Arrow's own functions. Some of them take any amount of memory or time, so
# filters may only use the functions of Substrait.
_ARROW_EXTENSION = b"substrait_simple_extension_function"
_MAX_REASON = 200
_BOOLEAN = frozenset(
    (
        *("", "ends_with", "invert", "is_finite", "is_nan", "is_null", "is_valid"),
        *("match_substring", "starts_with", "xor"),
    )
)
"""Functions that return booleans. Comparisons, ``and`` and ``or`` have no name."""
_NUMERIC = frozenset(
    (
        *("abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh"),
        *("bit_wise_and", "bit_wise_not", "bit_wise_or", "bit_wise_xor", "ceil", "cos", "cosh"),
        *("day", "divide", "exp", "floor", "ln", "log10", "log1p", "log2", "logb", "month"),
        *("multiply", "negate", "power", "round", "sign", "sin", "sinh", "sqrt", "subtract"),
        *("tan", "tanh", "year"),
    )
)
"""Functions that return numbers."""


@dataclass(frozen=True, slots=True)
class FilterCost:
    """An estimate of what the functions of an expression return, all together."""

    calls: int
    """The number of calls."""
    fixed_bytes: int
    """The size of the results of fixed size for one row, in bytes."""
    copying_calls: int
    """The number of calls whose results may be as large as all fields and literals together."""
    fields: Mapping[int, int]
    """For each field number, the number of references to it."""
    literal_bytes: int
    """The size of all literals, in bytes."""

    @classmethod
    def estimate(cls, expression: str, message_bytes: int) -> FilterCost:
        """Estimate the cost of an expression, whose Substrait message also holds its literals.

        Examples
        --------
        >>> cost = FilterCost.estimate('(coalesce(FieldPath(1), "abc") == "abc")', 100)
        >>> cost.calls, cost.copying_calls, cost.fields, cost.literal_bytes
        (2, 1, {1: 1}, 100)
        """
        fields: dict[int, int] = {}
        for number in _FIELD_NUMBER.findall(expression):
            fields[int(number)] = fields.get(int(number), 0) + 1
        booleans = numbers = copying = 0
        for call in _CALL.findall(expression):
            name = call.removesuffix("_checked")
            if name in _BOOLEAN:
                booleans += 1
            elif name in _NUMERIC:
                numbers += 1
            elif name != "FieldPath":
                copying += 1
        calls = booleans + numbers + copying
        fixed = numbers * _NUMBER_BYTES + -(-booleans // _BOOLEANS_PER_BYTE)
        fixed += (copying + 1) * sum(map(int, _FIXED_WIDTH.findall(expression)))
        literal_bytes = message_bytes * (_LIST_FACTOR if "list<" in expression else 1)
        return cls(calls, fixed, copying, fields, literal_bytes)

    def allows_pruning(self, ranges: int) -> bool:
        """Return whether the expression is cheap enough to compare it with ranges of values."""
        return self.calls * ranges <= _MAX_COMPARISONS

    def nbytes(self, rows: int, columns: Mapping[int, Any]) -> int:
        """Return the estimated size of all results, in bytes."""
        if not self.copying_calls:
            return rows * self.fixed_bytes
        values = sum(
            references * columns[number].nbytes
            for number, references in self.fields.items()
            if number in columns
        )
        return rows * self.fixed_bytes + self.copying_calls * (values + rows * self.literal_bytes)


def cast_bytes(array: Any, data_type: Any) -> int:
    """Return an upper bound for the size of an array after a cast, in bytes.

    Only casts that may make an array much larger count: those that repeat the values of a
    dictionary or of runs, and those to a type with a large fixed width.
    """
    width = sum(map(int, _FIXED_WIDTH.findall(str(data_type))))
    if pa.types.is_dictionary(array.type):
        width += _widest_value(array.dictionary)
    elif pa.types.is_run_end_encoded(array.type):
        width += _widest_value(array.values)
    return len(array) * width


def _widest_value(values: Any) -> int:
    """Return the size of the largest value of an array in bytes, or more."""
    try:
        return pc.max(pc.binary_length(values)).as_py() or 0
    except pa.ArrowNotImplementedError:
        try:
            return values.type.bit_width // 8 + 1
        except ValueError:
            return values.nbytes


class ProcessorTime:
    """The processor time that the filter of one stream may use.

    The time grows with the data, by a second for each ten million rows or GB, so that a cheap
    filter may run over any number of rows.
    """

    def __init__(self, seconds: float, stream: str) -> None:
        self._seconds = seconds
        self._left = seconds
        self._stream = stream
        self._started = 0.0

    def start(self) -> None:
        """Begin to measure the calling thread."""
        self._started = time.thread_time()

    def spend(self, rows: int, nbytes: int) -> None:
        """Count the time since the last call, in which data of this size was evaluated.

        Raises `ExhaustedError` if the stream has used more time than it may.
        """
        now = time.thread_time()
        self._left += rows * _SECONDS_PER_ROW + nbytes * _SECONDS_PER_BYTE - (now - self._started)
        self._started = now
        if self._left < 0:
            raise ExhaustedError(
                f"the filter took more than {self._seconds:g} s of processor time; use a simpler "
                "filter, read fewer rows, or start the server with a larger filter_seconds",
                stream=self._stream,
            )


class BoxTest(NamedTuple):
    """A condition on the bounding boxes of a column."""

    column: int
    """The index of the column in the dataset."""
    condition: BoxCondition
    """The condition."""
    edges: str | None
    """The edges of a GEOGRAPHY; None for a GEOMETRY."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter, matched with the columns of a dataset."""

    expression: Any
    """The expression (``pyarrow.compute.Expression``). It refers to fields by number. None if
    there are only `boxes`."""
    fields: Mapping[int, int]
    """For each field number in the expression, the index of the column in the dataset."""
    types: Sequence[Any]
    """For each field number, the type that the expression expects (``pyarrow.DataType``)."""
    dataset: str
    """The dataset's name, for errors."""
    cost: FilterCost
    """The estimated cost of the expression."""
    processor_time: ProcessorTime
    """The processor time that the filter may use."""
    boxes: tuple[BoxTest, ...] = ()
    """Conditions on bounding boxes, which must hold, too."""

    @property
    def may_hold_for_nan(self) -> bool:
        """Whether the expression may be true for a NaN, which statistics leave out.

        Comparisons are false for it, except for ``!=``. Of functions, nothing is known.
        """
        return _TRUTH_OF_NAN.search(str(self.expression)) is not None

    @classmethod
    def resolve(
        cls, text: str, schema: pa.Schema, dataset: str, *, seconds: float = 10.0
    ) -> RowFilter:
        """Parse a filter, and match it with the columns of a dataset.

        `seconds` is for `ProcessorTime`. Raises `InvalidRequestError` if the filter is malformed,
        is not exactly one boolean expression, refers to a missing column, or does not fit the types
        of the columns. Raises `ExhaustedError` as `check` does.
        """
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise InvalidRequestError("the filter is not valid base64url", stream=dataset) from None
        if data.startswith(MARK):
            return cls._resolve_boxes(data, schema, dataset, seconds)
        if _ARROW_EXTENSION in data:
            raise InvalidRequestError(
                "the filter calls a function that is not a standard Substrait function",
                stream=dataset,
            )
        expression, expected = _parse_expression(data, dataset)
        names = expected.names
        cost = FilterCost.estimate(str(expression), len(data))
        fields = {
            number: _find_column(schema, names[number], dataset)
            for number in sorted(cost.fields)
            if number < len(names)
        }
        time = ProcessorTime(seconds, dataset)
        row_filter = cls(expression, fields, expected.types, dataset, cost, time)
        row_filter.check(schema)
        return row_filter

    @classmethod
    def _resolve_boxes(
        cls, data: bytes, schema: pa.Schema, dataset: str, seconds: float
    ) -> RowFilter:
        try:
            conditions, text = decode_conditions(data)
            columns = [_find_column(schema, each.column, dataset) for each in conditions]
            boxes = tuple(
                BoxTest(column, condition, find_edges(schema.field(column)))
                for column, condition in zip(columns, conditions, strict=True)
            )
        except InvalidDataError as error:
            raise InvalidRequestError(error.message, stream=dataset) from None
        if text is not None:
            row_filter = cls.resolve(text, schema, dataset, seconds=seconds)
            return replace(row_filter, boxes=boxes + row_filter.boxes)
        cost = FilterCost.estimate("true", 0)
        time = ProcessorTime(seconds, dataset)
        return cls(None, {}, (), dataset, cost, time, boxes)

    @property
    def columns(self) -> frozenset[int]:
        """The columns of the dataset that the filter refers to, as indices."""
        return frozenset((*self.fields.values(), *(test.column for test in self.boxes)))

    @property
    def uses_dataset_numbers(self) -> bool:
        """Whether each field number is the index of the column in the dataset."""
        return all(number == column for number, column in self.fields.items())

    def skip_columns(self, columns: range) -> RowFilter:
        """Return the filter for a dataset without some columns, to which it does not refer."""

        def move(column: int) -> int:
            return column if column < columns.start else column - len(columns)

        fields = {number: move(column) for number, column in self.fields.items()}
        boxes = tuple(test._replace(column=move(test.column)) for test in self.boxes)
        return replace(self, fields=fields, boxes=boxes)

    def check(self, schema: pa.Schema) -> None:
        """Check that the filter yields booleans for batches with this schema.

        Raises `InvalidRequestError` if it does not, and `ExhaustedError` if it takes too much
        memory or processor time for a single row.
        """
        try:
            columns = {column: pa.nulls(1, schema.field(column).type) for column in self.columns}
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRequestError(
                f"the filter refers to a column whose type it cannot read: {_shorten(error)}",
                stream=self.dataset,
            ) from None
        mask = self._evaluate(columns, 1)
        if not pa.types.is_boolean(mask.type):
            raise InvalidRequestError(
                f"the filter has the type {mask.type}; expected bool", stream=self.dataset
            )

    def apply(self, batch: pa.RecordBatch, columns: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of a batch that pass the filter.

        The columns that the filter refers to must be fully validated. Raises `InvalidRequestError`
        if the expression fails for a value, and `ExhaustedError` if it takes too much memory for a
        single row, or too much processor time.
        """
        arrays: dict[int, Any] = dict(zip(columns, batch.columns, strict=True))
        mask = self._match_boxes(arrays, batch.num_rows) if self.boxes else None
        if self.expression is not None:
            found = self._evaluate(arrays, batch.num_rows)
            mask = found if mask is None else pc.and_(found, mask)
        assert mask is not None
        kept = pc.sum(mask).as_py() or 0
        if kept == batch.num_rows:
            return batch
        if not kept:
            return batch.slice(0, 0)
        filtered = pa.RecordBatch.from_arrays(
            [_filter_array(array, mask) for array in batch.columns], schema=batch.schema
        )
        return truncate(filtered) if needs_truncation(batch.schema) else filtered

    def _evaluate(self, arrays: Mapping[int, Any], rows: int) -> Any:
        """Return the value of the expression for each row, as a chunked array."""
        chunks: list[Any] = []
        self.processor_time.start()
        try:
            for count, inputs in self._slices(arrays, rows):
                chunks += self._evaluate_slice(inputs, count).chunks
                nbytes = sum(array.nbytes for array in inputs.values())
                self.processor_time.spend(count, nbytes)
            return pa.chunked_array(chunks) if chunks else pa.chunked_array([], pa.bool_())
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRequestError(
                f"the filter cannot be applied: {_shorten(error)}", stream=self.dataset
            ) from None

    def _match_boxes(self, arrays: Mapping[int, Any], rows: int) -> Any:
        self.processor_time.start()
        mask: Any = True
        for test in self.boxes:
            array = arrays[test.column]
            mask = test.condition.match(array, test.edges) & mask
            self.processor_time.spend(rows, array.nbytes)
        return pa.array(mask)

    def _slices(self, arrays: Mapping[int, Any], rows: int) -> Iterator[tuple[int, dict[int, Any]]]:
        """Yield the columns by field number, in slices within the budget, and their lengths."""
        start, count = 0, rows
        while start < rows:
            count = min(count, rows - start)
            inputs = self._cast_slice(arrays, start, count)
            if inputs is None or self.cost.nbytes(count, inputs) > EVALUATION_BYTES:
                if count == 1:
                    raise ExhaustedError(
                        "the filter takes more than "
                        f"{EVALUATION_BYTES >> 20} MiB of memory for a single row; use a simpler "
                        "filter or shorter literals",
                        stream=self.dataset,
                    )
                count = (count + 1) // 2
                continue
            yield count, inputs
            start += count
            count *= 2

    def _cast_slice(
        self, arrays: Mapping[int, Any], start: int, count: int
    ) -> dict[int, Any] | None:
        """Return a slice of the columns with the types of the fields; None if it is too large."""
        slices = {
            number: arrays[column].slice(start, count) for number, column in self.fields.items()
        }
        size = sum(
            cast_bytes(array, self.types[number])
            for number, array in slices.items()
            if array.type != self.types[number]
        )
        if size > EVALUATION_BYTES:
            return None
        return {
            number: array if array.type == self.types[number] else array.cast(self.types[number])
            for number, array in slices.items()
        }

    def _evaluate_slice(self, inputs: Mapping[int, Any], rows: int) -> Any:
        from pyarrow import acero

        names = [str(number) for number in range(len(self.types))]
        columns = [inputs.get(number) for number in range(len(self.types))]
        nothing = pa.nulls(rows)
        table = pa.Table.from_arrays([nothing if c is None else c for c in columns], names=names)
        steps = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([self.expression], ["mask"])),
        ]
        return acero.Declaration.from_sequence(steps).to_table(use_threads=False).column(0)


def _parse_expression(data: bytes, dataset: str) -> tuple[Any, pa.Schema]:
    """Return the expression in a Substrait message, and the schema that it refers to."""
    import pyarrow.substrait as substrait

    try:
        message: Any = substrait.deserialize_expressions(data)
        expressions: list[Any] = list(message.expressions.values())
        schema: pa.Schema = message.schema
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise InvalidRequestError(
            f"the filter is not a Substrait extended expression: {_shorten(error)}", stream=dataset
        ) from None
    if len(expressions) != 1:
        raise InvalidRequestError(
            f"the filter has {len(expressions)} expressions; expected one", stream=dataset
        )
    return expressions[0], schema


def _find_column(schema: pa.Schema, name: str, dataset: str) -> int:
    indices = schema.get_all_field_indices(name)
    if not indices:
        raise InvalidRequestError(
            f"the filter refers to the column {name!r}, which the dataset does not have"
            f"{suggest_names(name, schema.names)}",
            stream=dataset,
        )
    if len(indices) > 1:
        raise InvalidRequestError(
            f"the filter refers to the column {name!r}, but {len(indices)} columns have that name",
            stream=dataset,
        )
    return indices[0]


def _filter_array(array: Any, mask: Any) -> Any:
    """Return the values of an array where a mask is true."""
    flat: Any = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
    try:
        return array.filter(flat)
    except pa.ArrowNotImplementedError:
        # Arrow cannot filter views and run-end encoded arrays, but it can slice and join them.
        return pa.concat_arrays(_slice_selected(array, pc.indices_nonzero(flat).to_pylist()))


def _slice_selected(array: Any, indices: list[int]) -> list[Any]:
    """Return one slice for each run of consecutive indices. There is at least one index."""
    slices: list[Any] = []
    begin = end = indices[0]
    for index in indices:
        if index != end:
            slices.append(array.slice(begin, end - begin))
            begin = index
        end = index + 1
    slices.append(array.slice(begin, end - begin))
    return slices


def _shorten(error: BaseException) -> str:
    """Return the first line of an error's text that is not debugging output."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if "debugproto" not in line]
    return (useful or [type(error).__name__])[0].rstrip(".")[:_MAX_REASON]
