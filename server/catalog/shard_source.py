"""Reading the shards of a published dataset: from the folder, or from a cache of its objects."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ...errors import DatasetError, ProtocolError
from ...formats.manifest import ShardEntry
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.regions import RegionFile
from .arrow_file import ArrowFileDataset
from .base import Encoding, Source
from .encoded import Batches, encoded_groups
from .files import file_identity
from .holds import Hold
from .listing import Listing, ShardFile, open_listing
from .object_cache import ObjectCache
from .places import check_length
from .selection import Selection, difference
from .skipping import shards_to_read
from .source import GroupSource
from .storage import Storage
from .stored import StoredMessages

_MOST_KNOWN = 8192


class HeldSource:
    """A source that lets go of something when it is closed; see `Source`."""

    def __init__(self, source: Source, holds: Sequence[Hold]) -> None:
        self.blocking = source.blocking
        self.placed = source.placed
        self._source = source
        self._holds = holds

    def __iter__(self) -> Iterator[list[SourceMessage]]:
        return iter(self._source)

    def close(self) -> None:
        """Close the source, and let go."""
        self._source.close()
        for hold in self._holds:
            hold.close()


class ShardReader:
    """Reads shards of one dataset. Safe to use from several threads.

    Parameters
    ----------
    storage : Storage
        Where they lie.
    cache : ObjectCache
        Where those of an object store are kept.
    """

    def __init__(self, storage: Storage, cache: ObjectCache) -> None:
        self._storage = storage
        self._cache = cache
        self._lock = threading.Lock()
        self._known: dict[Path, ArrowFileDataset] = {}

    def open(
        self,
        shards: Sequence[ShardEntry],
        schema: pa.Schema,
        request: Request,
        encoding: Encoding,
    ) -> HeldSource:
        """Begin to read shards for one reader.

        Parameters
        ----------
        shards : sequence of ShardEntry
            Which, in order.
        schema : pyarrow.Schema
            The schema of all.
        request : Request
            What is asked for; of it, version and shard have been dealt with.
        encoding : Encoding
            The server's defaults.

        Raises
        ------
        SplitArrowError
            As `Dataset.open` says.
        """
        selection = Selection.resolve(request, encoding, schema)
        if selection.filter is not None and shards:
            shards = shards_to_read(shards, selection.filter, schema)
        if len(shards) > 1 and self._storage.folder is not None:
            looked = [self._look_into(self._storage.folder / s.path, s, schema) for s in shards]
            listing = _listing(looked, schema)
            return HeldSource(open_listing(listing, request, encoding, self._storage.location), ())
        if len(shards) == 1:
            path, holds = self._place(shards[0])
            try:
                dataset = self._look_into(path, shards[0], schema)
                return HeldSource(dataset.open(request, encoding), holds)
            except BaseException:
                for hold in holds:
                    hold.close()
                raise
        if selection.filter is None:
            shards, selection = _skipped(shards, selection)
        batches = self._batches(shards, schema, selection.to_read(schema))
        groups = encoded_groups(selection, batches, self._storage.location, is_valid=False)
        return HeldSource(GroupSource(groups, blocking=True, on_close=lambda: None), ())

    def _place(self, shard: ShardEntry) -> tuple[Path, list[Hold]]:
        """Return the file of a shard, and what keeps it there."""
        if self._storage.folder is not None:
            return self._storage.folder / shard.path, []
        path, hold = self._cache.get(self._storage, shard)
        return path, [hold]

    def _look_into(self, path: Path, shard: ShardEntry, schema: pa.Schema) -> ArrowFileDataset:
        """Return what is in the file of a shard; it is looked into once."""
        with self._lock:
            known = self._known.get(path)
        try:
            if known is not None and file_identity(path) == known.identity:
                return known
            dataset = ArrowFileDataset(path, keep_index=False)
        except ProtocolError as error:
            raise DatasetError(f"{path} is no Arrow IPC file: {error.message}") from None
        except OSError as error:
            raise DatasetError(f"cannot read {path}: {error.strerror}") from None
        check_length(shard, dataset.nbytes or 0, self._storage.location)
        why = difference(schema, dataset.schema)
        if why is not None:
            raise DatasetError(f"{path} differs from its manifest: {why}")
        with self._lock:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[path] = dataset
        return dataset

    def _batches(
        self, shards: Sequence[ShardEntry], schema: pa.Schema, selection: Selection
    ) -> Batches:
        """Yield the batches of shards, each of which is placed when its turn comes."""
        for shard in shards:
            with self._placed(shard) as path:
                dataset = self._look_into(path, shard, schema)
                with closing(RegionFile(path)) as file:
                    contents = dataset.contents(file)
                    with closing(dataset.batches(file, contents, selection)) as batches:
                        yield from batches

    @contextmanager
    def _placed(self, shard: ShardEntry) -> Generator[Path]:
        path, holds = self._place(shard)
        try:
            yield path
        finally:
            for hold in holds:
                hold.close()


def _listing(datasets: Sequence[ArrowFileDataset], schema: pa.Schema) -> Listing:
    """Return what files have in common that were looked into."""
    stored: StoredMessages | None = datasets[0].layout
    for dataset in datasets:
        if stored is not None and not stored.begins_like(dataset.layout):
            stored = None
    codecs = {dataset.layout.codec or "none" for dataset in datasets if dataset.layout is not None}
    shards = tuple(ShardFile(dataset, dataset.identity, ()) for dataset in datasets)
    return Listing(shards, schema, schema, stored, frozenset(codecs))


def _skipped(
    shards: Sequence[ShardEntry], selection: Selection
) -> tuple[Sequence[ShardEntry], Selection]:
    """Leave out the shards that lie before the offset as a whole."""
    offset = selection.offset
    for index, shard in enumerate(shards):
        if offset < shard.rows:
            return shards[index:], replace(selection, offset=offset)
        offset -= shard.rows
    return (), replace(selection, offset=0)
