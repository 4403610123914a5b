"""Deletion vectors of Delta tables: which rows of a data file do not belong to a version.

deltalake lists the data files of a version, but would decode all vectors of the table at once. Here
the log is replayed for the descriptors of the vectors ("Action Reconciliation"). A vector itself is
read with its data file, and is checked against its descriptor.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import pyarrow as pa

from ...errors import DatasetError, InvalidDataError
from ...formats.roaring import RowSet
from ...publication.storage import Storage
from .files.origins import FileOrigin, map_read_errors

_LOG = "_delta_log"
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?"
    r"\.(parquet|json)"
)
_CHECKPOINT_COLUMNS = ["add.path", "add.deletionVector", "sidecar.path"]
_UUID_LETTERS = 20
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_FROM_Z85 = bytes(_B85[_Z85.index(byte)] if byte in _Z85 else 0 for byte in range(256))


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The descriptor of a deletion vector ("Deletion Vector Descriptor Schema")."""

    storage: str
    """``i`` for a vector in the log, ``u`` for a relative and ``p`` for an absolute path."""
    path: str
    """The vector in base85, the prefix and UUID of a file in base85, or a URL."""
    offset: int | None
    """The position in the file, in bytes."""
    nbytes: int
    """The size of the vector in bytes."""
    rows: int
    """The number of rows that are deleted."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any] | None) -> DeletionVector | None:
        """Return the vector of an action; None if it has none. Raises `KeyError`."""
        if fields is None:
            return None
        return cls(
            fields["storageType"],
            fields["pathOrInlineDv"],
            fields.get("offset"),
            fields["sizeInBytes"],
            fields["cardinality"],
        )

    def find_file(self, folder: str) -> str | None:
        """Return the path of the file below the folder of the table; None for one in the log.

        `folder` is an absolute path or a URL. Raises `DatasetError` if the file is elsewhere.
        """
        if self.storage == "i":
            return None
        if self.storage == "u":
            prefix, letters = self.path[:-_UUID_LETTERS], self.path[-_UUID_LETTERS:]
            with _map_errors(f"at {self.path!r}"):
                file = f"deletion_vector_{UUID(bytes=_decode_base85(letters))}.bin"
            path = "/".join(filter(None, (folder, prefix, file)))
        elif self.storage == "p":
            parts = urlsplit(self.path)
            path = unquote(parts.path if parts.scheme in ("", "file") else self.path)
        else:
            raise DatasetError(
                f"a deletion vector has the storage type {self.storage!r}; expected u, i or p"
            )
        name = path.removeprefix(f"{folder}/")
        if name == path or ".." in name.split("/"):
            raise DatasetError(
                f"the deletion vector {path} is outside of the folder of its table, {folder}; "
                "copy the table"
            )
        return name

    def load(self, origin: FileOrigin | None, data_file: str, file_rows: int) -> RowSet:
        """Read the vector of a data file with `file_rows` rows.

        `origin` is the file of the vector; None if it is in the log. Raises `DatasetError` if the
        vector is missing or invalid, or does not fit the data file.
        """
        with _map_errors(f"of {data_file}"):
            data = self._decode_inline() if origin is None else self._read(origin)
            rows = RowSet.parse(data)
            if len(rows) != self.rows:
                raise InvalidDataError(f"it has {len(rows)} rows; the log states {self.rows}")
            if rows.end > file_rows:
                raise InvalidDataError(
                    f"it has the row {rows.end - 1}, counted from 0, but the data file has "
                    f"{file_rows} rows"
                )
        return rows

    def _decode_inline(self) -> bytes:
        data = _decode_base85(self.path)
        if not 0 <= len(data) - self.nbytes < 4:
            raise InvalidDataError(f"the log has {len(data)} bytes of it; expected {self.nbytes}")
        return data[: self.nbytes]

    def _read(self, origin: FileOrigin) -> bytes:
        """Return the vector in a file ("Deletion Vector File Storage Format")."""
        begin = self.offset or 0
        with closing(origin.open(refuse_writers=False)) as file:
            if begin + self.nbytes + 8 > file.size:
                raise InvalidDataError(
                    f"{origin.name} has {file.size} bytes; expected {self.nbytes + 8} of them at "
                    f"byte {begin}"
                )
            part = bytes(file.read(begin, self.nbytes + 8))
        nbytes = int.from_bytes(part[:4], "big")
        if nbytes != self.nbytes:
            raise InvalidDataError(
                f"{origin.name} states {nbytes} bytes; the log states {self.nbytes}"
            )
        data = part[4:-4]
        if zlib.crc32(data) != int.from_bytes(part[-4:], "big"):
            raise InvalidDataError(f"its checksum in {origin.name} is wrong")
        return data


@contextmanager
def _map_errors(which: str) -> Generator[None]:
    """Turn the errors of an invalid vector into a `DatasetError`."""
    try:
        yield
    except (InvalidDataError, ValueError) as error:
        raise DatasetError(f"the deletion vector {which} is invalid: {error}") from None


def _decode_base85(text: str) -> bytes:
    """Decode Z85; raise `ValueError` if the text is malformed."""
    if len(text) % 5:
        raise InvalidDataError(f"its {len(text)} letters of base85 are not a multiple of 5")
    return base64.b85decode(text.encode().translate(_FROM_Z85))


Action = Mapping[str, Any]
"""An action of the log: its name and its fields."""
Vectors = dict[str, DeletionVector | None]
"""The data files of a version, by their path in the log, and the vectors of those that have one."""


class VectorLog:
    """Finds the deletion vectors of the versions of a table in its log.

    Safe to use from several threads. The vectors of the newest version are kept.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._newest: tuple[int, Vectors] = (-1, {})

    def load(self, number: int, paths: AbstractSet[str]) -> Vectors:
        """Return the vectors of a version whose data files are known.

        Raises `DatasetError` if the log cannot be read, lacks a part or has other data files.
        """
        known, newest = self._newest
        vectors: Vectors = {}
        if 0 <= known <= number:
            with suppress(DatasetError):  # the log may have been cleaned up
                vectors = self._update(dict(newest), known, number)
        if vectors.keys() != paths:
            names = [entry.name for entry in self._storage.list_objects(_LOG)]
            checkpoint, parts = _find_checkpoint(names, number)
            vectors = {}
            for part in parts:
                _apply(vectors, self._read_checkpoint(part))
            self._update(vectors, checkpoint, number)
        if vectors.keys() != paths:
            raise DatasetError(
                f"the log in {self._storage.location} is inconsistent: the version {number} has "
                f"other data files, such as {min(vectors.keys() ^ paths)}"
            )
        if number > known:
            self._newest = (number, vectors)
        return vectors

    def _update(self, vectors: Vectors, known: int, number: int) -> Vectors:
        """Change the vectors of the version `known` to those of a later one, and return them."""
        for version in range(known + 1, number + 1):
            _apply(vectors, self._read_json(f"{_LOG}/{version:020}.json"))
        return vectors

    def _read_checkpoint(self, name: str) -> Iterator[Action]:
        """Yield the actions of a part of a checkpoint, and of its sidecar files."""
        read = self._read_json if name.endswith(".json") else self._read_parquet
        for action in read(name):
            yield action
            if action.get("sidecar") is not None:
                sidecar = unquote(action["sidecar"]["path"]).rpartition("/")[2]
                yield from self._read_parquet(f"{_LOG}/_sidecars/{sidecar}")

    def _read_parquet(self, name: str) -> Iterator[Action]:
        import pyarrow.parquet as pq  # takes a tenth of a second

        with map_read_errors(f"{self._storage.location}/{name}", "a checkpoint"):
            parquet = pq.ParquetFile(pa.BufferReader(self._read(name)))
            columns: Any = _CHECKPOINT_COLUMNS
            for batch in parquet.iter_batches(columns=columns):
                yield from batch.to_pylist()

    def _read_json(self, name: str) -> Iterator[Action]:
        try:
            for line in self._read(name).splitlines():
                if line.strip():
                    yield json.loads(line)
        except ValueError as error:
            raise DatasetError(f"cannot read {self._storage.location}/{name}: {error}") from None

    def _read(self, name: str) -> bytes:
        data = self._storage.read(name)
        if data is None:
            raise DatasetError(
                f"{self._storage.location}/{name} does not exist; the log may have been cleaned up"
            )
        return data


