"""Several files with one schema as one dataset, in the order of their names.

A listing finds them: in a folder, by a pattern, or in an object store.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from ....errors import DatasetError
from ....formats.arrow.schema import describe_difference
from ....formats.parquet.variant.arrow_fields import drop_description
from ....protocol.request import Request
from ....publication.patterns import compile_pattern, split_pattern
from ....publication.storage import ObjectStorage
from ....publication.table_formats import (
    check_folders,
    find_format,
    find_tables,
    list_parents,
    refuse_table,
)
from ....transport.memory.files import open_beneath
from ..dataset import (
    Encoding,
    GeneratorSource,
    Measures,
    ServedDataset,
    Shard,
    StoredFile,
    Writers,
    check_version,
    hash_version,
    select_shards,
)
from ..tensors import describe_tensors
from .concatenated import ConcatenatedFiles
from .file_dataset import FileDataset
from .file_types import SUPPORTED_TYPES, open_file
from .hive import Partitions
from .origins import FileOrigin, LocalOrigin, ObjectOrigin, make_read_error
from .parquet import ParquetDataset
from .tensor_files import TensorFileDataset, open_tensor_files

_LISTING_SECONDS = 1.0
"""The shortest time between two listings of an object store, in seconds."""
_REQUESTS = 16
"""The number of objects that are inspected at a time."""


class Listing(ABC):
    """The files of a dataset, as they are now."""

    noun: ClassVar[str]
    """The noun for all files together, for the type of the dataset."""
    absence: ClassVar[str]
    """The predicate that states that there are no files, for errors."""
    location: str
    """The path, URL or pattern, as it was given."""

    @abstractmethod
    def list_files(self) -> Sequence[FileOrigin]:
        """Return the files, sorted by name, folder by folder.

        Files and folders whose names begin with ``.`` or ``_`` are ignored, except for folders
        that define a partition, such as ``_day=1``. Raises `DatasetError` if a folder or the object
        store cannot be read, or a file belongs to a table whose log states its rows.
        """

    def expire(self) -> None:  # noqa: B027
        """Let the next call of `list_files` return the current files, not those of a moment ago."""


class FolderListing(Listing):
    """The files in a local folder and its subfolders. By default, no link may lead out of it."""

    noun = "directory"
    absence = "is a directory without files"

    def __init__(self, path: str | os.PathLike[str], *, follow_symlinks: bool = False) -> None:
        self.location = str(Path(path))
        self._origins = _Origins(Path(path), confines=not follow_symlinks)

    def list_files(self) -> Sequence[FileOrigin]:
        """Return the files; see `Listing.list_files`."""
        return self._origins.find(_walk(self.location, self._origins.folder, ()))


class PatternListing(Listing):
    """The local files that match a pattern, and those in folders that match it.

    By default, no link may lead out of the folder before the first wildcard.
    """

    noun = "files"
    absence = "matches no file"

    def __init__(self, pattern: str, *, follow_symlinks: bool = False) -> None:
        self.location = pattern
        root, self._pattern = split_pattern(pattern)
        self._root = Path(root)
        self._origins = _Origins(self._root, confines=not follow_symlinks)

    def list_files(self) -> Sequence[FileOrigin]:
        """Return the files; see `Listing.list_files`."""
        return self._origins.find(self._walk())

    def _walk(self) -> Iterator[str]:
        for name in sorted(glob(self._pattern, root_dir=self._root, recursive=True), key=_key):
            path = self._root / name
            if not is_hidden(name):
                yield from (
                    _walk(str(path), self._origins.folder, ()) if path.is_dir() else (str(path),)
                )


class ObjectListing(Listing):
    """The objects below a prefix of an object store, or those that match a pattern.

    The store is listed at most once a second, except after `expire`.

    Raises `UsageError` if the URL has no bucket, or there are no credentials for the store. Raises
    `MissingExtraError` if the extra ``object-store`` is not installed.
    """

    noun = "objects"
    absence = "names no objects"

    def __init__(self, location: str) -> None:
        self.location = location
        root, pattern = split_pattern(location)
        self._storage = ObjectStorage(root)
        self._matches = compile_pattern(pattern).fullmatch if pattern else None
        self._lock = threading.Lock()
        self._listed_at = float("-inf")
        self._files: Sequence[FileOrigin] = ()
        self._is_above_checked = False

    def list_files(self) -> Sequence[FileOrigin]:
        """Return the objects; see `Listing.list_files`."""
        with self._lock:
            now = time.monotonic()
            if now - self._listed_at >= _LISTING_SECONDS:
                self._files = self._list_objects() or self._find_single()
                self._listed_at = now
            return self._files

    def expire(self) -> None:
        """Let the next call of `list_files` list the store again."""
        with self._lock:
            self._listed_at = float("-inf")

    def _list_objects(self) -> Sequence[FileOrigin]:
        every = self._storage.list_objects("")
        entries = [
            entry
            for entry in every
            if not is_hidden(entry.name) and (self._matches is None or self._matches(entry.name))
        ]
        if entries:
            self._check_above()
        tables = find_tables(entry.name for entry in every)
        for entry in entries if tables else ():
            for folder in list_parents(entry.name):
                if folder in tables:
                    location = f"{self._storage.location}/{folder}".rstrip("/")
                    raise refuse_table(location, tables[folder])
        # A listing has the markers that some tools create for folders.
        entries = [entry for entry in entries if entry.nbytes or not entry.name.endswith("/")]
        entries.sort(key=lambda entry: _key(entry.name))
        return [ObjectOrigin(self._storage, entry) for entry in entries]

    def _check_above(self) -> None:
        """Raise `DatasetError` if the prefix is in a table."""
        scheme, _, name = self._storage.location.partition("://")
        for folder in () if self._is_above_checked else list_parents(name):
            if not folder:
                break
            above = ObjectStorage(f"{scheme}://{folder}")

            def has_files(folder: str, suffix: str, above: ObjectStorage = above) -> bool:
                with suppress(DatasetError):  # the credentials may be for the prefix alone
                    return any(e.name.endswith(suffix) for e in above.list_objects(folder))
                return False

            if (format := find_format(has_files)) is not None:
                raise refuse_table(above.location, format)
        self._is_above_checked = True

    def _find_single(self) -> Sequence[FileOrigin]:
        """Return the object that the URL names."""
        parent, _, name = self._storage.location.rpartition("/")
        if self._matches is not None or not name or parent.endswith("/"):
            return ()
        folder = ObjectStorage(parent)
        entry = folder.find(name)
        return () if entry is None else [ObjectOrigin(folder, entry)]


def is_hidden(name: str) -> bool:
    """Return whether a file or one of its folders is ignored; see `Listing.list_files`."""
    *folders, file = name.split("/")
    return file.startswith((".", "_")) or any(
        folder.startswith(".") or (folder.startswith("_") and "=" not in folder)
        for folder in folders
    )


def _key(name: str) -> list[str]:
    """Return a key that sorts names folder by folder."""
    return name.split("/")


class _Origins:
    """The files of a local listing. Those that were there before stay the same objects."""

    def __init__(self, root: Path, *, confines: bool) -> None:
        self.folder = root if confines else None
        """The folder out of which no link may lead; None if links may lead anywhere."""
        self._root = root
        self._prefix = _find_prefix(str(root))
        self._known: dict[str, FileOrigin] = {}

    def find(self, paths: Iterable[str]) -> Sequence[FileOrigin]:
        """Return the files at some paths, each once; raise `DatasetError` if one is of a table."""
        found, known = dict.fromkeys(paths), self._known
        check_folders({os.path.dirname(path): None for path in found})
        self._known = {path: known.get(path) or self._make(path) for path in found}
        return list(self._known.values())

    def _make(self, path: str) -> FileOrigin:
        return LocalOrigin(path, path[len(self._prefix) :], self.folder)


def _find_prefix(folder: str) -> str:
    """Return what the paths of files in a folder begin with."""
    return "" if folder == os.curdir else os.path.join(folder, "")


def _walk(folder: str, root: Path | None, ancestors: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files in a folder and its subfolders, sorted by name.

    With a `root`, raise `DatasetError` if a folder is not in it.
    """
    with ExitStack() as resources:
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            found = os.open(folder, flags) if root is None else open_beneath(folder, root)
            resources.callback(os.close, found)
            status = os.fstat(found)
            entries = resources.enter_context(os.scandir(found))
            names = sorted((entry.name, entry.is_dir()) for entry in entries)
        except OSError as error:
            raise make_read_error(Path(folder), error) from None
        inode = (status.st_dev, status.st_ino)
        if inode in ancestors:
            raise DatasetError(f"{folder} links to a folder that contains it; remove the link")
    prefix = _find_prefix(folder)
    for name, is_folder in names:
        if is_folder:
            if not is_hidden(f"{name}/x"):
                yield from _walk(prefix + name, root, (*ancestors, inode))
        elif not name.startswith((".", "_")):
            yield prefix + name


