"""Requests: the contents of unsigned tickets.

An unsigned ticket is the name of a dataset in UTF-8, or a JSON object with the fields of `Request`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple, cast

from ..errors import InvalidRequestError

AUTO = "auto"
"""The compression that the server chooses for the link, and changes while it sends."""
COMPRESSIONS = ("none", "lz4", "zstd", AUTO)
FILE = "file"
"""The format that sends the file of a shard as it is stored, as a column of bytes."""
FORMATS = ("arrow", "vortex", FILE)
SIGNED_PREFIX = b"sa1."
"""The first bytes of a signed ticket. Only the server that issued it can read it."""
MAX_FILTER_CHARS = 44 << 10
"""The largest filter in characters. It leaves room for the other fields in a ticket."""
MAX_VERSION_CHARS = 256
"""The largest version in characters."""
MAX_BATCH_RANGES = 512
"""The largest number of ranges of record batches. They fit in a ticket with the largest filter."""
Span = tuple[int, int]
"""The first item and the one after the last."""
MAX_COUNT = (1 << 63) - 1
"""The largest number of rows."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+={0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Request:
    """A request for the data of a dataset. It is valid once built.

    Raises `InvalidRequestError` if a field has an invalid value.
    """

    dataset: str
    """The name of the dataset in the server's catalog."""
    columns: tuple[str, ...] | None = None
    """The columns, and fields of structs (``st.x``), to send, in this order. None selects all
    columns."""
    limit: int | None = None
    """The largest number of rows to send. None sends all."""
    batch_rows: int | None = None
    """The largest number of rows in a record batch. None leaves it to the dataset."""
    compression: str | None = None
    """The compression of bodies: ``none``, ``lz4``, ``zstd`` or ``auto``. None sends them
    unchanged."""
    format: str | None = None
    """The format of the messages: ``arrow``, which is the default, ``vortex``, or ``file``, which
    is the file of a shard of a published dataset, as a column of bytes."""
    filter: str | None = None
    """The rows to send: a Substrait extended expression, or bounding boxes in JSON, in base64url.
    None selects all. The filter is not parsed here."""
    offset: int | None = None
    """The number of rows to skip, after shard and filter were applied."""
    shard: int | None = None
    """The index of the shard to send. None sends all."""
    version: str | None = None
    """The version of the dataset. None is the current one."""
    batches: Span | tuple[Span, ...] | None = None
    """The first stored record batch or row group to send, and the one after the last, counted from
    0 in the shard or else in the dataset; or several such ranges in ascending order. They are
    selected before the filter. None selects all."""
    rows: Span | None = None
    """Like a range of `batches`, but in rows. At most one of the two is given."""
    current: bool | None = None
    """Whether the server has to refuse once the version is not the current one any more."""

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not rule.has_type(value):
                raise InvalidRequestError(f"the ticket's {name} has the invalid value {value!r}")
            if problem := rule.find_problem(name, value):
                raise InvalidRequestError(f"the ticket {problem}")

    @property
    def selects_span(self) -> bool:
        """Whether the request is for some record batches, or for some rows by their numbers."""
        return self.batches is not None or self.rows is not None

    @property
    def batch_ranges(self) -> tuple[Span, ...] | None:
        """The ranges of record batches, also if there is only one; None selects all."""
        return None if self.batches is None else _list_ranges(self.batches)

    @property
    def is_plain(self) -> bool:
        """Whether the request is for the whole dataset, unchanged."""
        return self == Request(self.dataset)

    @classmethod
    def parse(cls, ticket: bytes) -> Request:
        """Parse an unsigned ticket.

        Raises `InvalidRequestError` if it is not UTF-8, is malformed JSON, or has an unknown field
        or an invalid value.

        Examples
        --------
        >>> Request.parse(b"flights").dataset
        'flights'
        >>> Request.parse(b'{"dataset": "flights", "columns": ["delay"]}').columns
        ('delay',)
        """
        try:
            text = ticket.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError("the ticket is not UTF-8") from None
        if not text.lstrip().startswith("{"):
            return cls(text)
        try:
            values: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidRequestError("the ticket begins as JSON but is malformed") from None
        unknown = sorted(values.keys() - _RULES.keys())
        if unknown:
            raise InvalidRequestError(f"the ticket has unknown fields: {', '.join(unknown)}")
        if values.get("dataset") is None:
            raise InvalidRequestError("the ticket names no dataset")
        return cls(**{name: _freeze(value) for name, value in values.items()})

    def ticket(self) -> bytes:
        """Return the shortest ticket for this request."""
        if self.is_plain and not self.dataset.lstrip().startswith("{"):
            return self.dataset.encode()
        values = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        return json.dumps(values, ensure_ascii=False).encode()


