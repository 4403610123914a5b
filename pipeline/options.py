"""The options of the data source: typed access to the strings that Spark passes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote, urlsplit

from ..client.tokens import TokenSource, parse_token
from ..errors import UsageError
from ..formats.text import parse_size
from ..transport.tls_options import TlsOptions

TOKEN_VARIABLE = "SPLITARROW_TOKEN"
"""The environment variable that the option ``token`` defaults to."""
TOKEN_FILE_VARIABLE = "SPLITARROW_CLIENT_TOKEN_FILE"
"""The environment variable that the option ``token_file`` defaults to."""
TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


class SparkOptions:
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
        """Return an option that is a size, such as ``64MiB``, in bytes; see `parse_size`."""
        value = self.text(name)
        if value is None:
            return default
        try:
            size = parse_size(value)
        except UsageError as error:
            raise UsageError(f"option {name!r}: {error.message}") from None
        if size < 1:
            raise UsageError(f"option {name!r} is {value!r}; it must be at least 1 byte")
        return size

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
        """Return the names in a list, or None if it is not set.

        The list is separated by commas, or a JSON array of strings.
        """
        value = self.text(name)
        if value is None:
            return None
        if value.lstrip().startswith("["):
            try:
                items: Any = json.loads(value)
            except ValueError:
                items = None
            if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
                raise UsageError(
                    f"option {name!r} is {value!r}; it must be a JSON array of strings"
                )
            names = [str(item) for item in items]
        else:
            names = [item.strip() for item in value.split(",") if item.strip()]
        if not names:
            raise UsageError(f"option {name!r} is {value!r}; it must contain at least one name")
        return names

    def arguments(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that have these names, or else their defaults.

        An option has the type of its default: text, seconds (float) or a size in bytes (int).
        """
        parsers = {str: self.text, float: self.seconds, int: self.nbytes}
        found = {name: parsers[type(default)](name) for name, default in defaults.items()}
        return {name: defaults[name] if found[name] is None else found[name] for name in found}

    def token(self) -> TokenSource | None:
        """Return the token: of the options, or else of the environment, or else None."""
        token, path = self.text("token"), self.text("token_file")
        if token is None and path is None:
            token = os.environ.get(TOKEN_VARIABLE) or None
            path = None if token else os.environ.get(TOKEN_FILE_VARIABLE) or None
        return parse_token(token, path)

    def tls(self) -> TlsOptions | None:
        """Return the TLS options, or None if none of them is set."""
        ca, cert, key, server_name = (self.text(name) for name in TLS_OPTIONS)
        if not any((ca, cert, key, server_name)):
            return None
        return TlsOptions(ca, cert, key if cert else None, server_name)


def local_path(path: str) -> str:
    """Return a path, also if Spark's catalog has turned it into a URL."""
    return unquote(urlsplit(path).path) if path.startswith("file:/") else path