class DirectoryDataset(ServedDataset):
    """The files of a listing as one dataset.

    All files must have a supported type and the columns of the first file. The custom metadata of
    the schema is that of the first file. Each new reader gets the files that are there at that
    time.

    Raises `DatasetError` if there is no file, or a file cannot be read or has another schema than
    the first.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Listing,
        *,
        refuse_writers: bool = True,
        partition_text: bool = False,
    ) -> None:
        is_path = isinstance(files, (str, os.PathLike))
        self._listing: Listing = FolderListing(files) if is_path else files
        self._refuse_writers = refuse_writers
        self._partition_text = partition_text
        self._lock = threading.Lock()
        self._files = self._list_files({})
        self._version: tuple[ConcatenatedFiles | None, str] = (None, "")
        self._find_version(self._files)  # before the first reader waits for it

    @property
    def location(self) -> str:
        """The path, URL or pattern, as it was given. Readers never see it."""
        return self._listing.location

    @property
    def kind(self) -> str:
        """The type of the files: ``parquet directory``, ``mixed objects``."""
        kinds = {entry.dataset.kind for entry in self._files.entries}
        kind = kinds.pop().removesuffix(" file") if len(kinds) == 1 else "mixed"
        return f"{kind} {self._listing.noun}"

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self._files.schema

    @property
    def rows(self) -> int | None:
        """The number of rows in all files; None if it is unknown until the files are decoded.

        Raises `DatasetError` if a file is no longer readable.
        """
        counts = [entry.dataset.rows for entry in self._files.entries]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def nbytes(self) -> int | None:
        """The size of all files in bytes."""
        return sum(entry.dataset.nbytes or 0 for entry in self._files.entries)

    @property
    def writers(self) -> Writers | None:
        """What happens if another process has one of the files open for writing.

        None if the files are objects, which are replaced and never written to.
        """
        if any(entry.dataset.origin.is_remote for entry in self._files.entries):
            return None
        found = {entry.dataset.writers for entry in self._files.entries}
        worst_first = (Writers.ALLOWED, Writers.UNDETECTED, Writers.REFUSED)
        return next(writers for writers in worst_first if writers in found)

    @property
    def version(self) -> str:
        """The version of all files; the last known one if the files are not readable."""
        try:
            return self._find_version(self._refresh())
        except DatasetError:
            return self._find_version(self._files)

    def update_description(self) -> None:
        """List the files again; see `ServedDataset.update_description`."""
        self._refresh()

    def describe_version(self) -> str:
        """List the files again, once; see `ServedDataset.describe_version`."""
        return self._find_version(self._refresh())

    @property
    def shards(self) -> tuple[Shard, ...]:
        """One shard for each file; raise `DatasetError` if a file is no longer readable."""
        return tuple(entry.dataset.shards[0] for entry in self._files.entries)

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the directory for one reader; see `ServedDataset.open`."""
        files = self._find_files(request)
        if (tensor_files := _find_tensor_files(files)) is not None:
            return open_tensor_files(tensor_files, request, encoding)
        return files.open(request, encoding, self.location)

    def open_stored_file(self, request: Request) -> StoredFile | None:
        """Open the only file of a request; see `ServedDataset.open_stored_file`."""
        files = self._find_files(request)
        if len(files.entries) != 1 or files.entries[0].partition_values:
            return None
        opened = files.entries[0].dataset.open_stored_file(Request(request.dataset))
        return opened and opened._replace(version=self._find_version(files))

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each stored batch; see `ServedDataset.measure_batches`."""
        files = self._find_files(request)
        return files.measure_batches(request, encoding, self.location)

    @property
    def app_metadata(self) -> Mapping[str, Any]:
        """The descriptions of the tensors, if the files have some."""
        files = _find_tensor_files(self._files)
        if files is None:
            return {}
        return describe_tensors([pair for dataset in files for pair in dataset.list_tensors()])

    def _find_files(self, request: Request) -> ConcatenatedFiles:
        """Return the files that a request is for, in the version that it names."""
        files = self._refresh()
        if request.version not in (None, self._find_version(files)):
            # Another process of the server may have found this version since the last listing.
            self._listing.expire()
            files = self._refresh()
        check_version(request, self._find_version(files))
        return replace(files, entries=tuple(select_shards(request, files.entries)))

    def _refresh(self) -> ConcatenatedFiles:
        """List the directory again. Files that have not changed are not inspected again."""
        with self._lock:
            known = {str(entry.dataset.path): entry.dataset for entry in self._files.entries}
            self._files = self._list_files(known)
            return self._files

    def _list_files(self, known: Mapping[str, FileDataset]) -> ConcatenatedFiles:
        origins = self._listing.list_files()
        if not origins:
            raise DatasetError(f"{self.location} {self._listing.absence}; add {SUPPORTED_TYPES}")
        datasets = self._open_datasets(origins, known)
        if known and self._files.has_files(datasets):
            return self._files
        first = datasets[0]
        schema = drop_description(first.schema)
        for dataset in datasets:
            difference = describe_difference(schema, drop_description(dataset.schema))
            if difference is not None:
                raise DatasetError(f"{dataset.path} differs from {first.path}: {difference}")
        partitions = None
        if all(isinstance(dataset, ParquetDataset) for dataset in datasets):
            partitions = Partitions.read(
                self.location, origins, schema, as_text=self._partition_text
            )
        files = ConcatenatedFiles.of(datasets, schema, partitions)
        return files.describe_fields()

    def _open_datasets(
        self, origins: Sequence[FileOrigin], known: Mapping[str, FileDataset]
    ) -> Sequence[FileDataset]:
        if not origins[0].is_remote:
            return [self._open_dataset(each, known.get(str(each.path))) for each in origins]
        with ThreadPoolExecutor(_REQUESTS) as pool:
            former = [known.get(str(each.path)) for each in origins]
            return list(pool.map(self._open_dataset, origins, former))

    def _open_dataset(self, origin: FileOrigin, known: FileDataset | None) -> FileDataset:
        """Return the known dataset of a file if the file has not changed, or else a new one."""
        if known is not None:
            try:
                identity = origin.read_identity()
            except OSError as error:
                raise make_read_error(origin.path, error) from None
            if identity == known.identity:
                return known
        return open_file(origin, keep_index=False, refuse_writers=self._refuse_writers)

    def _find_version(self, files: ConcatenatedFiles) -> str:
        """Return the version of all files of a listing."""
        known, version = self._version
        if known is not files:
            identities = ((entry.dataset.origin.name, *entry.identity) for entry in files.entries)
            version = hash_version(*identities)
            self._version = files, version
        return version


def _find_tensor_files(files: ConcatenatedFiles) -> list[TensorFileDataset] | None:
    """Return the datasets of files with tensors; None if the files have record batches."""
    datasets = [entry.dataset for entry in files.entries]
    tensor_files = [each for each in datasets if isinstance(each, TensorFileDataset)]
    if not tensor_files:
        return None
    if len(tensor_files) < len(datasets):
        other = next(each for each in datasets if not isinstance(each, TensorFileDataset))
        raise DatasetError(
            f"{other.path} has no tensors, but {tensor_files[0].path} has; serve them as datasets "
            "of their own"
        )
    return tensor_files
