"""Adding tokens to a token file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import tomllib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...atomic_files import AtomicFile
from ...errors import ConfigError, UsageError
from .principal import is_principal_name
from .token_file import parse_tokens, read_tokens

_TOKEN_BYTES = 32
_NEW_FILE_MODE = 0o600


def add_token(path: Path, name: str, datasets: Sequence[str], write: Sequence[str]) -> str:
    """Create a random token, and add its digest to a token file.

    The file is replaced at once, with the permissions and the owner that it had. A new file is
    readable only by the user of this process.

    Parameters
    ----------
    path : Path
        The token file. It is created if it does not exist.
    name : str
        The name of the principal. Other tokens may have the same name.
    datasets, write : sequence of str
        The datasets that the principal may read and write, as globs. Without any, it can only ask
        for metrics and the state of the server.

    Returns
    -------
    str
        The token, 64 hexadecimal digits. The file has its digest only.

    Raises
    ------
    UsageError
        If the name or a glob is invalid.
    ConfigError
        If the file is not a valid token file.
    OSError
        If it cannot be written.
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
