"""The filter of one reader: a tree that is bound to a dataset, and its budget.

A short filter can take any amount of memory and time. So the memory for each row is estimated, and
a batch is evaluated in slices whose estimates stay within a constant. The processor time of all
slices is added up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ExhaustedError, InvalidDataError, InvalidRequestError, UsageError
from ...filters import decode_filter
from ...filters.binding import BoundCall, BoundColumn, bind
from ...filters.evaluation import Cost, evaluate
from ...filters.ranges import Range, may_match
from ...filters.tree import list_columns
from ...formats.arrow.truncation import needs_truncation, truncate

EVALUATION_BYTES = 32 << 20
"""The largest size of the values that one evaluation may compute, in bytes, as estimated."""
_MAX_COMPARISONS = 100_000
"""The largest number of calls that pruning evaluates. Each takes about 5 µs."""
_SECONDS_PER_ROW = 1e-7
_SECONDS_PER_BYTE = 1e-9
_MAX_REASON = 200
_MOST_ROWS = 0.8
"""The share of a batch from which Arrow copies runs of rows faster than single ones."""


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


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter with the types of a dataset."""

    condition: Any
    """The bound condition."""
    dataset: str
    """The dataset's name, for errors."""
    cost: Cost
    """The estimated cost of the condition."""
    processor_time: ProcessorTime
    """The processor time that the filter may use."""

    @classmethod
    def resolve(
        cls, text: str, schema: pa.Schema, dataset: str, *, seconds: float = 10.0
    ) -> RowFilter:
        """Parse a filter, and bind it to the columns of a dataset.

        `seconds` is for `ProcessorTime`. Raises `InvalidRequestError` if the filter is malformed,
        is not a condition, refers to a missing column, or does not fit the types of the columns.
        Raises `ExhaustedError` if it takes too much memory for a single row.
        """
        tree = _decode(text, dataset)
        try:
            condition = bind(tree, schema)
        except UsageError as error:
            raise InvalidRequestError(error.message, stream=dataset) from None
        cost = Cost.estimate(condition)
        row_filter = cls(condition, dataset, cost, ProcessorTime(seconds, dataset))
        row_filter._check_size(1, {})
        return row_filter

    @property
    def columns(self) -> frozenset[int]:
        """The columns of the dataset that the filter refers to, as indices."""
        return frozenset(index for index in self.cost.columns if index >= 0)

    def move_columns(self, find_place: Callable[[int], int]) -> RowFilter:
        """Return the filter for a part of the dataset with other columns, which it only prunes.

        `find_place` returns the new index of a column; -1 if the part does not have it.
        """

        def move(bound: Any) -> Any:
            match bound:
                case BoundColumn(index):
                    return replace(bound, index=find_place(index))
                case BoundCall(arguments=arguments):
                    return replace(bound, arguments=tuple(map(move, arguments)))
                case _:
                    return bound

        condition = move(self.condition)
        return replace(self, condition=condition, cost=Cost.estimate(condition))

    def prune(
        self, parts: Sequence[Any], find_ranges: Callable[[Any], Callable[[int], Range]]
    ) -> list[Any]:
        """Return the parts of a dataset that may have a row for which the filter is true.

        `find_ranges` takes a part, and returns a function from the index of a column to its
        `Range`. If that would take too long, all parts are returned.
        """
        if self.cost.calls * len(parts) > _MAX_COMPARISONS:
            return list(parts)
        return [part for part in parts if may_match(self.condition, find_ranges(part))]

    def apply(self, batch: pa.RecordBatch, columns: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of a batch that pass the filter; errors as for `find_rows`."""
        mask = self.find_rows(batch, columns)
        kept = mask.true_count
        if kept == batch.num_rows:
            return batch
        if not kept:
            return batch.slice(0, 0)
        filtered = _filter_batch(batch, mask, kept)
        return truncate(filtered) if needs_truncation(batch.schema) else filtered

    def find_rows(self, batch: pa.RecordBatch, columns: Sequence[int]) -> Any:
        """Return the value of the condition for each row, as an array; rows with true pass.

        The columns that the filter refers to must be fully validated. Raises `InvalidRequestError`
        if the filter fails for a value, and `ExhaustedError` if it takes too much memory for a
        single row, or too much processor time.
        """
        used = self.columns
        arrays = {
            index: batch.column(place) for place, index in enumerate(columns) if index in used
        }
        masks: list[Any] = []
        self.processor_time.start()
        try:
            for count, inputs in self._slices(arrays, batch.num_rows):
                masks.append(evaluate(self.condition, inputs, count))
                nbytes = sum(array.nbytes for array in inputs.values())
                self.processor_time.spend(count, nbytes)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRequestError(
                f"the filter cannot be applied: {_shorten(error)}", stream=self.dataset
            ) from None
        if not masks:
            return pa.array([], pa.bool_())
        return masks[0] if len(masks) == 1 else pa.concat_arrays(masks)

    def _slices(self, arrays: Mapping[int, Any], rows: int) -> Iterator[tuple[int, dict[int, Any]]]:
        """Yield the columns by their indices, in slices within the budget, and their lengths."""
        start, count = 0, rows
        while start < rows:
            count = min(count, rows - start)
            inputs = {index: array.slice(start, count) for index, array in arrays.items()}
            if self.cost.nbytes(count, inputs) > EVALUATION_BYTES:
                self._check_size(count, inputs)
                count = (count + 1) // 2
                continue
            yield count, inputs
            start += count
            count *= 2

    def _check_size(self, rows: int, inputs: Mapping[int, Any]) -> None:
        if rows == 1 and self.cost.nbytes(1, inputs) > EVALUATION_BYTES:
            raise ExhaustedError(
                f"the filter takes more than {EVALUATION_BYTES >> 20} MiB of memory for a single "
                "row; use a simpler filter or shorter literals",
                stream=self.dataset,
            )


def list_filter_columns(text: str, dataset: str) -> list[str]:
    """Return the names of the columns and fields that a filter refers to.

    Raises `InvalidRequestError` if it is malformed.
    """
    return list_columns(_decode(text, dataset))


def _decode(text: str, dataset: str) -> Any:
    try:
        return decode_filter(text)
    except InvalidDataError as error:
        raise InvalidRequestError(error.message, stream=dataset) from None


def _filter_batch(batch: pa.RecordBatch, mask: Any, kept: int) -> pa.RecordBatch:
    """Return the rows of a batch where a mask is true; `kept` is their number."""
    if kept < _MOST_ROWS * batch.num_rows:
        try:
            return batch.filter(mask)  # which makes indices of the mask once for all columns
        except pa.ArrowNotImplementedError:
            pass
    arrays = [_filter_array(batch.column(place), mask) for place in range(batch.num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _filter_array(array: Any, mask: Any) -> Any:
    """Return the values of an array where a mask is true."""
    try:
        return array.filter(mask)
    except pa.ArrowNotImplementedError:
        # Arrow cannot filter views and run-end encoded arrays, but it can slice and join them.
        return pa.concat_arrays(_slice_selected(array, pc.indices_nonzero(mask).to_pylist()))


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
    """Return the first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:_MAX_REASON]
