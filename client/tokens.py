"""The bearer tokens of callers: fixed ones, and those of functions and files, which change."""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import DeniedError, UsageError
from ..formats.arguments import check_path
from ..transport.credential_files import Reloadable

_log = logging.getLogger("splitarrow.token")

_OPAQUE_SECONDS = 30.0
"""The time for which the token of a function is used if it does not state its expiry."""
_MARGIN_SECONDS = 60.0
"""The longest time before its expiry at which a credential is renewed, in seconds."""
_MARGIN_SHARE = 0.25
"""The share of its lifetime that is left when a short-lived credential is renewed."""
_MAX_FILE_BYTES = 64 << 10


class TokenSource(ABC):
    """The current token of a caller. Any thread may ask for it. It never shows the token.

    Two sources are equal if they have the same token, file or function.
    """

    @abstractmethod
    def current(self) -> str:
        """Return the token to send. This can take as long as the source needs to renew it.

        Raises `UsageError` if the source has no valid token, and never quotes it.
        """

    @abstractmethod
    def reject(self, token: str) -> None:
        """Record that a server refused a token, so that `current` returns another one if it can."""

    @abstractmethod
    def _key(self) -> Hashable:
        """Return what makes the source equal to another one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


Token: TypeAlias = str | Callable[[], str] | TokenSource
"""A bearer token, or a function that returns the current one."""
TokenFile: TypeAlias = str | os.PathLike[str] | None
"""The path of a file that contains the current token."""


def parse_token(token: Token | None, token_file: TokenFile = None) -> TokenSource | None:
    """Return the source for the arguments `token` and `token_file`; None without a token.

    Raises `UsageError` if both are given, or a token is malformed.
    """
    if token is not None and token_file is not None:
        raise UsageError("token and token_file exclude each other")
    if token_file is not None:
        return FileToken(token_file)
    if token is None or isinstance(token, TokenSource):
        return token
    if isinstance(token, str):
        return FixedToken(token)
    if not callable(token):
        raise UsageError(
            f"token has the type {type(token).__name__}; expected a str, or a function that "
            "returns one"
        )
    return FunctionToken(token)


def check_token(token: str) -> str:
    """Return a token without the white space around it; raise `UsageError` without quoting it."""
    token = token.strip()  # that of a file ends with a newline
    if "\n" in token or "\r" in token:
        raise UsageError("the token has a newline in the middle; give one token, on one line")
    if not (token and token.isascii() and token.isprintable()):
        raise UsageError("the token must be printable ASCII")
    return token


def renew_token(source: TokenSource | None, refused: str | None, error: DeniedError) -> str:
    """Return another token than one that a server has refused.

    Raises the error of the server if the source has no other, or the error has another reason.
    """
    if source is None or refused is None or error.code != "UNAUTHENTICATED":
        raise error
    source.reject(refused)
    renewed = source.current()
    if renewed == refused:
        raise error
    return renewed


class FixedToken(TokenSource):
    """A token that does not change."""

    def __init__(self, token: str) -> None:
        self._token = check_token(token)

    def current(self) -> str:
        """Return the token."""
        return self._token

    def reject(self, token: str) -> None:
        """Do nothing."""

    def _key(self) -> Hashable:
        return self._token


class FunctionToken(TokenSource):
    """The tokens that a function returns.

    A JSON Web Token is used until shortly before its expiry, and any other token for a short time.
    The errors of the function leave `current` unchanged.
    """

    def __init__(
        self, function: Callable[[], str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._function = function
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._renewed = self._ends = 0.0
        """The times at which the token was returned, and from which on it is not used."""

    def current(self) -> str:
        """Return the token of the last call; call the function if that is too old."""
        with self._lock:
            now = self._clock()
            if not self._renewed <= now < self._ends:  # the clock may have been set back
                found: Any = self._function()
                if not isinstance(found, str):
                    raise UsageError(
                        f"the function for the token returned {type(found).__name__}; expected str"
                    )
                self._token = check_token(found)
                self._renewed, self._ends = now, now + usable_seconds(self._token, now)
            return self._token

    def reject(self, token: str) -> None:
        """Call the function again at the next use, unless it has returned another token since."""
        with self._lock:
            if token == self._token:
                self._ends = 0.0

    def _key(self) -> Hashable:
        function: Any = self._function
        return function if isinstance(function, Hashable) else id(function)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickle.dumps(self._function)
        except Exception:  # pickle raises many types
            raise UsageError(
                "the function for the token cannot be pickled for another process; use "
                "token_file=PATH, or a function at the top level of a module"
            ) from None
        return type(self), (self._function,)


class FileToken(TokenSource):
    """The token in a file, which is read again after a change."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(check_path("token_file", path))
        self._lock = threading.Lock()
        self._file: Reloadable[str] | None = None

    def current(self) -> str:
        """Return the token of the file, or the last one that could be read."""
        with self._lock:
            if self._file is None:
                self._file = Reloadable([self._path], self._read, on_failure=_log_failed_reload)
            file = self._file
        return file.current()

    def reject(self, token: str) -> None:
        """Look at the file at once, instead of within a second."""
        with self._lock:
            if self._file is not None:
                self._file.check_now()

    def _read(self) -> str:
        try:
            with open(self._path, "rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            raise UsageError(f"cannot read the token in {self._path}: {error.strerror}") from None
        problem = f"more than {_MAX_FILE_BYTES} bytes" if len(data) > _MAX_FILE_BYTES else None
        try:
            if problem is None:
                return check_token(data.decode("ascii", "replace"))
        except UsageError as error:
            problem = error.message
        raise UsageError(f"{self._path}: {problem}")

    def _key(self) -> Hashable:
        return self._path

    def __repr__(self) -> str:
        return f"<FileToken {self._path}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path,)


def _log_failed_reload(reason: str) -> None:
    _log.warning("keeping the token that was read before: %s", reason)


def usable_seconds(token: str, now: float) -> float:
    """Return how long to use a token before it is renewed, in seconds.

    Examples
    --------
    >>> usable_seconds("opaque", 0.0)
    30.0
    """
    expires = read_expiry(token)
    if expires is None:
        return _OPAQUE_SECONDS
    left = expires - now
    return left - renewal_margin(left) if left > 0 else 1.0


def renewal_margin(seconds: float) -> float:
    """Return how long before its expiry a credential with a remaining lifetime is renewed.

    Examples
    --------
    >>> renewal_margin(3600.0), renewal_margin(2.0)
    (60.0, 0.5)
    """
    return min(_MARGIN_SECONDS, seconds * _MARGIN_SHARE)


def read_expiry(token: str) -> float | None:
    """Return the claim ``exp`` of a JSON Web Token, which is not verified; None if it has none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires = float(claims["exp"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return expires if math.isfinite(expires) else None
