"""The shards of a published dataset, read from its folder or from a cache of its objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ...errors import DatasetError, InvalidRequestError, ProtocolError
from ...formats.arrow.schema import describe_difference
from ...formats.nested_fields import extend_schema
from ...protocol.request import Request
from ...publication.column_ranges import find_range
from ...publication.manifest import ShardEntry
from ...publication.shard_files import check_shard_length
from ...publication.storage import Storage
from ...transport.memory.files import SourceFile
from .arriving import open_arriving
from .dataset import Encoding, GeneratorSource, Measures, MessageGroups
from .eviction import ReaderId
from .files.arrow import ArrowFileDataset
from .files.concatenated import ConcatenatedFiles
from .files.origins import LocalOrigin, make_read_error
from .filters import RowFilter
from .messages.reencoding import Batches, encode_groups
from .object_cache import ObjectCache
from .selection import Selection

OpenGroups = Callable[..., MessageGroups]
"""What yields the messages for an open file and a request."""
_MAX_INSPECTED_FILES = 8192


class ShardReader:
    """Reads the shards of one dataset. Safe to use from several threads.

    Unless `follow_symlinks`, no symbolic link in a local folder may lead out of it.
    """

    def __init__(
        self, storage: Storage, cache: ObjectCache, *, follow_symlinks: bool = False
    ) -> None:
        self._follow_symlinks = follow_symlinks
        self._storage = storage
        self._cache = cache
        self._lock = threading.Lock()
        self._inspected: dict[Path, ArrowFileDataset] = {}

    def open(
        self,
        shards: Sequence[ShardEntry],
        schema: pa.Schema,
        request: Request,
        encoding: Encoding,
    ) -> GeneratorSource:
        """Open shards for one reader, in order; see `ServedDataset.open`.

        The caller has dealt with the version and the shard of the request. Several shards of an
        object store are downloaded one at a time, and their schema messages may differ, so they are
        re-encoded.
        """
        selection = Selection.resolve(request, encoding, schema)
        row_filter = selection.filter
        is_numbered = request.batches is not None and len(shards) > 1
        if row_filter is not None and not is_numbered:
            shards = _prune(shards, extend_schema(schema, selection.fields), row_filter)
        folder, location = self._storage.folder, self._storage.location
        if is_numbered and folder is None:
            raise InvalidRequestError(
                "record batches are selected from one shard of a dataset in an object store; "
                "name the shard",
                stream=request.dataset,
            )
        if len(shards) == 1:
            if folder is None:
                arriving = self._open_arriving(
                    shards[0], schema, selection, regions=encoding.regions
                )
                if arriving is not None:
                    return arriving
            with ExitStack() as resources:
                # `_open_arriving` has noted the use.
                local = self._local_file(shards[0], is_new_use=False)
                file = resources.enter_context(local)
                source = self._inspect(file, shards[0], schema).open(request, encoding)
                source.call_on_close(resources.pop_all().close)
            return source
        if shards and folder is not None:
            datasets = [self._inspect(self._find(folder, each), each, schema) for each in shards]
            return ConcatenatedFiles.of(datasets, schema).open(request, encoding, location)
        if selection.filter is None:
            shards, selection = _skip_shards(shards, selection)
        batches = self._read_batches(shards, schema, selection.for_reading(schema))
        groups = encode_groups(selection, batches, location, is_valid=False)
        return GeneratorSource(groups, blocking=True)

    def open_file(
        self, shard: ShardEntry, groups: Callable[[SourceFile], MessageGroups]
    ) -> GeneratorSource:
        """Open the file of a shard, whose messages `groups` yields; errors as for `open`."""
        with ExitStack() as resources:
            source = GeneratorSource(
                groups(self.open_stored_file(shard, resources)), blocking=False
            )
            source.call_on_close(resources.pop_all().close)
        return source

    def open_stored_file(self, shard: ShardEntry, resources: ExitStack) -> SourceFile:
        """Return the open file of a shard, which closing the resources closes."""
        origin = resources.enter_context(self._local_file(shard))
        file = resources.enter_context(closing(origin.open(refuse_writers=False)))
        check_shard_length(shard, file.size, self._storage.location)
        return file

    def _open_arriving(
        self, shard: ShardEntry, schema: pa.Schema, selection: Selection, *, regions: bool
    ) -> GeneratorSource | None:
        """Open a shard that is being downloaded; None if it is complete, or has to be."""
        download = self._cache.find_download(self._storage, shard)
        if download is None:
            return None
        return open_arriving(download, schema, selection, self._storage.location, regions=regions)

    def measure_batches(
        self, shard: ShardEntry, schema: pa.Schema, request: Request, encoding: Encoding
    ) -> Measures:
        """Yield a measure of each record batch of a shard; errors as for `open`."""
        with self._local_file(shard) as file:
            yield from self._inspect(file, shard, schema).measure_batches(request, encoding)

    def has_cached(self, shards: Sequence[ShardEntry]) -> bool:
        """Return whether the shards are in an object store, and the cache has all of them."""
        if self._storage.folder is not None or not shards:
            return False
        return all(self._cache.has(shard) for shard in shards)

    def announce(self, reader: ReaderId, shards: Sequence[ShardEntry], position: int) -> bool:
        """Note the order in which a reader opens shards; return whether the cache uses it."""
        if self._storage.folder is not None:
            return False
        self._cache.announce(reader, self._storage, shards, position)
        return True

    def _read_batches(
        self, shards: Sequence[ShardEntry], schema: pa.Schema, selection: Selection
    ) -> Batches:
        for shard in shards:
            with self._local_file(shard) as origin:
                dataset = self._inspect(origin, shard, schema)
                with closing(dataset.open_file()) as file:
                    contents = dataset.load_contents(file)
                    with closing(dataset.read_batches(file, contents, selection)) as batches:
                        yield from batches

    @contextmanager
    def _local_file(self, shard: ShardEntry, *, is_new_use: bool = True) -> Generator[LocalOrigin]:
        """Yield a shard's file; one in an object store is downloaded into the cache."""
        if self._storage.folder is not None:
            yield self._find(self._storage.folder, shard)
            return
        with self._cache.open_shard(self._storage, shard, is_new_use=is_new_use) as path:
            yield LocalOrigin(path)

    def _find(self, folder: Path, shard: ShardEntry) -> LocalOrigin:
        confining = None if self._follow_symlinks else folder
        return LocalOrigin(folder / shard.path, folder=confining)

    def _inspect(
        self, origin: LocalOrigin, shard: ShardEntry, schema: pa.Schema
    ) -> ArrowFileDataset:
        """Return the dataset in a shard's file. It is inspected once for each state of the file."""
        path = origin.path
        with self._lock:
            known = self._inspected.get(path)
        try:
            if known is not None and origin.read_identity() == known.identity:
                return known
            # A version never changes, and its manifest has the SHA-256 of each shard.
            dataset = ArrowFileDataset(origin, keep_index=False, refuse_writers=False)
        except ProtocolError as error:
            raise DatasetError(f"{path} is not a valid Arrow IPC file: {error.message}") from None
        except OSError as error:
            raise make_read_error(path, error) from None
        check_shard_length(shard, dataset.nbytes or 0, self._storage.location)
        difference = describe_difference(schema, dataset.schema)
        if difference is not None:
            raise DatasetError(f"{path} differs from its manifest: {difference}")
        with self._lock:
            if len(self._inspected) >= _MAX_INSPECTED_FILES:
                self._inspected.clear()
            self._inspected[path] = dataset
        return dataset


def _skip_shards(
    shards: Sequence[ShardEntry], selection: Selection
) -> tuple[Sequence[ShardEntry], Selection]:
    """Skip the shards before the offset."""
    offset = selection.offset
    for index, shard in enumerate(shards):
        if offset < shard.rows:
            return shards[index:], replace(selection, offset=offset)
        offset -= shard.rows
    return (), replace(selection, offset=0)


def _prune(
    shards: Sequence[ShardEntry], schema: pa.Schema, row_filter: RowFilter
) -> Sequence[ShardEntry]:
    """Return the shards in which a filter may match, by their ranges and boxes."""
    return row_filter.prune(
        shards, lambda shard: lambda index: find_range(shard.columns, schema.field(index))
    )
