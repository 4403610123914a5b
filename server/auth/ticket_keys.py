"""The keys that sign tickets."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import assert_spawning
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...reloadable import Reloadable, is_world_readable
from ..logs import get_logger

MIN_KEY_BYTES = 32
"""The shortest key, in bytes."""
_MAX_FILE_BYTES = 64 << 10
_MIN_DISTINCT_BYTES = 8
_MAKE_ONE = "make one with: openssl rand -hex 32"


class TicketKeys:
    """Signing keys of one server, or of several that accept each other's tickets.

    The first key signs. All keys verify.

    Parameters
    ----------
    keys : sequence of bytes, optional
        Keys of at least 32 bytes each. By default, one random key.
    path : Path, optional
        A file with keys, instead of `keys`. It is read again after a change; see `read_keys`.
    clock : callable
        Returns the time in seconds, from any epoch.

    Raises
    ------
    ConfigError
        If a key is too short or not random, or the file cannot be read.

    Notes
    -----
    Keys pickle only as arguments of a ``multiprocessing.Process`` that is being started, so that
    all workers of a server sign and verify alike.
    """

    def __init__(
        self,
        keys: Sequence[bytes] | None = None,
        *,
        path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._file: Reloadable[tuple[bytes, ...]] | None = None
        self._keys: tuple[bytes, ...] = ()
        if path is not None:
            self._file = Reloadable(
                [path], lambda: read_keys(path), on_failure=_log_failed_reload, clock=clock
            )
        else:
            self._keys = (secrets.token_bytes(MIN_KEY_BYTES),) if keys is None else tuple(keys)
            if not self._keys:
                raise ConfigError("signing tickets needs at least one key")
            for key in self._keys:
                check_key(key, "a ticket key")

    def current(self) -> tuple[bytes, ...]:
        """Return the keys; the first one signs."""
        return self._keys if self._file is None else self._file.current()

    def __repr__(self) -> str:
        return f"<TicketKeys {self._path or 'of this process'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _unpickle, (self._path, self._keys)


def _unpickle(path: Path | None, keys: tuple[bytes, ...]) -> TicketKeys:
    return TicketKeys(keys) if path is None else TicketKeys(path=path)


def _log_failed_reload(reason: str) -> None:
    get_logger("auth").error("cannot reload the ticket keys; keeping the old ones", reason=reason)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys of a file.

    A binary file is one key. A text file has one key per line, in hex or base64; blank lines and
    lines that begin with ``#`` are ignored. A file that every user can read causes a warning.

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds no valid key. The error never quotes the file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the ticket keys in {path}: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has {len(data)} bytes; a file of ticket keys has at most {_MAX_FILE_BYTES}"
        )
    if is_world_readable(path):
        get_logger("auth").warning("every user can read the ticket keys", path=str(path))
    if not data.isascii() or not _is_text(data):
        check_key(data, str(path))
        return (data,)
    keys: list[bytes] = []
    for number, line in enumerate(data.decode("ascii").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            key = _decode_key(text)
        except ValueError:
            raise ConfigError(
                f"{path}, line {number}: a ticket key must be hex or base64"
            ) from None
        check_key(key, f"{path}, line {number}")
        keys.append(key)
    if not keys:
        raise ConfigError(f"{path} holds no ticket key; {_MAKE_ONE}")
    return tuple(keys)


def check_key(key: bytes, source: str) -> None:
    """Raise if a key is too short or has too few distinct bytes to be random.

    Parameters
    ----------
    key : bytes
        The key.
    source : str
        The origin of the key, for the error message.

    Raises
    ------
    ConfigError
        The error never quotes the key.
    """
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"{source}: the ticket key has {len(key)} bytes; it needs at least {MIN_KEY_BYTES}; "
            f"{_MAKE_ONE}"
        )
    if len(set(key)) < _MIN_DISTINCT_BYTES:
        raise ConfigError(f"{source}: the ticket key is not random; {_MAKE_ONE}")


def _is_text(data: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data)


def _decode_key(text: str) -> bytes:
    """Return the key of a line; raise ValueError if it is neither hex nor base64."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    padded = text.rstrip("=").replace("+", "-").replace("/", "_")
    padded += "=" * (-len(padded) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True)
