"""Several files with one schema, read in order as one dataset."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ....errors import DatasetError
from ....filters.ranges import Range, make_point
from ....formats.nested_fields import extend_schema
from ....formats.parquet.variant.arrow_fields import (
    describe_fields,
    list_described_fields,
    merge_fields,
)
from ....protocol.request import Request
from ....transport.memory.files import SourceFile
from ..batch_ranges import ALL_BATCHES, BatchRanges
from ..dataset import Encoding, GeneratorSource, Measures, MessageGroups, check_batches
from ..messages.message_index import MessageIndex
from ..messages.passthrough import PassthroughMessages
from ..messages.plan import allows_passthrough
from ..messages.reencoding import Batches, encode_groups, measure_batches
from ..selection import Selection
from .file_dataset import FileContents, FileDataset
from .hive import Partitions, PartitionValues, add_partition_columns, select_from_file
from .origins import Identity


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One of the files."""

    dataset: FileDataset
    """The dataset in the file. It keeps no index between readers: there may be many files."""
    identity: Identity
    """The state of the file when it was listed."""
    partition_values: PartitionValues
    """The values of the partition columns for this file."""
    batches: BatchRanges = ALL_BATCHES
    """The stored record batches or row groups to read."""

    @contextmanager
    def open(self) -> Generator[tuple[SourceFile, FileContents]]:
        """Open the file; raise `DatasetError` if it has changed since it was listed."""
        with closing(self.dataset.open_file()) as file:
            if file.version != self.identity:
                raise DatasetError(f"{self.dataset.path} changed while the directory was read")
            yield file, self.dataset.load_contents(file)

    def list_batch_rows(self) -> list[int]:
        """Return the rows of each stored record batch or row group to read."""
        with self.open() as (file, contents):
            return list(self.batches.select(self.dataset.list_batch_rows(file, contents)))

    def count_batches(self) -> int:
        """Return the number of stored record batches or row groups in the file."""
        with self.open() as (file, contents):
            return self.dataset.count_batches(file, contents)

    def find_range(self, index: int, schema: pa.Schema) -> Range:
        """Return what is known of a column without opening the file; `schema` is that of all files.

        The partition columns are the last ones.
        """
        place = index - len(schema) + len(self.partition_values)
        if 0 <= place < len(self.partition_values):
            return make_point(self.partition_values[place])
        return self.dataset.find_range(index)

    @property
    def rows(self) -> int | None:
        """The number of rows to read before any filter; None if it is unknown."""
        if not self.batches.is_all:
            return sum(self.list_batch_rows())
        return self.dataset.rows