def _apply(vectors: Vectors, actions: Iterable[Action]) -> None:
    """Apply the actions of a commit, or of a part of a checkpoint."""
    added: Vectors = {}
    for action in actions:
        if (add := action.get("add")) is not None:
            added[add["path"]] = DeletionVector.parse(add.get("deletionVector"))
        elif (remove := action.get("remove")) is not None:
            path, vector = remove["path"], DeletionVector.parse(remove.get("deletionVector"))
            if path in vectors and _identify(vectors[path]) == _identify(vector):
                del vectors[path]
    vectors.update(added)


def _identify(vector: DeletionVector | None) -> object:
    """Return what distinguishes a vector from others of the same data file."""
    return None if vector is None else (vector.storage, vector.path, vector.offset)


def _find_checkpoint(names: Iterable[str], number: int) -> tuple[int, Sequence[str]]:
    """Return the version and the files of the last complete checkpoint up to a version.

    Without one, the version is -1.
    """
    found: defaultdict[tuple[int, int, str], list[str]] = defaultdict(list)
    for name in names:
        match = _CHECKPOINT.fullmatch(name.removeprefix(f"{_LOG}/"))
        if match is not None and int(match["version"]) <= number:
            parts = int(match["parts"] or 1)
            found[int(match["version"]), parts, "" if match["parts"] else name].append(name)
    complete = [
        (version, names) for (version, parts, _), names in found.items() if len(names) == parts
    ]
    return max(complete, default=(-1, []))
