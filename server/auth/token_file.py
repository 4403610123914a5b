"""The token file: bearer tokens, their principals and grants.

The server reads it, and ``splitarrow token`` adds tokens to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError, UsageError
from ...publication.atomic_files import AtomicFile, sync_folder
from ...transport.credential_files import Reloadable, is_world_readable
from ..config.declaration import nearest
from ..logs import get_logger
from .principal import Grants, Principal, is_principal_name, parse_globs

MIN_TOKEN_CHARACTERS = 16
"""The shortest token, in characters."""
_FIELDS = ("name", "token", "sha256", "datasets", "write")
TOKEN = re.compile(r"[!-~]+")
"""Printable ASCII without spaces."""
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
    """The tokens of a file, which is read again after a change. Memory has only their digests."""

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

    Raises `ConfigError` if the file cannot be read or is malformed. The error never quotes a value.
    """
    entries = parse_tokens(_load_toml(path), path)
    if any(entry.is_plain for entry in entries) and is_world_readable(path):
        get_logger("auth").warning("every user can read the tokens", path=str(path))
    return entries


def parse_tokens(values: dict[str, Any], path: Path) -> tuple[TokenEntry, ...]:
    """Return the entries of the contents of a token file."""
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
    token = token.strip() if isinstance(token, str) else token  # clients send it without
    if isinstance(token, str) and ("\n" in token or "\r" in token):
        raise ConfigError(f"{source}: the token has a newline in the middle; give one token")
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise ConfigError(f"{source}: the token must be printable ASCII without spaces")
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(
            f"{source}: the token has {len(token)} characters; it needs at least "
            f"{MIN_TOKEN_CHARACTERS}; make one with: splitarrow token new"
        )
    return _hash_token(token)


_TOKEN_BYTES = 32
_NEW_FILE_MODE = 0o600


def add_token(path: Path, name: str, datasets: Sequence[str], write: Sequence[str]) -> str:
    """Create a random token, and add its digest to a token file.

    The file is replaced at once, with the permissions and the owner that it had. A new file is
    readable only by the user of this process. Tokens may share a name. A token without datasets
    can only ask for metrics and the state of the server.

    Raises `UsageError` if the name or a glob is invalid. Raises `ConfigError` if the file is not a
    valid token file. Raises `OSError` if it cannot be written.
    """
    _check(name, datasets, write)
    token = secrets.token_hex(_TOKEN_BYTES)
    entry = _format_entry(name, token, datasets, write)
    path = path.resolve()  # a link stays a link
    with _locked(path.parent):
        text = ""
        if path.exists() and path.stat().st_size:
            read_tokens(path)
            text = path.read_text().rstrip("\n") + "\n\n"
        _check_contents(text + entry, path)
        _replace(path, (text + entry).encode())
    return token


def _check(name: str, datasets: Sequence[str], write: Sequence[str]) -> None:
    if not is_principal_name(name):
        raise UsageError(f"{name!r} is not a name: give short text without control characters")
    for glob in (*datasets, *write):
        if not glob or not glob.isprintable():
            raise UsageError(f"{glob!r} is not the name or glob of a dataset")


def _format_entry(name: str, token: str, datasets: Sequence[str], write: Sequence[str]) -> str:
    # JSON's strings and lists of printable text are TOML's, too.
    values = {"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest()}
    grants = {"datasets": list(datasets), "write": list(write)}
    fields = {**values, **{field: globs for field, globs in grants.items() if globs}}
    lines = [
        f"{field} = {json.dumps(value, ensure_ascii=False)}" for field, value in fields.items()
    ]
    return "\n".join(["[[tokens]]", *lines]) + "\n"


def _check_contents(text: str, path: Path) -> None:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        problem = f"{path}: cannot add to an inline list of tokens; write them as [[tokens]]"
    else:
        parse_tokens(values, path)
        return
    raise ConfigError(problem)  # outside the handler: the context would quote the file


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Let one process at a time change token files of a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    with AtomicFile(path) as file:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(file.temporary, flags, _NEW_FILE_MODE), "wb") as opened:
            if path.exists():
                before = path.stat()
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(opened.fileno(), before.st_uid, before.st_gid)
                os.fchmod(opened.fileno(), before.st_mode & 0o777)
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
    sync_folder(path.parent)
