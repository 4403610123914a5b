"""Directories of shards: files of one schema, read one after the other in the order of names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ...errors import DatasetError
from ...protocol.request import Request
from ...transport.regions import RegionFile
from .base import Encoding
from .encoded import Batches, encoded_groups
from .files import FileDataset
from .hive import Partitions, Values, file_selection, with_partitions
from .kinds import EXPECTED, open_file
from .parquet import ParquetDataset
from .selection import Selection, difference
from .source import Groups, GroupSource
from .stored import StoredMessages


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a directory."""

    dataset: FileDataset
    """What is in it. Its index is made anew for each reader: there may be many shards."""
    version: tuple[int, ...]
    """Which state of the file was looked into."""
    values: Values
    """The values of the partition columns."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found in a directory."""

    shards: tuple[Shard, ...]
    """The files, in the order in which they are read."""
    file_schema: pa.Schema
    """The schema of each of them."""
    schema: pa.Schema
    """The same with partition columns."""
    stored: StoredMessages | None
    """The schema message that all files begin with, and their codec; without any blocks. None
    if they have to be encoded anew."""
    codecs: frozenset[str]
    """How the messages that lie in the files are compressed."""


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

    def open(self, request: Request, encoding: Encoding) -> GroupSource:
        """Begin to read it for one reader; see `Dataset`."""
        listing = self._current()
        selection = Selection.resolve(request, encoding, listing.schema)
        if _lies_as_wanted(selection, listing):
            groups, blocking = self._stored_groups(listing), False
        else:
            batches = self._batches(listing, selection)
            is_valid = all(shard.dataset.is_decoded for shard in listing.shards)
            groups = encoded_groups(selection, batches, str(self.path), is_valid=is_valid)
            blocking = True
        return GroupSource(groups, blocking=blocking, on_close=lambda: None)

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
            Shard(dataset, dataset.version, value)
            for dataset, value in zip(datasets, values, strict=True)
        )
        return Listing(shards, first.schema, schema, stored, frozenset(codecs))

    def _stored_groups(self, listing: Listing) -> Groups:
        first = listing.stored
        assert first is not None
        yield [first.schema_message()]
        for shard in listing.shards:
            with closing(_open(shard)) as file:
                stored = shard.dataset.contents(file).stored
                if stored is None or not first.begins_like(stored):
                    raise DatasetError(f"{shard.dataset.path} changed while it was read")
                yield from stored.groups(file)

    def _batches(self, listing: Listing, selection: Selection) -> Batches:
        inner = file_selection(selection, listing.file_schema)
        columns = len(listing.file_schema)
        for shard in listing.shards:
            with closing(_open(shard)) as file:
                contents = shard.dataset.contents(file)
                with closing(shard.dataset.batches(file, contents, inner)) as batches:
                    for batch, custom_metadata in batches:
                        full = with_partitions(batch, shard.values, selection, columns)
                        yield full, custom_metadata


def _lies_as_wanted(selection: Selection, listing: Listing) -> bool:
    if listing.stored is None or selection.columns is not None:
        return False
    if selection.limit is not None or selection.batch_rows is not None:
        return False
    return selection.compression is None or listing.codecs == frozenset([selection.compression])


def _open(shard: Shard) -> RegionFile:
    file = RegionFile(shard.dataset.path)
    if file.version != shard.version:
        file.close()
        raise DatasetError(f"{shard.dataset.path} changed while the directory was read")
    return file


def _dataset(path: Path, known: FileDataset | None) -> FileDataset:
    if known is not None:
        try:
            status = path.stat()
        except OSError as error:
            raise DatasetError(f"cannot read {path}: {error.strerror}") from None
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if version == known.version:
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
