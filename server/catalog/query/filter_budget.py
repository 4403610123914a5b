"""The budget of a filter: the memory of one evaluation, and the processor time of a stream.

A filter comes from a reader, and a short expression can take any amount of memory and time. So the
memory for each row is estimated from the expression, and a batch is evaluated in slices whose
estimates stay within a constant. The processor time of all slices is added up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....errors import ExhaustedError

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
        """Estimate the cost of an expression.

        Parameters
        ----------
        expression : str
            The text of the ``pyarrow.compute.Expression``.
        message_bytes : int
            The size of its Substrait message in bytes, which holds the literals.

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
        """Return whether the expression is cheap enough to compare it with ranges of values.

        Parameters
        ----------
        ranges : int
            The number of shards or row groups whose ranges are known.
        """
        return self.calls * ranges <= _MAX_COMPARISONS

    def nbytes(self, rows: int, columns: Mapping[int, Any]) -> int:
        """Return the estimated size of all results, in bytes.

        Parameters
        ----------
        rows : int
            The number of rows.
        columns : mapping of int to pyarrow.Array
            The columns by field number.
        """
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

    Parameters
    ----------
    seconds : float
        The time for the whole stream, in addition to that for the data.
    stream : str
        The dataset's name, for errors.
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

        Raises
        ------
        ExhaustedError
            If the stream has used more time than it may.
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
