"""`MapDataset`: the rows of a dataset of daemons by their numbers, for samplers of PyTorch.

A read streams the record batches that have the rows, and takes the rows from each one as it
arrives. Memory then bounds the rows of a batch, not the record batches that they are in.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby, pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..client.connect import AnyClient
from ..client.dataset.endpoints import TRANSIENT, draw_pause
from ..client.tokens import Token, TokenFile, parse_token
from ..client.uris import parse_control_uris
from ..errors import DatasetError, UsageError
from ..formats.arguments import check_function, check_integer, refuse
from ..protocol.request import MAX_BATCH_RANGES, Span
from ..transport.tls_options import TlsOptions
from .blocks import CONNECT_ATTEMPTS
from .dataset import check_categories, select
from .plan import DatasetPlan, Servers, plan_dataset
from .record_batches import join_batches, transform_batch, with_plain_types
from .tensors import (
    Decode,
    OnNull,
    Strings,
    TensorOptions,
    check_schema,
    convert_batch,
    split_rows,
    torch,
)

DEFAULT_CACHE_BYTES = 64 << 20
_MAX_SHARD_READS = 8
"""The shards that are read at a time."""
_compute: Any = pc  # its stubs lack functions
_MapDatasetBase: Any = torch.utils.data.Dataset


class _BatchCache:
    """The record batches that were used last, up to a size in bytes. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._batches: OrderedDict[int, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._bytes = 0

    def get(self, block: int) -> pa.RecordBatch | None:
        """Return the record batch of a block, or None if it is not in the cache."""
        with self._lock:
            found = self._batches.get(block)
            if found is None:
                return None
            self._batches.move_to_end(block)
            return found[0]

    def put(self, block: int, batch: pa.RecordBatch) -> None:
        """Keep the record batch of a block, and drop those that were not used for longest."""
        nbytes = batch.get_total_buffer_size()
        if nbytes > self._max_bytes:
            return
        with self._lock:
            _, replaced = self._batches.pop(block, (None, 0))
            self._batches[block] = batch, nbytes
            self._bytes += nbytes - replaced
            while self._bytes > self._max_bytes:
                _, (_, dropped) = self._batches.popitem(last=False)
                self._bytes -= dropped


class _ProcessState:
    """The client and the cache of one process. Any thread may use it.

    The client is connected at its first use. It is closed before the process forks, unless it is in
    use: forked processes cannot use gRPC beside it.
    """

    def __init__(self, servers: Servers, cache_bytes: int) -> None:
        self._servers = servers
        self._cache_bytes = cache_bytes
        self._inherited: object = None
        """The state of the parent process. It stays as it is."""
        self._start()
        _STATES.add(self)

    def _start(self) -> None:
        # Reentrant, because connecting may fork.
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._client: AnyClient | None = None
        self._users = 0
        self.cache = _BatchCache(self._cache_bytes)
        """The record batches that were read last."""

    @contextmanager
    def client(self) -> Generator[AnyClient]:
        """Yield the client, which stays open afterwards."""
        with self._lock:
            if self._client is None:
                self._client = self._servers.connect()
            client = self._client
            self._users += 1
        try:
            yield client
        finally:
            with self._lock:
                self._users -= 1

    def close_idle(self) -> None:
        """Close the client, unless it is in use, or is that of the parent process."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._client is not None and not self._users:
                self._client.close()
                self._client = None

    def after_fork(self) -> None:
        """Leave client and cache to the parent process."""
        self._inherited = (self._client, self.cache, self._inherited)
        self._start()


_STATES: weakref.WeakSet[_ProcessState] = weakref.WeakSet()


def _close_idle_clients() -> None:
    for state in list(_STATES):
        state.close_idle()


def _leave_to_parent() -> None:
    for state in list(_STATES):
        state.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_idle_clients, after_in_child=_leave_to_parent)


class MapDataset(_MapDatasetBase):
    """A dataset of one or more daemons whose rows have numbers, for PyTorch's samplers.

    An item is a dict with the values of one row: tensors, and texts. Several rows at a time, as a
    loader requests them, take one request for each shard that has some of them, which sends only
    the record batches that they are in. It can be pickled. Each process connects at its first
    read. `StreamDataset` is faster for all rows in any shuffled order: it reads each record batch
    once.

    To get whole batches without the detour over rows, pass the sampler of the batches to the
    loader::

        sampler = torch.utils.data.BatchSampler(RandomSampler(dataset), 256, drop_last=False)
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)

    Parameters
    ----------
    uri : str or sequence of str
        The control planes, as in `splitarrow.connect`.
    name : str
        The dataset.
    columns : str or sequence of str, optional
        The columns to read. `None` reads all.
    filter : str, tuples, or expression, optional
        The rows that the dataset has, as in `Client.read`. The daemon counts them when the dataset
        is made.
    version : str, optional
        The version of the dataset. `None` takes the current one. It does not change afterwards.
    on_null : {"error", "mask", "fill"}
        What happens to nulls; see `StreamDataset`.
    strings : {"list", "bytes"}
        Whether texts and binary values stay as they are, or become tensors of bytes.
    categories : mapping of str to sequence, optional
        All values of dictionary columns. The default are those of the first record batch of each
        shard.
    decode : {"image", "audio"} or mapping of str to {"image", "audio"}, optional
        Decodes all binary columns, or those of a mapping such as ``{"picture": "image"}``; see
        `StreamDataset`. Each image or sound is a tensor, so loaders stack those of one size.
    transform : callable, optional
        Receives the ``pyarrow.RecordBatch`` with the rows of each request, and returns one with as
        many rows to convert.
    collate : callable, optional
        Receives each dict, of a row or of a batch, and returns what is delivered in its place.
    token, token_file, tls
        As in `splitarrow.connect`.
    transport : str
        As in `Client.read`.
    cache_bytes : int
        The size of the record batches that each process keeps for the next rows, in bytes. Over
        shared memory, they are leases of the server's memory. 0 keeps none.

    Raises
    ------
    UsageError
        If an argument is invalid, or a column does not become a tensor.
    SplitArrowError
        As `Client.read` does.
    """

    def __init__(
        self,
        uri: str | Sequence[str],
        name: str,
        *,
        columns: str | Sequence[str] | None = None,
        filter: Any = None,
        version: str | None = None,
        on_null: OnNull = "error",
        strings: Strings = "list",
        categories: Mapping[str, Sequence[Any]] | None = None,
        decode: Decode | None = None,
        transform: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
        collate: Callable[[dict[str, Any]], Any] | None = None,
        token: Token | None = None,
        token_file: TokenFile = None,
        tls: TlsOptions | None = None,
        transport: str = "auto",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._servers = Servers(tuple(parse_control_uris(uri)), parse_token(token, token_file), tls)
        self._tensor_options = TensorOptions(on_null, strings, decode)
        self._transform = check_function("transform", transform)
        self._collate = check_function("collate", collate)
        self._cache_bytes = check_integer("cache_bytes", cache_bytes, 0)
        selection = select(name, columns, filter, version, transport)
        # A block for each record batch with rows, which are all in its last record batch.
        self._plan = plan_dataset(self._servers, selection, 1, check_categories(categories))
        if transform is None:
            check_schema(self._plan.schema, self._tensor_options, self._plan.categories)
        self._open()

    def _open(self) -> None:
        rows = np.array([block.rows for block in self._plan.blocks], np.int64)
        self._ends: NDArray[np.int64] = np.cumsum(rows)
        self._begins: NDArray[np.int64] = self._ends - rows
        self._state = _ProcessState(self._servers, self._cache_bytes)
        weakref.finalize(self, self._state.close_idle)

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_begins", "_ends", "_state")
        return {key: value for key, value in vars(self).items() if key not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def plan(self) -> DatasetPlan:
        """The record batches of the dataset that have rows."""
        return self._plan

    @property
    def version(self) -> str:
        """The version of the dataset. Pass it to all ranks if the dataset may change meanwhile."""
        return self._plan.selection.version

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        return self._plan.schema

    @property
    def categories(self) -> dict[str, list[Any]]:
        """The values that the codes of each dictionary column refer to."""
        return {name: values.to_pylist() for name, values in self._plan.categories.items()}

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: Any) -> Any:
        """Return a row, or the rows with a sequence of numbers as `rows` does.

        A negative number counts from the end.

        Raises
        ------
        IndexError
            If there is no such row.
        UsageError
            If it is not an integer, or such a sequence.
        SplitArrowError
            As `Client.read` does.
        """
        if isinstance(index, Sequence) or getattr(index, "ndim", 0):
            return self.rows(cast("Any", index))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return some rows, each like `__getitem__`. Loaders call this."""
        batch = self._take(_check_indices(indices, len(self), self._plan.selection.name))
        tensors = convert_batch(batch, self._tensor_options, self._plan.categories)
        items = split_rows(tensors, batch.schema, batch.num_rows, self._tensor_options)
        return items if self._collate is None else [self._collate(item) for item in items]

    def rows(self, indices: Any) -> Any:
        """Return some rows as one batch.

        Parameters
        ----------
        indices : sequence of int, NumPy array or tensor
            The numbers of the rows, in any order. They may repeat.

        Returns
        -------
        dict of str to Tensor or list
            The rows in the order of the numbers, as `StreamDataset` delivers them; or what
            `collate` returns for them.

        Raises
        ------
        IndexError
            If there is no such row.
        UsageError
            If they are not integers.
        SplitArrowError
            As `Client.read` does.
        """
        batch = self._take(_check_indices(indices, len(self), self._plan.selection.name))
        tensors = convert_batch(batch, self._tensor_options, self._plan.categories)
        return tensors if self._collate is None else self._collate(tensors)

    def _take(self, indices: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows with some numbers, in memory of their own."""
        # By number, so that each record batch and each shard occurs once.
        order = np.argsort(indices, kind="stable")
        batch = self._read_sorted(indices[order])
        if not np.array_equal(order, np.arange(len(order))):
            places = np.empty_like(order)
            places[order] = np.arange(len(order))
            batch = batch.take(places)
        if self._transform is None:
            return batch
        rows = batch.num_rows
        batch = transform_batch(self._transform, batch)
        if batch.num_rows != rows:
            raise UsageError(
                f"transform returned {batch.num_rows} rows for {rows}; expected as many: rows have "
                "numbers"
            )
        return batch

    def _read_sorted(self, indices: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows with ascending numbers."""
        if not len(indices):
            arrays = [pa.nulls(0, field.type) for field in self.schema]
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        found: NDArray[np.int64] = np.searchsorted(self._ends, indices, side="right")
        cuts = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
        wanted = {
            int(found[first]): indices[first:end] - self._begins[found[first]]
            for first, end in pairwise(cuts)
        }
        taken: dict[int, pa.RecordBatch] = {}
        missing: list[int] = []
        for block, rows in wanted.items():
            batch = self._state.cache.get(block)
            if batch is None:
                missing.append(block)
            else:
                taken[block] = batch.take(rows)
        blocks = self._plan.blocks
        shards = [list(part) for _, part in groupby(missing, lambda block: blocks[block].shard)]

        def read(shard: list[int]) -> None:
            for block, batch in self._read_blocks(shard):
                taken[block] = batch.take(wanted[block])

        if len(shards) == 1:
            read(shards[0])
        elif shards:
            with ThreadPoolExecutor(min(len(shards), _MAX_SHARD_READS), "splitarrow-map") as pool:
                list(pool.map(read, shards))
        return join_batches([taken[block] for block in wanted])

    def _read_blocks(self, blocks: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the record batches of some blocks of one shard, and keep them."""
        attempt = 0
        while blocks:
            try:
                for block, batch in self._stream_blocks(blocks):
                    attempt, blocks = 0, blocks[1:]
                    self._state.cache.put(block, batch)
                    yield block, batch
            except TRANSIENT:
                attempt += 1
                if attempt == CONNECT_ATTEMPTS:
                    raise
                time.sleep(draw_pause(attempt - 1))

    def _stream_blocks(self, blocks: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the record batches of blocks, as far as one request can name them."""
        plan = self._plan
        ranges = _merge([plan.blocks[block].end - 1 for block in blocks])[:MAX_BATCH_RANGES]
        remaining = [b for b in blocks if plan.blocks[b].end <= ranges[-1][1]]
        shard = plan.blocks[blocks[0]].shard
        parts: list[pa.RecordBatch] = []
        with (
            self._state.client() as client,
            plan.selection.open(client, shard, ranges) as stream,
        ):
            position = rows = 0
            for arrived in stream:
                batch, begin = with_plain_types(arrived), 0
                while begin < batch.num_rows:
                    if position == len(remaining):
                        raise self._row_error(shard, ranges)
                    block = remaining[position]
                    part = batch.slice(begin, plan.blocks[block].rows - rows)
                    begin += part.num_rows
                    rows += part.num_rows
                    parts.append(part)
                    if rows == plan.blocks[block].rows:
                        whole = join_batches(parts)
                        if len(parts) == 1 and part.num_rows < batch.num_rows:
                            whole = whole.take(np.arange(rows))  # without the other rows
                        parts, rows = [], 0
                        position += 1
                        yield block, whole
        if position < len(remaining):
            raise self._row_error(shard, ranges)

    def _row_error(self, shard: int, ranges: list[Span]) -> DatasetError:
        texts = ", ".join(f"{first}:{end}" for first, end in ranges)
        return DatasetError(
            f"the record batches {texts} of shard {shard} do not have the numbers of rows that "
            "the daemon has counted",
            stream=self._plan.selection.name,
        )


def _check_indices(indices: Any, rows: int, name: str) -> NDArray[np.int64]:
    """Return the numbers of rows, counted from the beginning; raise IndexError if one is beyond."""
    try:
        found = np.asarray(indices)
    except (TypeError, ValueError, RuntimeError):  # lists of different lengths, other devices
        found = np.empty(0, object)
    if isinstance(indices, Sequence | np.ndarray) and not found.size and found.ndim == 1:
        return np.empty(0, np.int64)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        refuse(f"the index into {name!r}", indices, "integers of 64 bits")
    beyond = (found < -rows) | (found >= rows)
    if beyond.any():
        raise IndexError(f"there is no row {found[beyond][0]}; {name!r} has {rows} rows")
    numbers = found.astype(np.int64)
    return np.where(numbers < 0, numbers + rows, numbers)


def _merge(numbers: list[int]) -> list[Span]:
    """Return ascending numbers as ranges that do not touch each other."""
    cuts = [n for n in range(1, len(numbers)) if numbers[n] != numbers[n - 1] + 1]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in pairwise([0, *cuts, len(numbers)])]
