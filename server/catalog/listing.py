"""Files of one schema, read one after the other as one dataset."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from ...errors import DatasetError
from ...protocol.request import Request
from ...transport.regions import RegionFile
from .base import Encoding
from .encoded import Batches, encoded_groups
from .files import FileDataset
from .hive import Values, file_selection, with_partitions
from .selection import Selection
from .source import Groups, GroupSource
from .stored import StoredMessages


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One of the files."""

    dataset: FileDataset
    """What is in it. Its index is made anew for each reader: there may be many shards."""
    identity: tuple[int, ...]
    """Which state of the file was looked into."""
    values: Values
    """The values of the partition columns."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files, and what they have in common."""

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


def open_listing(listing: Listing, request: Request, encoding: Encoding, what: str) -> GroupSource:
    """Begin to read all files of a listing for one reader.

    Parameters
    ----------
    listing : Listing
        The files.
    request : Request
        What is asked for; of it, version and shard have been dealt with.
    encoding : Encoding
        The server's defaults.
    what : str
        What they are, for errors.

    Raises
    ------
    SplitArrowError
        As `Dataset.open` says.
    """
    selection = Selection.resolve(request, encoding, listing.schema)
    if selection.offset and selection.filter is None:
        listing, selection = _skipped(listing, selection)
    if _lies_as_wanted(selection, listing):
        groups = _stored_groups(listing, selection.first, regions=encoding.regions)
        blocking = False
        placed = [s.dataset.path for s in listing.shards] if encoding.regions else []
    else:
        batches = _batches(listing, selection.to_read(listing.schema))
        is_valid = all(shard.dataset.is_decoded for shard in listing.shards)
        groups = encoded_groups(selection, batches, what, is_valid=is_valid)
        blocking, placed = True, []
    return GroupSource(groups, blocking=blocking, on_close=lambda: None, placed=placed)


def _stored_groups(listing: Listing, skip: int, *, regions: bool) -> Groups:
    first = listing.stored
    assert first is not None
    yield [first.schema_message()]
    for shard in listing.shards:
        with closing(_open(shard)) as file:
            stored = shard.dataset.contents(file).stored
            if stored is None or not first.begins_like(stored):
                raise DatasetError(f"{shard.dataset.path} changed while it was read")
            stored = stored.after(file, skip) if skip else stored
            yield from stored.regions(file) if regions else stored.groups(file)
            skip = 0


def _batches(listing: Listing, selection: Selection) -> Batches:
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