def _freeze(value: Any, depth: int = 2) -> Any:
    """Return a JSON value with tuples in place of lists, down to lists in a list."""
    if not depth or not isinstance(value, list):
        return value
    return tuple(_freeze(item, depth - 1) for item in cast("list[Any]", value))


class _Rule(NamedTuple):
    """A rule for one field."""

    has_type: Callable[[Any], bool]
    """Returns whether a value has the type of the field."""
    find_problem: Callable[[str, Any], str | None]
    """Takes the name of the field and a value of that type. Returns what is wrong with the value,
    to follow "the ticket", or None if the value is valid."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_list(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)  # pyright: ignore[reportUnknownVariableType]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_range(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_integer, value))  # pyright: ignore[reportUnknownArgumentType]


def _is_ranges(value: Any) -> bool:
    """Return whether a value is a range, or has one or more ranges."""
    if not isinstance(value, tuple) or not value:
        return False
    return _is_range(value) or all(map(_is_range, value))  # pyright: ignore[reportUnknownArgumentType]


def _list_ranges(value: Span | tuple[Span, ...]) -> tuple[Span, ...]:
    return cast("Any", value if isinstance(value[0], tuple) else (value,))


def _check_dataset(field: str, name: str) -> str | None:
    return _check_unicode(field, name) if name and "\0" not in name else "names no dataset"


def _check_columns(field: str, columns: tuple[str, ...]) -> str | None:
    return _check_unicode(field, "".join(columns)) if columns else "selects no columns"


def _check_range(field: str, span: tuple[int, int]) -> str | None:
    first, end = span
    if not 0 <= first <= end:
        return f"has the {field} {first}:{end}; the first must be 0 or more and at most the end"
    return None if end <= MAX_COUNT else f"has a value of {field} that does not fit in 64 bits"


def _check_ranges(field: str, value: Span | tuple[Span, ...]) -> str | None:
    ranges = _list_ranges(value)
    if len(ranges) > MAX_BATCH_RANGES:
        return f"has {len(ranges)} ranges of {field}; the limit is {MAX_BATCH_RANGES}"
    for span in ranges:
        if problem := _check_range(field, span):
            return problem
    for (first, end), (second_first, second_end) in pairwise(ranges):
        if second_first < end:
            return (
                f"has the {field} {second_first}:{second_end} after {first}:{end}; the ranges must "
                "be in ascending order and must not overlap"
            )
    return None


def _check_version(field: str, version: str) -> str | None:
    if not version:
        return f"has an empty {field}"
    return _check_length(field, version, MAX_VERSION_CHARS) or _check_unicode(field, version)


def _check_filter(field: str, expression: str) -> str | None:
    if problem := _check_length(field, expression, MAX_FILTER_CHARS):
        return problem
    return None if _BASE64URL.fullmatch(expression) else f"has a {field} that is not base64url"


def _check_unicode(field: str, text: str) -> str | None:
    is_unicode = _SURROGATE.search(text) is None
    return None if is_unicode else f"has a value of {field} that is not Unicode text"


def _check_length(field: str, text: str, limit: int) -> str | None:
    if len(text) > limit:
        return f"has a {field} of {len(text)} characters; the limit is {limit} characters"
    return None


def _count(least: int) -> _Rule:
    def check(field: str, count: int) -> str | None:
        if count < least:
            return f"has the {field} {count}; it must be at least {least}"
        if count > MAX_COUNT:
            return f"has a value of {field} that does not fit in 64 bits"
        return None

    return _Rule(_is_integer, check)


def _choice(choices: tuple[str, ...]) -> _Rule:
    def check(field: str, value: str) -> str | None:
        known = ", ".join(choices)
        return None if value in choices else f"has the {field} {value!r}; known are {known}"

    return _Rule(_is_text, check)


_RULES: Mapping[str, _Rule] = {
    "dataset": _Rule(_is_text, _check_dataset),
    "columns": _Rule(_is_text_list, _check_columns),
    "limit": _count(0),
    "batch_rows": _count(1),
    "compression": _choice(COMPRESSIONS),
    "format": _choice(FORMATS),
    "filter": _Rule(_is_text, _check_filter),
    "offset": _count(0),
    "shard": _count(0),
    "version": _Rule(_is_text, _check_version),
    "batches": _Rule(_is_ranges, _check_ranges),
    "rows": _Rule(_is_range, _check_range),
    "current": _Rule(_is_flag, lambda field, value: None),
}
