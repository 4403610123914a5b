"""Unsigned tickets: which dataset a reader asks for, and how much of it.

A ticket is a dataset's name in UTF-8, or a JSON object with the fields of `Request`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any

from ..errors import InvalidRequestError

COMPRESSIONS = ("none", "lz4", "zstd")
SIGNED_PREFIX = b"sa1."
"""How a signed ticket begins; to all but its server it is opaque."""
FORMATS = ("arrow", "vortex")
MOST_FILTER_CHARS = 44 << 10
"""The longest filter, as text."""
MOST_VERSION_CHARS = 256
"""The longest version."""
_MOST_ROWS = (1 << 63) - 1
_COUNTS = {"limit": 0, "batch_rows": 1, "offset": 0, "shard": 0}
_LENGTHS = {"filter": MOST_FILTER_CHARS, "version": MOST_VERSION_CHARS}
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+={0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Request:
    """What a reader asks for. It is valid once built."""

    dataset: str
    """The dataset's name in the server's catalog."""
    columns: tuple[str, ...] | None = None
    """The names of the columns to send, in this order; None means all."""
    limit: int | None = None
    """The largest number of rows to send; None means all."""
    batch_rows: int | None = None
    """The largest number of rows in a record batch; None leaves it to the dataset."""
    compression: str | None = None
    """``none``, ``lz4`` or ``zstd``; None leaves the data as it lies."""
    format: str | None = None
    """What the messages hold: ``arrow`` (None means that too) or ``vortex``."""
    filter: str | None = None
    """Which rows to send: a Substrait extended expression, its bytes in base64url; None means all.

    Whoever applies it finds out whether it is one."""
    offset: int | None = None
    """How many rows to leave out at the start, of those that shard and filter leave."""
    shard: int | None = None
    """Which shard of the dataset to send, from 0; None means all."""
    version: str | None = None
    """Which version of the dataset is wanted; None means the one that is there."""

    def __post_init__(self) -> None:
        if not self.dataset or "\0" in self.dataset:
            raise InvalidRequestError("the ticket names no dataset")
        if self.columns is not None and not self.columns:
            raise InvalidRequestError("the ticket asks for no column at all")
        try:
            "".join((self.dataset, *(self.columns or ()), self.version or "")).encode()
        except UnicodeEncodeError:
            raise InvalidRequestError("the ticket holds names that are not Unicode text") from None
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequestError(f"the ticket's {name} is {value}, less than {least}")
            if value is not None and value > _MOST_ROWS:
                raise InvalidRequestError(f"the ticket's {name} does not fit in 64 bits")
        for name, most in _LENGTHS.items():
            length = len(getattr(self, name) or "")
            if length > most:
                raise InvalidRequestError(
                    f"the ticket's {name} has {length} characters, more than {most}"
                )
        if self.version == "":
            raise InvalidRequestError("the ticket's version is empty")
        if self.filter is not None and not _BASE64URL.fullmatch(self.filter):
            raise InvalidRequestError("the ticket's filter is not base64url")
        for name, known in (("compression", COMPRESSIONS), ("format", FORMATS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InvalidRequestError(
                    f"the ticket's {name} is {value!r}; known are {', '.join(known)}"
                )

    @property
    def is_plain(self) -> bool:
        """Whether the dataset is wanted whole and as it lies."""
        return self == Request(self.dataset)

    @classmethod
    def parse(cls, ticket: bytes) -> Request:
        """Read a ticket.

        Raises
        ------
        InvalidRequestError
            If it is not UTF-8, or JSON with fields or values that are not understood.

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
            values: Any = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidRequestError("the ticket begins as JSON but is malformed") from None
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidRequestError(
                f"the ticket has unknown fields: {', '.join(sorted(unknown))}"
            )
        for name, value in values.items():
            if value is None:
                continue
            if name == "columns":
                good = isinstance(value, list) and all(isinstance(item, str) for item in value)  # pyright: ignore[reportUnknownVariableType]
                values[name] = tuple(value) if good else None
            elif name in _COUNTS:
                good = isinstance(value, int) and not isinstance(value, bool)
            else:
                good = isinstance(value, str)
            if not good:
                raise InvalidRequestError(f"the ticket's {name} is {value!r}")
        if values.get("dataset") is None:
            raise InvalidRequestError("the ticket names no dataset")
        return cls(**values)

    def ticket(self) -> bytes:
        """Return the shortest ticket that says this."""
        if self.is_plain and not self.dataset.lstrip().startswith("{"):
            return self.dataset.encode()
        values = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        return json.dumps(values, ensure_ascii=False).encode()
