"""Directories: files with one schema, read in the order of their names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ....errors import DatasetError, exhausted_error
from ....formats.arrow.schema_difference import describe_difference
from ....protocol.request import Request
from ..dataset import Encoding, Shard, Writers
from ..messages.generator_source import GeneratorSource
from ..query.request_checks import check_version, hash_version, select_shards
from .concatenated import ConcatenatedFiles
from .file_access import read_identity
from .file_dataset import FileDataset
from .file_types import SUPPORTED_TYPES, open_file
from .hive import Partitions
from .parquet import ParquetDataset


class DirectoryDataset:
    """The files of a directory and its subfolders as one dataset. See `Dataset`.

    Files and folders whose names begin with ``.`` or ``_`` are ignored. All other files must have
    a supported type and the columns of the first file. The custom metadata of the schema is that of
    the first file. Each new reader gets the files that the directory has at that time.

    Parameters
    ----------
    path : path-like
        The directory.
    refuse_writers : bool
        See `FileDataset`.

    Raises
    ------
    DatasetError
        If the directory has no file, or a file cannot be read or has another schema than the first.
    """

    def __init__(self, path: str | os.PathLike[str], *, refuse_writers: bool = True) -> None:
        self.path = Path(path)
        """The directory."""
        self._refuse_writers = refuse_writers
        self._lock = threading.Lock()
        self._files = self._list_files({})

    @property
    def location(self) -> str:
        """The path, as it was given. Readers never see it."""
        return str(self.path)

    @property
    def kind(self) -> str:
        """The type of the files: ``parquet directory``, ``mixed directory``."""
        kinds = {entry.dataset.kind for entry in self._files.entries}
        return f"{kinds.pop().removesuffix(' file') if len(kinds) == 1 else 'mixed'} directory"

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self._files.schema

    @property
    def rows(self) -> int | None:
        """The number of rows in all files; None if it is unknown until the files are decoded.

        Raises
        ------
        DatasetError
            If a file is no longer readable.
        """
        counts = [entry.dataset.rows for entry in self._files.entries]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def nbytes(self) -> int | None:
        """The size of all files in bytes."""
        return sum(entry.dataset.nbytes or 0 for entry in self._files.entries)

    @property
    def writers(self) -> Writers:
        """What happens if another process has one of the files open for writing."""
        found = {entry.dataset.writers for entry in self._files.entries}
        worst_first = (Writers.ALLOWED, Writers.UNDETECTED, Writers.REFUSED)
        return next(writers for writers in worst_first if writers in found)

    @property
    def version(self) -> str:
        """The version of all files; the last known one if the directory is not readable."""
        try:
            return self._hash_version(self._refresh())
        except DatasetError:
            return self._hash_version(self._files)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """One shard for each file.

        Raises
        ------
        DatasetError
            If a file is no longer readable.
        """
        return tuple(entry.dataset.shards[0] for entry in self._files.entries)

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the directory for one reader; see `Dataset.open`."""
        files = self._refresh()
        check_version(request, self._hash_version(files))
        files = replace(files, entries=tuple(select_shards(request, files.entries)))
        return files.open(request, encoding, str(self.path))

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each stored batch contributes; see `Dataset.count_rows`."""
        files = self._refresh()
        check_version(request, self._hash_version(files))
        files = replace(files, entries=tuple(select_shards(request, files.entries)))
        return files.count_rows(request, encoding, str(self.path))

    def close(self) -> None:
        """Do nothing: no file is open between readers."""

    def _refresh(self) -> ConcatenatedFiles:
        """List the directory again. Files that have not changed are not inspected again."""
        with self._lock:
            known = {entry.dataset.path: entry.dataset for entry in self._files.entries}
            self._files = self._list_files(known)
            return self._files

    def _list_files(self, known: Mapping[Path, FileDataset]) -> ConcatenatedFiles:
        paths = list(_walk(self.path, ()))
        if not paths:
            raise DatasetError(f"{self.path} is a directory without files; add {SUPPORTED_TYPES}")
        datasets = [self._open_dataset(path, known.get(path)) for path in paths]
        first = datasets[0]
        for dataset in datasets:
            difference = describe_difference(first.schema, dataset.schema)
            if difference is not None:
                raise DatasetError(f"{dataset.path} differs from {first.path}: {difference}")
        partitions = None
        if all(isinstance(dataset, ParquetDataset) for dataset in datasets):
            partitions = Partitions.read(self.path, paths, first.schema)
        return ConcatenatedFiles.of(datasets, first.schema, partitions)

    def _open_dataset(self, path: Path, known: FileDataset | None) -> FileDataset:
        """Return the known dataset of a file if the file has not changed, or else a new one."""
        if known is not None:
            try:
                identity = read_identity(path)
            except OSError as error:
                problem = f"cannot read {path}: {error.strerror}"
                raise exhausted_error(error) or DatasetError(problem) from None
            if identity == known.identity:
                return known
        return open_file(path, keep_index=False, refuse_writers=self._refuse_writers)

    def _hash_version(self, files: ConcatenatedFiles) -> str:
        return hash_version(
            *(
                (str(entry.dataset.path.relative_to(self.path)), *entry.identity)
                for entry in files.entries
            )
        )


def _walk(folder: Path, ancestors: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, sorted by name.

    Parameters
    ----------
    folder : Path
        The folder.
    ancestors : tuple of (int, int)
        The device and inode of each folder above it, to detect links that form a cycle.
    """
    try:
        status = folder.stat()
        inode = (status.st_dev, status.st_ino)
        if inode in ancestors:
            raise DatasetError(f"{folder} links to a folder that contains it; remove the link")
        with os.scandir(folder) as entries:
            names = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as error:
        problem = f"cannot read {folder}: {error.strerror}"
        raise exhausted_error(error) or DatasetError(problem) from None
    for name, is_folder in names:
        is_partition = is_folder and "=" in name
        if name.startswith(".") or (name.startswith("_") and not is_partition):
            continue
        if is_folder:
            yield from _walk(folder / name, (*ancestors, inode))
        else:
            yield folder / name