@dataclass(frozen=True, slots=True)
class ConcatenatedFiles:
    """Files with one schema, in the order in which they are read."""

    entries: tuple[FileEntry, ...]
    """The files."""
    file_schema: pa.Schema
    """The schema of each file."""
    schema: pa.Schema
    """The schema of the files, followed by the partition columns."""
    index: MessageIndex | None
    """The schema message that all files begin with, in an index without blocks. None if the files
    must be re-encoded."""
    codecs: frozenset[str]
    """The compressions of the messages in the files: ``none``, ``lz4``, ``zstd``."""

    @classmethod
    def of(
        cls,
        datasets: Sequence[FileDataset],
        file_schema: pa.Schema,
        partitions: Partitions | None = None,
    ) -> ConcatenatedFiles:
        """Concatenate files that have the same schema."""
        index = datasets[0].index if datasets else None
        if index is not None and not all(
            index.has_schema_message_of(d.index) and not d.origin.is_remote for d in datasets
        ):
            index = None
        schema = file_schema
        values: Sequence[PartitionValues] = [()] * len(datasets)
        if partitions is not None:
            values = partitions.values
            for field in partitions.fields:
                schema = schema.append(field)
        return cls(
            entries=tuple(
                FileEntry(dataset, dataset.identity, value)
                for dataset, value in zip(datasets, values, strict=True)
            ),
            file_schema=file_schema,
            schema=schema,
            index=index,
            codecs=frozenset(d.index.codec or "none" for d in datasets if d.index is not None),
        )

    @property
    def reads_fields(self) -> bool:
        """Whether all files return the fields of a selection; see `FileDataset.reads_fields`."""
        return all(entry.dataset.reads_fields for entry in self.entries)

    def describe_fields(self) -> ConcatenatedFiles:
        """Return the files with a schema that describes the fields of Variants in any of them."""
        found = [list_described_fields(entry.dataset.schema) for entry in self.entries]
        return replace(self, schema=describe_fields(self.schema, merge_fields(found)))

    def has_files(self, datasets: Sequence[FileDataset]) -> bool:
        """Return whether these are the files, and none has changed since it was listed."""
        return len(datasets) == len(self.entries) and all(
            dataset is entry.dataset and dataset.identity == entry.identity
            for dataset, entry in zip(datasets, self.entries, strict=True)
        )

    def open(self, request: Request, encoding: Encoding, label: str) -> GeneratorSource:
        """Open the files for one reader, one file at a time; see `ServedDataset.open`.

        The caller has dealt with the version and the shard of the request.
        """
        selection = Selection.resolve(
            request, encoding, self.schema, reads_fields=self.reads_fields
        )
        files = self if request.batches is None else self._select_batches(request)
        if selection.offset and selection.filter is None:
            files, selection = files._skip_rows(selection)
        if files.index is not None and allows_passthrough(selection, files.codecs):
            groups = files._passthrough_groups(files.index, regions=encoding.regions)
            paths = [Path(entry.dataset.path) for entry in files.entries]
            region_files = paths if encoding.regions else []
            return GeneratorSource(groups, blocking=False, region_files=region_files)
        batches = files._read_batches(selection.for_reading(files.schema))
        is_valid = all(entry.dataset.decodes_batches for entry in files.entries)
        groups = encode_groups(selection, batches, label, is_valid=is_valid)
        return GeneratorSource(groups, blocking=True)

    def measure_batches(self, request: Request, encoding: Encoding, label: str) -> Measures:
        """Yield a measure of each stored batch; see `ServedDataset.measure_batches`.

        The caller has dealt with the version and the shard of the request.
        """
        selection = Selection.for_measuring(
            request, encoding, self.schema, reads_fields=self.reads_fields
        )
        rows = [rows for entry in self.entries for rows in entry.list_batch_rows()]
        is_valid = all(entry.dataset.decodes_batches for entry in self.entries)
        return measure_batches(selection, self._read_batches, rows, label, is_valid=is_valid)

    def _select_batches(self, request: Request) -> ConcatenatedFiles:
        """Return the files with the record batches of a request, counted over all files."""
        ranges = BatchRanges.of(request)
        entries: list[FileEntry] = []
        begin = 0
        for entry in self.entries:
            count = entry.count_batches()
            batches = ranges.within(begin, count)
            if batches.ranges:
                entries.append(replace(entry, batches=batches))
            begin += count
        check_batches(request, begin)
        return replace(self, entries=tuple(entries))

    def _skip_rows(self, selection: Selection) -> tuple[ConcatenatedFiles, Selection]:
        """Skip the files before the offset, and the record batches before it in the next file."""
        offset = selection.offset
        for number, entry in enumerate(self.entries):
            rows = entry.rows
            if rows is None or offset < rows:
                with entry.open() as (file, contents):
                    in_file = Selection(self.file_schema, offset=offset, batches=entry.batches)
                    in_file = entry.dataset.skip_rows(file, contents, in_file)
                entry = replace(entry, batches=in_file.batches)
                entries = (entry, *self.entries[number + 1 :])
                return replace(self, entries=entries), replace(selection, offset=in_file.offset)
            offset -= rows
        return replace(self, entries=()), replace(selection, offset=0)

    def _passthrough_groups(self, first: MessageIndex, *, regions: bool) -> MessageGroups:
        yield [first.schema_message()]
        for entry in self.entries:
            with entry.open() as (file, contents):
                if regions:
                    file.require_regions()
                index = contents.index
                if index is None or not first.has_schema_message_of(index):
                    raise DatasetError(f"{entry.dataset.path} changed while it was read")
                if not entry.batches.is_all:
                    index = index.select_batches(file, entry.batches)
                yield from PassthroughMessages(index, regions=regions).groups(file)

    def _read_batches(self, selection: Selection) -> Batches:
        partitions = range(len(self.file_schema), len(self.schema))
        schema = extend_schema(self.file_schema, selection.fields)
        in_file = select_from_file(selection, schema, partitions)
        entries: Sequence[FileEntry] = self.entries
        if selection.filter is not None:
            entries = selection.filter.prune(
                entries, lambda entry: lambda index: entry.find_range(index, self.schema)
            )
        for entry in entries:
            in_file = replace(in_file, batches=entry.batches)
            with (
                entry.open() as (file, contents),
                closing(entry.dataset.read_batches(file, contents, in_file)) as batches,
            ):
                for batch, custom_metadata in batches:
                    values = entry.partition_values
                    batch = add_partition_columns(batch, values, selection, partitions)
                    yield batch, custom_metadata
