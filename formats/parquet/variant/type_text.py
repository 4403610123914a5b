"""Types to shred Variants as, in text: ``struct<id: int64, tags: list<string>>``."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pyarrow as pa

from ....errors import UsageError

_MAX_DEPTH: Final = 100
_PRIMITIVES: Final[dict[str, Any]] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "time": pa.time64("us"),
    "time64[us]": pa.time64("us"),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[ns]": pa.timestamp("ns"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
    "timestamp[ns, UTC]": pa.timestamp("ns", "UTC"),
    "binary": pa.binary(),
    "string": pa.string(),
    "uuid": pa.uuid(),
    "variant": pa.null(),
}
_DECIMAL: Final = re.compile(r"decimal(?:128)?\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_PRIMITIVE: Final = re.compile(r"\s*([a-z0-9]+(?:\[[^\]]*\]|\([^)]*\))?)\s*")
_NAME: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^\s:<>,"][^:<>,"]*)\s*:')
_OPEN: Final = re.compile(r"\s*(struct|list)\s*<")


def parse_type(text: str) -> Any:
    """Return the type that a text names.

    ``struct<NAME: TYPE, …>`` is for objects, ``list<TYPE>`` for arrays, and ``variant`` for values
    that stay encoded. A name with one of ``:<>,`` or a space at an end is in double quotes, as in
    JSON.

    Raises
    ------
    UsageError
        If the text is malformed, or names a type that Variants do not have.
    """
    parser = _Parser(text)
    found = parser.read_type(0)
    if parser.position < len(text):
        raise parser.expected("the end")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0

    def read_type(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise UsageError(f"a Variant is nested at most {_MAX_DEPTH} deep")
        opening = self._take(_OPEN)
        if opening is None:
            return self._read_primitive()
        if opening[1] == "list":
            element = self.read_type(depth + 1)
            self._require(">")
            return pa.list_(element)
        fields: list[Any] = []
        while True:
            name = self._take(_NAME)
            if name is None:
                raise self.expected("the name of a field and a colon")
            fields.append(pa.field(self._unquote(name[1]), self.read_type(depth + 1)))
            if self._take(re.compile(r"\s*>\s*")) is not None:
                return pa.struct(fields)
            self._require(",")

    def expected(self, what: str) -> UsageError:
        """Return an error that names the position."""
        rest = self._text[self.position : self.position + 20]
        return UsageError(
            f"the type {self._text[:200]!r} is malformed: expected {what} at {rest!r}; write a "
            "type such as struct<id: int64, tags: list<string>>"
        )

    def _read_primitive(self) -> Any:
        start = self.position
        match = self._take(_PRIMITIVE)
        if match is not None:
            name = re.sub(r"\[\s*(us|ns)\s*,\s*(?:tz\s*=\s*)?UTC\s*\]", r"[\1, UTC]", match[1])
            decimal = _DECIMAL.fullmatch(name)
            if decimal is not None:
                precision, scale = int(decimal[1]), int(decimal[2])
                if 0 < precision <= 38 and scale <= precision:
                    return pa.decimal128(precision, scale)
            elif name.removesuffix("[day]") in _PRIMITIVES:
                return _PRIMITIVES[name.removesuffix("[day]")]
        self.position = start
        names = ", ".join([*_PRIMITIVES, "decimal(9, 2)", "struct<…>", "list<…>"])
        raise self.expected(f"one of {names}")

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def _require(self, mark: str) -> None:
        if self._take(re.compile(rf"\s*{mark}\s*")) is None:
            raise self.expected(repr(mark))

    def _unquote(self, text: str) -> str:
        if not text.startswith('"'):
            return text.strip()
        try:
            return str(json.loads(text))
        except ValueError:
            raise self.expected(f"a name that is a JSON string, not {text}, before") from None
