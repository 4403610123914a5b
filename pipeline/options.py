"""The options of the data source: typed access to the strings that Spark passes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from ..errors import UsageError
from ..transport.tls_options import TlsOptions

TOKEN_VARIABLE = "SPLITARROW_TOKEN"
"""The environment variable that the option ``token`` defaults to."""
TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_UNIT_SHIFTS = {"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30}


class Options:
    """The options of a read or a write. Their names are case-insensitive.

    Every method treats an empty value like a missing option, and raises `UsageError` if a value
    has another form than the method describes.

    Raises `UsageError` if an option is not supported.
    """

    def __init__(self, values: Mapping[str, str], supported: Iterable[str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}
        names = list(supported)
        for name in self._values:
            if name not in names:
                close = get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(names)}"
                raise UsageError(f"splitarrow has no option {name!r}; {hint}")

    def text(self, name: str) -> str | None:
        """Return an option unchanged, or None if it is not set."""
        return self._values.get(name) or None

    def require(self, name: str, example: str) -> str:
        """Return an option that must be set.

        Raises `UsageError` if it is not set. The message shows the example.
        """
        value = self.text(name)
        if value is None:
            raise UsageError(f"the option {name!r} is missing; set .option({name!r}, {example!r})")
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return an option that is one of a few words, in lower case."""
        value = (self.text(name) or default).lower()
        words = list(choices)
        if value not in words:
            raise UsageError(f"option {name!r} is {value!r}; it must be one of {', '.join(words)}")
        return value

    def count(self, name: str, *, minimum: int = 1) -> int | None:
        """Return an option that is an integer, or None if it is not set."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value.replace("_", ""))
        except ValueError:
            raise UsageError(f"option {name!r} is {value!r}; it must be an integer") from None
        if number < minimum:
            raise UsageError(f"option {name!r} is {number}; it must be at least {minimum}")
        return number

    def nbytes(self, name: str, default: int | None = None) -> int | None:
        """Return an option that is a size, such as ``64MiB``, in bytes."""
        value = self.text(name)
        return default if value is None else parse_bytes(value, f"option {name!r}")

    def seconds(self, name: str) -> float | None:
        """Return an option that is a positive duration in seconds, or None if it is not set."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise UsageError(
                f"option {name!r} is {value!r}; it must be a positive number of seconds"
            )
        return number

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is ``true`` or ``false``."""
        value = (self.text(name) or str(default)).lower()
        if value not in (*_TRUE, *_FALSE):
            raise UsageError(f"option {name!r} is {value!r}; it must be true or false")
        return value in _TRUE

    def names(self, name: str) -> list[str] | None:
        """Return an option that is a list of names, or None if it is not set."""
        value = self.text(name)
        return None if value is None else parse_names(value, f"option {name!r}")

    def token(self) -> str | None:
        """Return the token: the option, or else the environment variable, or else None."""
        return self.text("token") or os.environ.get(TOKEN_VARIABLE) or None

    def tls(self) -> TlsOptions | None:
        """Return the TLS options, or None if none of them is set."""
        ca, cert, key, server_name = (self.text(name) for name in TLS_OPTIONS)
        if not any((ca, cert, key, server_name)):
            return None
        return TlsOptions(ca, cert, key if cert else None, server_name)


def parse_names(value: str, subject: str) -> list[str]:
    """Return the names in a list, which is separated by commas or a JSON array.

    Raises `UsageError` if the list is empty, or is not a JSON array of strings although it begins
    with ``[``.

    Examples
    --------
    >>> parse_names("a, b", "columns"), parse_names('["a,b"]', "columns")
    (['a', 'b'], ['a,b'])
    """
    if value.lstrip().startswith("["):
        try:
            items: Any = json.loads(value)
        except ValueError:
            items = None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise UsageError(f"{subject} is {value!r}; it must be a JSON array of strings")
        names = [str(item) for item in items]
    else:
        names = [item.strip() for item in value.split(",") if item.strip()]
    if not names:
        raise UsageError(f"{subject} is {value!r}; it must contain at least one name")
    return names


def parse_bytes(value: str, subject: str) -> int:
    """Return a size in bytes.

    Raises `UsageError` if the value is not a size, or is less than one byte.

    Examples
    --------
    >>> parse_bytes("1.5MiB", "size"), parse_bytes("4096", "size")
    (1572864, 4096)
    """
    text = value.strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip()
    try:
        nbytes = int(float(digits) * (1 << _UNIT_SHIFTS[unit]))
    except (ValueError, KeyError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise UsageError(f"{subject} is {value!r}; it must be a size in bytes, such as 64MiB")
    return nbytes
