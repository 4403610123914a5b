"""What a task of the sink does: record batches in, finished shards in staging out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from ..errors import DatasetError
from ..formats.arrow.aligned import AlignedFile
from ..formats.manifest import RESERVED, ShardEntry
from ..formats.ranges import RangeTracker
from ..server.catalog.versions import VersionStore
from .casting import Caster
from .dictionaries import GrowingDictionaries

BATCH_BYTES = 4 << 20
"""How large the record batches of a shard are, about: what a reader is handed at a time."""
_BUFFERED = 1 << 20


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How shards are written. It goes to every task."""

    location: str
    """The dataset: a path, or the URL of an object store."""
    job: str
    """The publication that they belong to."""
    schema: pa.Schema
    """Their schema, without dictionaries."""
    rows_per_shard: int | None = None
    """The number of rows after which a new shard begins."""
    bytes_per_shard: int | None = None
    """The size of the file, in bytes, after which a new shard begins."""
    compression: str | None = None
    """``lz4``, ``zstd`` or None."""
    dictionary: tuple[str, ...] = ()
    """The columns that are dictionary-encoded."""

    @property
    def stored_schema(self) -> pa.Schema:
        """Their schema."""
        return GrowingDictionaries(self.schema, self.dictionary).schema


def write_shards(plan: ShardPlan, task: str, batches: Iterable[pa.RecordBatch]) -> list[ShardEntry]:
    """Write the rows of a task to shards in staging, where nobody sees them yet.

    Memory for about two record batches is taken, whatever the size of the shards.

    Parameters
    ----------
    plan : ShardPlan
        How.
    task : str
        What no other attempt of any task of the job is called.
    batches : iterable of pyarrow.RecordBatch
        The rows.

    Returns
    -------
    list of ShardEntry
        In order; none if there are no rows. They have no ordinals yet.

    Raises
    ------
    DatasetError
        If the dataset cannot be written.
    InvalidDataError
        If a value does not fit the schema.
    """
    store = VersionStore(plan.location)
    finished: list[ShardEntry] = []
    shard: _Shard | None = None
    try:
        with _scratch(store, plan.job) as scratch:
            for batch in _sized(_cast(plan, batches), plan.rows_per_shard):
                at = 0
                while at < batch.num_rows:
                    if shard is None:
                        shard = _Shard(plan, scratch / f"{task}-{len(finished):05}.part")
                    left = (plan.rows_per_shard or batch.num_rows + shard.rows) - shard.rows
                    piece = batch.slice(at, left)
                    shard.add(piece)
                    at += piece.num_rows
                    if shard.is_full:
                        finished.append(shard.stage(store, f"{task}-{len(finished):05}"))
                        shard = None
            if shard is not None:
                finished.append(shard.stage(store, f"{task}-{len(finished):05}"))
                shard = None
    except OSError as error:
        raise DatasetError(f"cannot write shards of {plan.location}: {error.strerror}") from None
    finally:
        if shard is not None:
            shard.abandon()
    return finished


class _Shard:
    """A shard being written to a file of this machine."""

    def __init__(self, plan: ShardPlan, path: Path) -> None:
        self._plan = plan
        self._path = path
        self._dictionaries = GrowingDictionaries(plan.schema, plan.dictionary)
        self._file = AlignedFile(self._dictionaries.schema, plan.compression)
        self._tracker = RangeTracker(plan.schema)
        self._digest = hashlib.sha256()
        self._out = path.open("xb", buffering=_BUFFERED)
        self.rows = 0
        self._write(self._file.begin())

    @property
    def is_full(self) -> bool:
        rows, nbytes = self._plan.rows_per_shard, self._plan.bytes_per_shard
        return (rows is not None and self.rows >= rows) or (
            nbytes is not None and self._file.position >= nbytes
        )

    def add(self, batch: pa.RecordBatch) -> None:
        self._tracker.add(batch)
        self._write(self._file.add(self._dictionaries.encode(batch)))
        self.rows += batch.num_rows

    def stage(self, store: VersionStore, stem: str) -> ShardEntry:
        self._write(self._file.end())
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        sha256 = self._digest.hexdigest()
        name = f"{stem}-{sha256[:16]}.arrow"
        job = self._plan.job
        store.storage.put(f"{RESERVED}/staging/{job}/{name}", self._path)
        ranges = self._tracker.ranges()
        return ShardEntry(f"data/{job}/{name}", self.rows, self._file.position, sha256, ranges)

    def abandon(self) -> None:
        self._out.close()
        with suppress(OSError):
            self._path.unlink()

    def _write(self, pieces: Sequence[Any]) -> None:
        for piece in pieces:
            self._digest.update(piece)
            self._out.write(piece)


@contextmanager
def _scratch(store: VersionStore, job: str) -> Generator[Path]:
    """Yield a folder to write to: where shards are staged, if that is on this machine."""
    folder = store.storage.folder
    if folder is None:
        with TemporaryDirectory(prefix="splitarrow-shards-") as scratch:
            yield Path(scratch)
    else:
        staging = folder / RESERVED / "staging" / job
        staging.mkdir(parents=True, exist_ok=True)
        yield staging


def _cast(plan: ShardPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    caster: Caster | None = None
    for batch in batches:
        caster = caster or Caster(batch.schema, plan.schema)
        if batch.num_rows:
            yield caster.cast(batch)


def _sized(batches: Iterable[pa.RecordBatch], most_rows: int | None) -> Iterator[pa.RecordBatch]:
    """Put small batches together, so that each has about `BATCH_BYTES` bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        nbytes += batch.nbytes
        if nbytes >= BATCH_BYTES or (most_rows is not None and rows >= most_rows):
            yield _joined(waiting)
            waiting, rows, nbytes = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    arrow: Any = pa  # the stubs lack this function
    return batches[0] if len(batches) == 1 else arrow.concat_batches(batches)
