"""The token file: who has which bearer token, and what they may do with it.

::

    [[tokens]]
    name = "training"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    datasets = ["flights", "trips/*"]
    write = ["scores"]

``token = "…"`` may stand in place of ``sha256``. A name may come several times, so that a new
token can be handed out before the old one is taken away.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...transport.watched import Watched, readable_by_others
from ..logs import get_logger
from .principal import Grants, Principal, globs_of, is_name

LEAST_CHARACTERS = 16
"""The shortest token that is taken for a secret."""
_FIELDS = ("name", "token", "sha256", "datasets", "write")
_TOKEN = re.compile(r"[!-~]+")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_MOST_FILE_BYTES = 16 << 20

_Entry = tuple[bytes, Principal]


class TokenFile:
    """The tokens of a file, read again when it changes. It holds their digests, never a token.

    Parameters
    ----------
    path : Path
        A TOML file; the module says what is in it.
    clock : callable
        The time in seconds, from any start.

    Raises
    ------
    ConfigError
        If it cannot be read or understood. The error quotes no value of it.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._watched = Watched(
            [path], lambda: read_tokens(path), on_failure=_not_taken_over, clock=clock
        )

    def principal(self, token: str) -> Principal | None:
        """Return whose token it is; None if it is nobody's.

        How long that takes does not depend on how much of a token is right.
        """
        digest = _digest(token)
        found: Principal | None = None
        for held, principal in self._watched.current():
            if hmac.compare_digest(held, digest):
                found = principal
        return found

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}>"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _not_taken_over(reason: str) -> None:
    get_logger("auth").error("token file not reloaded; the old tokens stay", reason=reason)


def read_tokens(path: Path) -> tuple[_Entry, ...]:
    """Return the digests of a file's tokens, and whom each stands for.

    Raises
    ------
    ConfigError
        If the file cannot be read or understood.
    """
    values, problem = _read(path)
    if problem is not None:
        raise ConfigError(problem)
    listed = values.get("tokens")
    if set(values) != {"tokens"} or not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path}: a token file has [[tokens]], one or more, and nothing else")
    entries: list[_Entry] = []
    plain = False
    for number, item in enumerate(listed, 1):
        entries.append(_entry(item, f"{path}, token {number}"))
        plain |= "token" in item
    if len({digest for digest, _ in entries}) < len(entries):
        raise ConfigError(f"{path}: two entries have the same token")
    if plain and readable_by_others(path):
        get_logger("auth").warning("everybody may read the tokens", path=str(path))
    return tuple(entries)


def _read(path: Path) -> tuple[dict[str, Any], str | None]:
    """Return the content, or what is wrong: not as an exception, which would hold the text."""
    try:
        data = path.read_bytes()
        if len(data) > _MOST_FILE_BYTES:
            return {}, f"{path} has {len(data)} bytes: that is no token file"
        return tomllib.loads(data.decode()), None
    except OSError as error:
        return {}, f"cannot read the token file {path}: {error.strerror}"
    except UnicodeDecodeError:
        return {}, f"{path} is not UTF-8"
    except (ValueError, RecursionError) as error:
        place = re.search(r"\(at line \d+, column \d+\)", str(error))
        return {}, f"{path} is not TOML{f' {place.group()}' if place else ''}"


def _entry(item: Any, where: str) -> _Entry:
    if not isinstance(item, dict) or not set(item) <= set(_FIELDS):
        raise ConfigError(f"{where}: the fields of a token are {', '.join(_FIELDS)}")
    name = item.get("name")
    if not is_name(name):
        raise ConfigError(f"{where}: a token needs a name, without control characters")
    where = f"{where} ({name!r})"
    grants: list[tuple[str, ...]] = []
    for action in ("datasets", "write"):
        globs = globs_of(item.get(action, []))
        if globs is None:
            raise ConfigError(f"{where}: {action} is a list of names or globs")
        grants.append(globs)
    return _digest_of(item, where), Principal(str(name), Grants(*grants))


def _digest_of(item: dict[str, Any], where: str) -> bytes:
    token, sha256 = item.get("token"), item.get("sha256")
    if (token is None) == (sha256 is None):
        raise ConfigError(f"{where}: it needs a token, or the sha256 of one")
    if token is None:
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise ConfigError(f"{where}: sha256 has 64 hexadecimal digits")
        return bytes.fromhex(sha256)
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where}: a token has visible ASCII characters only")
    if len(token) < LEAST_CHARACTERS:
        raise ConfigError(
            f"{where}: a token has {LEAST_CHARACTERS} characters or more; "
            "make one: openssl rand -hex 32"
        )
    return _digest(token)
