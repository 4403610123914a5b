"""The token file: bearer tokens, their principals and grants.

::

    [[tokens]]
    name = "training"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    datasets = ["flights", "trips/*"]
    write = ["scores"]

``token = "…"`` can replace ``sha256``. A name can have several entries, so that a new token can
be distributed before the old one is removed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...reloadable import Reloadable, is_world_readable
from ..config.declaration import nearest
from ..logs import get_logger
from .principal import Grants, Principal, is_principal_name, parse_globs

MIN_TOKEN_CHARACTERS = 16
"""The shortest token, in characters."""
_FIELDS = ("name", "token", "sha256", "datasets", "write")
_TOKEN = re.compile(r"[!-~]+")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """An entry of a token file. It holds no token."""

    digest: bytes = field(repr=False)
    """The SHA-256 digest of the token."""
    principal: Principal
    """The principal of the token."""
    is_plain: bool
    """Whether the file contains the token itself."""


class TokenFile:
    """The tokens of a file. It is read again after a change.

    Only digests are kept in memory, never a token.

    Parameters
    ----------
    path : Path
        The TOML file. The docstring of the module shows its format.
    clock : callable
        Returns the time in seconds, from any epoch.

    Raises
    ------
    ConfigError
        If the file cannot be read or is malformed. The error never quotes a value.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._file = Reloadable(
            [path], lambda: read_tokens(path), on_failure=_log_failed_reload, clock=clock
        )

    def find_principal(self, token: str) -> Principal | None:
        """Return the principal of a token, or None if the file does not have it.

        The time that this takes does not depend on the token's value.
        """
        digest = _hash_token(token)
        found: Principal | None = None
        for entry in self._file.current():
            if hmac.compare_digest(entry.digest, digest):
                found = entry.principal
        return found

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}>"


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _log_failed_reload(reason: str) -> None:
    get_logger("auth").error("cannot reload the token file; keeping the old tokens", reason=reason)


def read_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Return the entries of a token file.

    Raises
    ------
    ConfigError
        If the file cannot be read or is malformed. The error never quotes a value.
    """
    entries = parse_tokens(_load_toml(path), path)
    if any(entry.is_plain for entry in entries) and is_world_readable(path):
        get_logger("auth").warning("every user can read the tokens", path=str(path))
    return entries


def parse_tokens(values: dict[str, Any], path: Path) -> tuple[TokenEntry, ...]:
    """Return the entries of the contents of a token file.

    Raises
    ------
    ConfigError
        If they are malformed. The error names the file, and never quotes a value.
    """
    items = values.get("tokens")
    if set(values) != {"tokens"} or not isinstance(items, list) or not items:
        raise ConfigError(f"{path}: a token file has one or more [[tokens]] and nothing else")
    entries = tuple(
        _parse_entry(item, f"{path}, token {number}") for number, item in enumerate(items, 1)
    )
    if len({entry.digest for entry in entries}) < len(entries):
        raise ConfigError(f"{path}: two entries have the same token")
    return entries


def _load_toml(path: Path) -> dict[str, Any]:
    problem: str
    try:
        data = path.read_bytes()
        if len(data) <= _MAX_FILE_BYTES:
            return tomllib.loads(data.decode())
        problem = f"{path} has {len(data)} bytes; a token file has at most {_MAX_FILE_BYTES}"
    except OSError as error:
        problem = f"cannot read the token file {path}: {error.strerror}"
    except UnicodeDecodeError:
        problem = f"{path} is not UTF-8"
    except (ValueError, RecursionError) as error:
        position = re.search(r"\(at line \d+, column \d+\)", str(error))
        problem = f"{path} is not TOML{f' {position.group()}' if position else ''}"
    # Raised here, outside the handlers: the context of an exception would quote the file.
    raise ConfigError(problem)


def _parse_entry(item: Any, source: str) -> TokenEntry:
    if not isinstance(item, dict) or not set(item) <= set(_FIELDS):
        raise ConfigError(
            f"{source}: the fields of a token are {', '.join(_FIELDS)}{_suggest_field(item)}"
        )
    name = item.get("name")
    if not is_principal_name(name):
        raise ConfigError(f"{source}: a token needs a name without control characters")
    source = f"{source} ({name!r})"
    grants: list[tuple[str, ...]] = []
    for grant in ("datasets", "write"):
        globs = parse_globs(item.get(grant, []))
        if globs is None:
            raise ConfigError(f"{source}: {grant} must be a list of names or globs")
        grants.append(globs)
    principal = Principal(str(name), Grants(*grants))
    return TokenEntry(_read_digest(item, source), principal, "token" in item)


def _suggest_field(item: Any) -> str:
    """Return a question for the first unknown field. It does not quote the file."""
    unknown = [name for name in item if name not in _FIELDS] if isinstance(item, dict) else []
    near = next((field for name in unknown if (field := nearest(name, *_FIELDS))), None)
    return "" if near is None else f"; did you mean {near!r}?"


def _read_digest(item: dict[str, Any], source: str) -> bytes:
    token, sha256 = item.get("token"), item.get("sha256")
    if (token is None) == (sha256 is None):
        raise ConfigError(f"{source}: give either token or sha256")
    if token is None:
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise ConfigError(f"{source}: sha256 must have 64 hexadecimal digits")
        return bytes.fromhex(sha256)
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ConfigError(f"{source}: the token must be printable ASCII without spaces")
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(
            f"{source}: the token has {len(token)} characters; it needs at least "
            f"{MIN_TOKEN_CHARACTERS}; make one with: splitarrow token new"
        )
    return _hash_token(token)
