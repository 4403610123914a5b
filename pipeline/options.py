"""The options of the data source, as Spark hands them over: text by name, in any case."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from ..errors import UsageError
from ..transport.certificates import TlsOptions

TOKEN_VARIABLE = "SPLITARROW_TOKEN"
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_UNITS = {"k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30}


class Options:
    """Options with their types.

    Parameters
    ----------
    given : mapping
        What the user said.
    known : iterable of str
        The names that there are.

    Raises
    ------
    UsageError
        If there is another one.
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        names = list(known)
        for name in self._given:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
                raise UsageError(f"splitarrow has no option {name!r}{hint}")

    def text(self, name: str) -> str | None:
        """Return an option as it is; None if it is absent or empty."""
        return self._given.get(name) or None

    def needed(self, name: str, example: str) -> str:
        """Return an option that has to be there.

        Raises
        ------
        UsageError
            If it is absent; it shows the example.
        """
        value = self.text(name)
        if value is None:
            raise UsageError(f"say .option({name!r}, {example!r})")
        return value

    def choice(self, name: str, values: Iterable[str], default: str) -> str:
        """Return an option that has one of a few values."""
        value = (self.text(name) or default).lower()
        known = list(values)
        if value not in known:
            raise UsageError(f"option {name!r} is {value!r}; known are {', '.join(known)}")
        return value

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """Return an option that is a whole number."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value.replace("_", ""))
        except ValueError:
            raise UsageError(f"option {name!r} is {value!r}, no whole number") from None
        if number < least:
            raise UsageError(f"option {name!r} is {number}, less than {least}")
        return number

    def nbytes(self, name: str, default: int | None = None) -> int | None:
        """Return an option that is a number of bytes, as in ``64MiB``."""
        value = self.text(name)
        return default if value is None else parse_bytes(value, f"option {name!r}")

    def seconds(self, name: str, default: float) -> float:
        """Return an option that is a time in seconds, more than 0."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise UsageError(f"option {name!r} is {value!r}, no number of seconds")
        return number

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false."""
        value = (self.text(name) or str(default)).lower()
        if value not in (*_TRUE, *_FALSE):
            raise UsageError(f"option {name!r} is {value!r}, neither true nor false")
        return value in _TRUE

    def names(self, name: str) -> list[str] | None:
        """Return an option that is a list of names, with commas or as JSON."""
        value = self.text(name)
        return None if value is None else parse_names(value, f"option {name!r}")

    def token(self) -> str | None:
        """Return the token for the control plane."""
        return self.text("token") or os.environ.get(TOKEN_VARIABLE) or None

    def tls(self) -> TlsOptions | None:
        """Return what is said of TLS; None: what the environment says."""
        given: Any = {name: self.text(f"tls_{name}") for name in TLS_NAMES}
        if not any(given.values()):
            return None
        return TlsOptions(
            given["ca"],
            given["cert"],
            given["key"] if given["cert"] else None,
            given["server_name"],
        )


TLS_NAMES = ("ca", "cert", "key", "server_name")


def parse_names(value: str, what: str) -> list[str]:
    """Return the names in a list with commas, or in a JSON list.

    Raises
    ------
    UsageError
        If there are none.

    Examples
    --------
    >>> parse_names("a, b", "columns"), parse_names('["a,b"]', "columns")
    (['a', 'b'], ['a,b'])
    """
    if value.lstrip().startswith("["):
        try:
            found: Any = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise UsageError(f"{what} is {value!r}, no JSON list of names")
        names = [str(item) for item in found]
    else:
        names = [item.strip() for item in value.split(",") if item.strip()]
    if not names:
        raise UsageError(f"{what} names nothing")
    return names


def parse_bytes(value: str, what: str) -> int:
    """Return a number of bytes.

    Raises
    ------
    UsageError
        If it is none, or 0.

    Examples
    --------
    >>> parse_bytes("1.5MiB", "size"), parse_bytes("4096", "size")
    (1572864, 4096)
    """
    text = value.strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip()
    try:
        shift = 0 if unit in ("", "b") else _UNITS[unit]
        number = int(float(digits) * (1 << shift))
    except (ValueError, KeyError, OverflowError):
        number = 0
    if number < 1:
        raise UsageError(f"{what} is {value!r}, no number of bytes such as 64MiB")
    return number
