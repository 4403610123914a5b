"""The folder of uploads: what marks it, and the names that belong to the server.

The marker holds a random key. The name of each file and folder of the server ends with a hash of
the rest under this key. Nothing else in the folder is served, removed or replaced: neither a file
that a user puts there, nor a copy of an upload under another name.

Version 0.1 used neither. A marker that a user writes, ``{"adopt": true}``, states that the files
without a hash are its uploads.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ...errors import ConfigError, InvalidRequestError
from ...publication.atomic_files import AtomicFile, sync_folder

FILE_SUFFIX = ".arrow"
"""The suffix of the file of an uploaded dataset."""
FOLDER_SUFFIX = ".published"
"""The suffix of the folder of a published dataset."""
MARKER = ".splitarrow-uploads.json"
"""The name of the marker."""
_INCOMPLETE_PREFIX = ".upload-"
_KEY_BYTES = 16
_MAX_BYTES = 255
_MAX_MARKER_BYTES = 4096
_FORBIDDEN = "/\\%"
_ALLOWED = frozenset(["lost+found"])
"""Names that the root of a new file system has. Hidden ones are allowed as well."""


class UploadFolder:
    """A locked folder, and the names in it.

    One server at a time uses a folder; a lock on it ends with the process. A missing folder is
    created if only its last part is missing.

    Raises `ConfigError` if the folder cannot be used, another server uses it, or it has other files
    and no marker.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _lock_folder(path)
        try:
            marker = _read_marker(path)
            if marker is None:
                _check_empty(path)
                self._key = secrets.token_bytes(_KEY_BYTES)
                _write_marker(path, self._key)
            else:
                self._key, adopts = marker
                if adopts:
                    self._adopt()
        except OSError as error:
            self.close()
            raise ConfigError(f"writable: cannot use {path}: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def make_path(self, dataset: str, suffix: str = FILE_SUFFIX) -> Path:
        """Return the path of the file or folder of a dataset.

        Raises `InvalidRequestError` if the dataset's name could be mistaken for a path, or is too
        long for a file.
        """
        hidden = dataset.startswith(".") or not dataset.isprintable() or not dataset.strip()
        if hidden or any(character in dataset for character in _FORBIDDEN):
            raise InvalidRequestError(
                f"{dataset[:80]!r} is not a valid name for an upload: it must not be blank, begin "
                "with a dot, or contain / \\ % or control characters"
            )
        name = self._sign(quote(dataset, safe=""), suffix)
        if len(name) > _MAX_BYTES:
            raise InvalidRequestError(
                f"the name {dataset[:80]!r}… is too long for an upload: its file name has "
                f"{len(name)} characters, and the limit is {_MAX_BYTES}"
            )
        return self.path / name

    def parse_name(self, name: str, suffix: str = FILE_SUFFIX) -> str | None:
        """Return the dataset of a file or folder; None if it does not belong to the server."""
        stem = name.removesuffix(suffix).rpartition(".")[0]
        dataset = unquote(stem, errors="replace")
        try:
            return dataset if self.make_path(dataset, suffix).name == name else None
        except InvalidRequestError:
            return None

    def make_incomplete_path(self) -> Path:
        """Return a new path for an incomplete file, or for a folder that is being removed."""
        return self.path / self._sign(f"{_INCOMPLETE_PREFIX}{secrets.token_hex(16)}")

    def is_incomplete(self, name: str) -> bool:
        """Return whether `make_incomplete_path` has made a name."""
        stem = name.rpartition(".")[0]
        return stem.startswith(_INCOMPLETE_PREFIX) and self._sign(stem) == name

    def sync(self) -> None:
        """Write the names in the folder to the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Unlock the folder. Its files stay. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _adopt(self) -> None:
        """Rename the uploads of version 0.1. What cannot be renamed is kept, and not served."""
        _write_marker(self.path, self._key, adopt=True)  # the next server continues after a kill
        for entry in list(os.scandir(self.path)):
            is_folder = entry.is_dir(follow_symlinks=False)
            suffix = FOLDER_SUFFIX if is_folder else FILE_SUFFIX
            dataset = unquote(entry.name.removesuffix(suffix), errors="replace")
            if quote(dataset, safe="") + suffix != entry.name or entry.is_symlink():
                continue
            if self.parse_name(entry.name, suffix) is not None:
                continue
            with suppress(InvalidRequestError):
                path = self.make_path(dataset, suffix)
                if not os.path.lexists(path):
                    os.rename(entry.path, path)
        _write_marker(self.path, self._key)

    def _sign(self, stem: str, suffix: str = "") -> str:
        data = os.fsencode(stem + suffix)
        digest = blake2b(data, key=self._key, digest_size=4).hexdigest()
        return f"{stem}.{digest}{suffix}"


def _lock_folder(path: Path) -> int:
    """Create a folder if it is missing, and return a descriptor that keeps it locked."""
    try:
        if not path.is_dir():
            path.mkdir()
            sync_folder(path.parent)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"writable: cannot use {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError
    except OSError as error:
        os.close(descriptor)
        reason = "it is not writable"
        if isinstance(error, BlockingIOError):
            reason = "another server uses it"
        raise ConfigError(f"writable: cannot use {path}: {reason}") from None
    return descriptor


def _read_marker(folder: Path) -> tuple[bytes, bool] | None:
    """Return the key in the marker, and whether to adopt uploads; None if there is no marker."""
    path = folder / MARKER
    try:
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)
        ) as file:
            values: Any = json.loads(file.read(_MAX_MARKER_BYTES))
        adopts = values.get("adopt") is True
        new = secrets.token_hex(_KEY_BYTES)
        key = bytes.fromhex(values.get("key", new) if adopts else values["key"])
        if len(key) != _KEY_BYTES:
            raise ValueError
        return key, adopts
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"writable: cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"writable: {path} is damaged: it must be a JSON object with a key of "
            f"{2 * _KEY_BYTES} hexadecimal digits; restore it, or use another folder"
        ) from None


def _check_empty(folder: Path) -> None:
    found = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    foreign = [name for name in found if name not in _ALLOWED]
    if not foreign:
        return
    hint = ""
    if any(name.endswith((FILE_SUFFIX, FOLDER_SUFFIX)) for name in foreign):
        hint = (
            f"; if splitarrow 0.1 has stored all *{FILE_SUFFIX} and *{FOLDER_SUFFIX} in it, write "
            f'{{"adopt": true}} into {MARKER}'
        )
    raise ConfigError(
        f"writable: the folder {folder.absolute()} has other files, such as {foreign[0]!r}, and "
        f"no {MARKER}, which marks a folder of uploads; use a folder that is empty or does not "
        f"exist yet{hint}"
    )


def _write_marker(folder: Path, key: bytes, **values: bool) -> None:
    note = "The server's uploads have names that end with a hash under this key. Keep this file."
    data = json.dumps({"about": note, "key": key.hex(), **values}, indent=1) + "\n"
    with AtomicFile(folder / MARKER, temporary=folder / f"{MARKER}.tmp") as file:
        file.temporary.write_text(data)
        file.sync()
    sync_folder(folder)
