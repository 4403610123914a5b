"""Directories of shards: files of one schema, read one after the other in the order of names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ...errors import DatasetError
from ...protocol.request import Request
from ...transport.regions import RegionFile
from .asked import asked_shards, check_version, version_text
from .base import Encoding, Shard
from .encoded import Batches, encoded_groups
from .files import FileDataset, file_identity
from .hive import Partitions, Values, file_selection, with_partitions
from .kinds import EXPECTED, open_file
from .parquet import ParquetDataset
from .selection import Selection, difference
from .source import Groups, GroupSource
from .stored import StoredMessages


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a directory."""

    dataset: FileDataset
    """What is in it. Its index is made anew for each reader: there may be many shards."""
    identity: tuple[int, ...]
    """Which state of the file was looked into."""
    values: Values
    """The values of the partition columns."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found in a directory."""

    shards: tuple[ShardFile, ...]
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
        selection = Selection.resolve(request, encoding, listing.schema)
        if selection.offset and selection.filter is None:
            listing, selection = _skipped(listing, selection)
        if _lies_as_wanted(selection, listing):
            groups, blocking = self._stored_groups(listing, selection.first), False
        else:
            batches = self._batches(listing, selection.to_read(listing.schema))
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

    def _stored_groups(self, listing: Listing, skip: int) -> Groups:
        first = listing.stored
        assert first is not None
        yield [first.schema_message()]
        for shard in listing.shards:
            with closing(_open(shard)) as file:
                stored = shard.dataset.contents(file).stored
                if stored is None or not first.begins_like(stored):
                    raise DatasetError(f"{shard.dataset.path} changed while it was read")
                yield from (stored.after(file, skip) if skip else stored).groups(file)
                skip = 0

    def _batches(self, listing: Listing, selection: Selection) -> Batches:
        inner = file_selection(selection, listing.file_schema)
        columns = len(listing.file_schema)
        for shard in listing.shards:
            with closing(_open(shard)) as file:
                contents = shard.dataset.contents(file)
                if shard is not listing.shards[0]:
                    inner = replace(inner, first=0)
                with closing(shard.dataset.batches(file, contents, inner)) as batches:
                    for batch, custom_metadata in batches:
                        full = with_partitions(batch, shard.values, selection, columns)
                        yield full, custom_metadata


def _skipped(listing: Listing, selection: Selection) -> tuple[Listing, Selection]:
    """Leave out the files, and in the first of the others the batches, that need not be read."""
    shards, offset = listing.shards, selection.offset
    for number, shard in enumerate(shards):
        rows = shard.dataset.rows
        if rows is None or offset < rows:
            with closing(_open(shard)) as file:
                inner = Selection(listing.file_schema, offset=offset)
                inner = shard.dataset.skipped(file, shard.dataset.contents(file), inner)
            selection = replace(selection, first=inner.first, offset=inner.offset)
            return replace(listing, shards=shards[number:]), selection
        offset -= rows
    return replace(listing, shards=()), replace(selection, offset=0)


def _lies_as_wanted(selection: Selection, listing: Listing) -> bool:
    if selection.filter is not None or selection.offset:
        return False
    if listing.stored is None or selection.columns is not None:
        return False
    if selection.limit is not None or selection.batch_rows is not None:
        return False
    return selection.compression is None or listing.codecs == frozenset([selection.compression])


def _open(shard: ShardFile) -> RegionFile:
    file = RegionFile(shard.dataset.path)
    if file.version != shard.identity:
        file.close()
        raise DatasetError(f"{shard.dataset.path} changed while the directory was read")
    return file


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
