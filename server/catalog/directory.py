"""Directories of shards: files of one schema, read one after the other in the order of names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ...errors import DatasetError
from ...protocol.request import Request
from .asked import asked_shards, check_version, version_text
from .base import Encoding, Shard
from .files import FileDataset, file_identity
from .hive import Partitions
from .kinds import EXPECTED, open_file
from .listing import Listing, ShardFile, open_listing
from .parquet import ParquetDataset
from .selection import difference
from .source import GroupSource


class DirectoryDataset:
    """The files of a directory and of those below it, as one dataset.

    Files and folders whose names begin with ``.`` or ``_`` are left out; everything else has to
    be of a kind that is served, and to have the columns of the first. The custom metadata of the
    schema is that of the first. Each new reader gets what the directory then
    holds. A reader has one file open at a time.

    Parameters
    ----------
    path : path-like
        The directory.

    Raises
    ------
    DatasetError
        If there is no file in it, or one cannot be read or has another schema than the first.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        """The directory."""
        self._lock = threading.Lock()
        self._listing = self._look({})

    @property
    def kind(self) -> str:
        """What it is made of: ``parquet directory``, ``mixed directory``."""
        kinds = {shard.dataset.kind for shard in self._listing.shards}
        return f"{kinds.pop().removesuffix(' file') if len(kinds) == 1 else 'mixed'} directory"

    @property
    def schema(self) -> pa.Schema:
        """The schema of all its batches."""
        return self._listing.schema

    @property
    def rows(self) -> int | None:
        """The sum over the files, as `FileDataset.rows` of each; None if one does not know.

        Raises
        ------
        DatasetError
            If a file is not readable any more.
        """
        counts = [shard.dataset.rows for shard in self._listing.shards]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def nbytes(self) -> int | None:
        """The sum of the sizes of the files in bytes."""
        return sum(shard.dataset.nbytes or 0 for shard in self._listing.shards)

    @property
    def version(self) -> str:
        """What tells the state of the files from others; the last known if it is not readable."""
        try:
            return self._version(self._current())
        except DatasetError:
            return self._version(self._listing)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The files.

        Raises
        ------
        DatasetError
            If a file is not readable any more.
        """
        return tuple(shard.dataset.shards[0] for shard in self._listing.shards)

    def open(self, request: Request, encoding: Encoding) -> GroupSource:
        """Begin to read it for one reader; see `Dataset`."""
        listing = self._current()
        check_version(request, self._version(listing))
        listing = replace(listing, shards=tuple(asked_shards(request, listing.shards)))
        return open_listing(listing, request, encoding, str(self.path))

    def close(self) -> None:
        """Do nothing: between readers no file is open."""

    def _current(self) -> Listing:
        """Return what is in the directory now; files that are as they were are not read again."""
        with self._lock:
            known = {shard.dataset.path: shard.dataset for shard in self._listing.shards}
            self._listing = self._look(known)
            return self._listing

    def _look(self, known: Mapping[Path, FileDataset]) -> Listing:
        paths = list(_files(self.path, ()))
        if not paths:
            raise DatasetError(f"{self.path} is a directory without files; {EXPECTED} was expected")
        datasets = [_dataset(path, known.get(path)) for path in paths]
        first = datasets[0]
        stored, codecs = first.layout, set[str]()
        for dataset in datasets:
            why = difference(first.schema, dataset.schema)
            if why is not None:
                raise DatasetError(f"{dataset.path} differs from {first.path}: {why}")
            layout = dataset.layout
            if stored is not None and not stored.begins_like(layout):
                stored = None
            if layout is not None:
                codecs.add(layout.codec or "none")
        schema, values = first.schema, [()] * len(datasets)
        if all(isinstance(dataset, ParquetDataset) for dataset in datasets):
            partitions = Partitions.of(self.path, paths, schema)
            if partitions is not None:
                for field in partitions.fields:
                    schema = schema.append(field)
                values = partitions.values
        shards = tuple(
            ShardFile(dataset, dataset.identity, value)
            for dataset, value in zip(datasets, values, strict=True)
        )
        return Listing(shards, first.schema, schema, stored, frozenset(codecs))

    def _version(self, listing: Listing) -> str:
        return version_text(
            *(
                (str(shard.dataset.path.relative_to(self.path)), *shard.identity)
                for shard in listing.shards
            )
        )


def _dataset(path: Path, known: FileDataset | None) -> FileDataset:
    if known is not None:
        try:
            identity = file_identity(path)
        except OSError as error:
            raise DatasetError(f"cannot read {path}: {error.strerror}") from None
        if identity == known.identity:
            return known
    return open_file(path, keep_index=False)


def _files(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield the files in a folder and below, in the order of their names."""
    try:
        status = folder.stat()
        place = (status.st_dev, status.st_ino)
        if place in above:
            raise DatasetError(f"{folder} is a link to a folder that it lies in")
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as error:
        raise DatasetError(f"cannot read {folder}: {error.strerror}") from None
    for name, is_folder in found:
        if name[0] == "." or (name[0] == "_" and not (is_folder and "=" in name)):
            continue
        if is_folder:
            yield from _files(folder / name, (*above, place))
        else:
            yield folder / name
