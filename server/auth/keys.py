"""The keys that tickets are signed with."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import assert_spawning
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...transport.watched import Watched, readable_by_others
from ..logs import get_logger

KEY_BYTES = 32
"""The least size of a key, in bytes."""
_MOST_FILE_BYTES = 64 << 10
_LEAST_DISTINCT = 8


class TicketKeys:
    """Keys of a server, or of several that trust each other's tickets. The first one signs.

    Parameters
    ----------
    keys : sequence of bytes, optional
        The keys, 32 bytes each or more; None makes a random one, which nobody else has.
    path : Path, optional
        A file with keys instead, read again when it changes; see `read_keys`.
    clock : callable
        The time in seconds, from any start.

    Raises
    ------
    ConfigError
        If a key is too short, or the file cannot be read.

    Notes
    -----
    It pickles for nobody but a worker process that is being started: as an argument of
    ``multiprocessing.Process``, so that all workers sign and verify alike.
    """

    def __init__(
        self,
        keys: Sequence[bytes] | None = None,
        *,
        path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._watched: Watched[tuple[bytes, ...]] | None = None
        self._keys: tuple[bytes, ...] = ()
        if path is not None:
            self._watched = Watched(
                [path], lambda: read_keys(path), on_failure=_not_taken_over, clock=clock
            )
        else:
            self._keys = (secrets.token_bytes(KEY_BYTES),) if keys is None else tuple(keys)
            if not self._keys:
                raise ConfigError("tickets need a key at least")
            for key in self._keys:
                check_key(key, "a ticket key")

    def current(self) -> tuple[bytes, ...]:
        """Return the keys: the first signs, all verify."""
        return self._keys if self._watched is None else self._watched.current()

    def __repr__(self) -> str:
        return f"<TicketKeys {self._path or 'of this process'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _restored, (self._path, self._keys)


def _restored(path: Path | None, keys: tuple[bytes, ...]) -> TicketKeys:
    return TicketKeys(keys) if path is None else TicketKeys(path=path)


def _not_taken_over(reason: str) -> None:
    get_logger("auth").error("ticket keys not reloaded; the old ones stay", reason=reason)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys of a file: random bytes, or a key in each line as hex or base64.

    Blank lines, and those that begin with ``#``, do not count. A file that others may read is
    used, with a warning.

    Raises
    ------
    ConfigError
        If it cannot be read or holds no key of 32 bytes or more; the error never quotes it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the ticket keys in {path}: {error.strerror}") from None
    if len(data) > _MOST_FILE_BYTES:
        raise ConfigError(f"{path} has {len(data)} bytes: that is no file of ticket keys")
    if readable_by_others(path):
        get_logger("auth").warning("everybody may read the ticket keys", path=str(path))
    if not data.isascii() or not _is_text(data):
        check_key(data, str(path))
        return (data,)
    keys: list[bytes] = []
    for number, line in enumerate(data.decode("ascii").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key = _decoded(text)
        if key is None:
            raise ConfigError(f"{path}, line {number}: a key is written as hex or base64")
        check_key(key, f"{path}, line {number}")
        keys.append(key)
    if not keys:
        raise ConfigError(f"{path} holds no ticket key; make one: openssl rand -hex 32")
    return tuple(keys)


def check_key(key: bytes, where: str) -> None:
    """Refuse a key that is short, or that nobody drew at random.

    Raises
    ------
    ConfigError
        If it is; the error never quotes it.
    """
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"{where}: a ticket key has {KEY_BYTES} bytes or more, and this one has {len(key)}; "
            "make one: openssl rand -hex 32"
        )
    if len(set(key)) < _LEAST_DISTINCT:
        raise ConfigError(f"{where}: this key is not random; make one: openssl rand -hex 32")


def _is_text(data: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data)


def _decoded(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    try:
        padded = text.rstrip("=").replace("+", "-").replace("/", "_")
        padded += "=" * (-len(padded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
