"""The parameters of a read over HTTP, from a query or from JSON, and their description."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa

from ...errors import InvalidRequestError, UsageError
from ...protocol.request import COMPRESSIONS, MAX_FILTER_CHARS, Request
from ..catalog.suggestions import suggest_names
from .formats import FORMATS

_MAX_PARAMETERS = 100
_INTEGER: dict[str, Any] = {"type": "integer", "minimum": 0}
_SPAN: dict[str, Any] = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}
_TEXT: dict[str, Any] = {"type": "string"}
PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "columns": (
        {"type": "array", "items": _TEXT},
        "The columns, and fields of structs such as `st.x`, in this order, with commas between "
        'them. A name with a comma is in double quotes: `"a,b",c`.',
    ),
    "filter": (_TEXT, "The rows: a condition in SQL, such as `fare > 50 and city = 'Rome'`."),
    "substrait": (
        _TEXT,
        "The rows: a condition as Flight tickets of splitarrow have it, in base64url.",
    ),
    "limit": (_INTEGER, "The largest number of rows."),
    "offset": (_INTEGER, "The number of rows to skip, of those that pass the filter."),
    "rows": (_SPAN, "The rows to read before the filter: `1000:2000`, the first and the end."),
    "batches": (
        {"type": "array", "items": _SPAN},
        "The stored record batches or row groups to read: `3:7`, or several with commas.",
    ),
    "shard": (_INTEGER, "The shard to read, counted from 0."),
    "version": (_TEXT, "The version to read, or its number."),
    "batch_rows": (
        {"type": "integer", "minimum": 1},
        "The largest number of rows in a record batch.",
    ),
    "compression": (
        {"type": "string", "enum": [*COMPRESSIONS[:3]]},
        "The compression of the bodies in Arrow's formats.",
    ),
    "format": (
        {"type": "string", "enum": [*FORMATS]},
        "The format; without it, the header `Accept` selects one.",
    ),
}
"""The parameters: their types in JSON, and what they do."""
_SECRETS = {"token", "access_token", "auth", "authorization", "apikey", "api_key", "ticket", "jwt"}
_NUMBER = re.compile("[0-9]{1,19}")
_RANGE = re.compile("([0-9]{1,19}):([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class DataQuery:
    """What a client requests of a dataset."""

    request: Request
    """The request, without its filter and format."""
    filter: str | None = None
    """The filter in SQL."""
    format: str | None = None

    @classmethod
    def of(cls, dataset: str, values: Mapping[str, Any]) -> DataQuery:
        """Return the query of some parameters; raise `InvalidRequestError` if one is wrong."""
        for name in values:
            if name.lower() in _SECRETS:
                raise InvalidRequestError(
                    f"the parameter {name!r} puts a secret into the URL, which proxies and servers "
                    "log: send the token in the header 'Authorization: Bearer TOKEN'"
                )
            if name not in PARAMETERS:
                raise InvalidRequestError(
                    f"there is no parameter {name!r}{suggest_names(name, list(PARAMETERS))}"
                )
        fields = {name: value for name, value in values.items() if value is not None}
        condition, format = fields.pop("filter", None), fields.pop("format", None)
        for name, value in (("filter", condition), ("format", format)):
            if value is not None and not isinstance(value, str):
                raise InvalidRequestError(f"the request's {name} is not text")
        if condition is not None and len(condition) > MAX_FILTER_CHARS:
            raise InvalidRequestError(
                f"the request has a filter of {len(condition)} characters; the limit is "
                f"{MAX_FILTER_CHARS}"
            )
        if "substrait" in fields:
            if condition is not None:
                raise InvalidRequestError("the request has both filter and substrait; send one")
            fields["filter"] = fields.pop("substrait")
        try:
            ticket = json.dumps({"dataset": dataset, **fields}).encode()
            return cls(Request.parse(ticket), condition, format)
        except InvalidRequestError as error:
            message = error.message.replace("the ticket", "the request")
            raise InvalidRequestError(message, stream=dataset) from None

    def bind(self, schema: pa.Schema) -> Request:
        """Return the request with the filter, whose columns and values have the types of a schema.

        Raises `InvalidRequestError` if the filter is malformed, or does not fit the schema.
        """
        if self.filter is None:
            return self.request
        from ...filters import encode_filter

        try:
            return replace(self.request, filter=encode_filter(self.filter, schema))
        except UsageError as error:
            raise InvalidRequestError(error.message, stream=self.request.dataset) from None


def parse_query(query: str) -> dict[str, Any]:
    """Return the values of the parameters in a query; raise `InvalidRequestError` if it is wrong.

    Examples
    --------
    >>> parse_query("columns=fare,%22a,b%22&limit=5&batches=3:7")
    {'columns': ['fare', 'a,b'], 'limit': 5, 'batches': [[3, 7]]}
    """
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except UnicodeDecodeError:
        raise InvalidRequestError("the query is not UTF-8") from None
    except ValueError:
        raise InvalidRequestError(f"the query has more than {_MAX_PARAMETERS} fields") from None
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name in values:
            raise InvalidRequestError(f"the parameter {name!r} is given twice")
        values[name] = _parse_value(name, text)
    return values


def _parse_value(name: str, text: str) -> Any:
    kind = PARAMETERS.get(name, (_TEXT, ""))[0]
    if name == "columns":
        return _parse_names(text)
    if name == "rows":
        return _parse_range(name, text)
    if name == "batches":
        return [_parse_range(name, part) for part in text.split(",")]
    if kind["type"] == "integer":
        if not _NUMBER.fullmatch(text):
            raise InvalidRequestError(f"{name}={text[:50]!r} is not a number of at most 19 digits")
        return int(text)
    return text


def _parse_names(text: str) -> list[str]:
    try:
        lines = list(csv.reader([text], strict=True))
    except csv.Error:
        raise InvalidRequestError(
            f"columns={text[:50]!r}: a name in double quotes does not end"
        ) from None
    return lines[0] if lines else []


def _parse_range(name: str, text: str) -> Sequence[int]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise InvalidRequestError(
            f"{name}={text[:50]!r} is not a range such as 3:7, the first and the end"
        )
    return [int(found[1]), int(found[2])]


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the values of the parameters in a JSON object."""
    try:
        values: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequestError("the body is not valid JSON") from None
    if not isinstance(values, dict):
        raise InvalidRequestError("the body is not a JSON object")
    return values  # pyright: ignore[reportUnknownVariableType]
