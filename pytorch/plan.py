"""The plan of a dataset: its blocks, which are read and shuffled as a whole, and its categories.

A loader can fork the trainer safely only while the trainer does not use gRPC. Where loaders fork,
a process of its own makes the plan.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa

from ..client.connect import AnyClient, connect
from ..client.dataset.client import Client
from ..client.kept_clients import KEPT_CLIENTS
from ..client.tokens import FixedToken, TokenSource
from ..errors import ConnectionLostError, DatasetError, SplitArrowError, UsageError
from ..formats.arrow.numpy_arrays import prevent_pandas_import
from ..formats.nested_fields import select_schema
from ..protocol.request import Span
from ..protocol.uri import DataUri
from ..transport.grpc_usage import GRPC_USAGE
from ..transport.tls_options import TlsOptions
from .record_batches import find_plain_type

if TYPE_CHECKING:
    from ..client.dataset.dataset import DatasetStream


P = ParamSpec("P")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Servers:
    """The control planes of a dataset. They can be pickled."""

    uris: tuple[DataUri, ...]
    """The control planes."""
    token: TokenSource | None
    """The bearer token."""
    tls: TlsOptions | None
    """Certificates for TLS. None reads the variables of the environment."""

    def connect(self) -> AnyClient:
        """Connect; raises as `splitarrow.connect` does."""
        return connect(self.uris, self.token, tls=self.tls)

    def fix_token(self) -> Servers:
        """Return the same with the token of now: another process may lack the function of one."""
        token = self.token
        return self if token is None else replace(self, token=FixedToken(token.current()))

    def borrow(self) -> AbstractContextManager[AnyClient]:
        """Return a context manager of the client that all loaders of this process share.

        It stays connected for a while, so that the next epoch can begin at once. Entering raises
        as `connect` does.
        """
        key = self, self.tls or TlsOptions.from_environment()
        return KEPT_CLIENTS.borrow(key, self.connect)


Categories = Mapping[str, Any]
"""The values that the codes of dictionary columns refer to, by column."""


class Block(NamedTuple):
    """Consecutive record batches of one shard."""

    shard: int
    """The ordinal of the shard."""
    first: int
    """The first record batch."""
    end: int
    """The record batch after the last."""
    rows: int
    """The number of rows that the filter selects."""


class BlockBatches(NamedTuple):
    """The record batches of a block that have rows."""

    batches: list[Any]
    """The record batches; each is a `DeviceBatch` on a device."""
    is_mapped: bool
    """Whether they came over shared memory, and take no memory of this process."""
    resumed: int
    """How often the read has continued over a new connection so far."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def nbytes(self) -> int:
        """The size of the buffers in bytes."""
        return sum(batch.get_total_buffer_size() for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of the dataset. It can be pickled."""

    name: str
    """The dataset."""
    columns: tuple[str, ...] | None
    """The columns; None means all."""
    filter: Any
    """The ``pyarrow.compute`` expression that selects rows; None means all rows."""
    version: str
    """The version."""
    options: Mapping[str, Any]
    """Further arguments of `Client.read`."""

    def open(
        self, client: AnyClient, shard: int | None, ranges: Sequence[Span], **options: Any
    ) -> DatasetStream:
        """Open some ranges of the record batches of a shard, or else of the dataset.

        Raises as `Client.read` does.
        """
        return client.read(
            self.name,
            columns=self.columns,
            filter=self.filter,
            version=self.version or None,
            shards=None if shard is None else [shard],
            batches=ranges,
            **{**self.options, **options},
        )


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """The blocks of one version of a dataset. It can be pickled."""

    selection: Selection
    """What is read."""
    schema: pa.Schema
    """The schema of the selected columns."""
    blocks: tuple[Block, ...]
    """All blocks, in the order of the dataset."""
    layout: str
    """A checksum of the blocks and the filter. Positions are valid for equal layouts only."""
    categories: Categories
    """The categories of the dictionary columns."""
    starts: Mapping[int, int]
    """The number of the first record batch of each shard in the dataset. Empty if a read cannot
    cross from one shard to the next, because they are on several daemons."""

    def with_options(self, **options: Any) -> DatasetPlan:
        """Return the plan with further arguments of `Client.read`."""
        selection = replace(self.selection, options={**self.selection.options, **options})
        return replace(self, selection=selection)

    def find_ranges(self, blocks: Sequence[Block]) -> tuple[int | None, list[Span]]:
        """Return the ranges of record batches of ascending blocks, and the shard if it is one."""
        shard = blocks[0].shard if blocks[0].shard == blocks[-1].shard else None
        ranges: list[Span] = []
        for block in blocks:
            start = self.starts[block.shard] if shard is None else 0
            first, end = start + block.first, start + block.end
            if ranges and ranges[-1][1] == first:
                first, _ = ranges.pop()
            ranges.append((first, end))
        return shard, ranges

    def list_shards(self, blocks: Iterable[int]) -> Iterator[int]:
        """Yield the ordinals of the shards of some blocks, without repetitions in succession."""
        return (shard for shard, _ in groupby(self.blocks[block].shard for block in blocks))

    def read(self, client: AnyClient, blocks: Sequence[Block]) -> Generator[BlockBatches]:
        """Yield the record batches of ascending blocks, each block when it has arrived.

        A record batch is in one block only. The last block follows the end of the stream. Raises
        `DatasetError` if a block has other rows than planned, and as `Client.read` does.
        """
        shard, ranges = self.find_ranges(blocks)
        with self.selection.open(client, shard, ranges) as stream:
            source: Any = getattr(stream, "source", stream)  # the stream in a `DeviceStream`
            is_mapped = source is stream and source.transport == "shm"
            batches = iter(stream)
            for number, block in enumerate(blocks, 1):
                found = BlockBatches(_take_rows(batches, block.rows), is_mapped, source.resumed)
                rows = found.rows
                if number == len(blocks):
                    rows += sum(batch.num_rows for batch in batches)
                if rows != block.rows:
                    raise DatasetError(
                        f"record batches {block.first}:{block.end} of shard {block.shard} have "
                        f"{rows} rows; expected {block.rows}",
                        stream=self.selection.name,
                    )
                yield found
                del found  # its memory may be leased


def _take_rows(batches: Iterator[Any], rows: int) -> list[Any]:
    """Return the next record batches that have so many rows together, or more; fewer at the end."""
    found: list[Any] = []
    while rows > 0 and (batch := next(batches, None)) is not None:
        if batch.num_rows:
            found.append(batch)
            rows -= batch.num_rows
    return found


def make_plan(
    client: AnyClient,
    selection: Selection,
    window_rows: int,
    categories: Mapping[str, Sequence[Any]],
) -> DatasetPlan:
    """Describe a dataset, count the rows of its record batches and form blocks of them.

    An empty version means the current one. Categories that are not given are those of the first
    record batch of each shard. Raises `SplitArrowError` if the daemons refuse, or the dataset has
    no random access. Raises `UsageError` if categories are given for a column without a dictionary.
    """
    info = client.info(selection.name)
    version = selection.version or info.version
    selection = replace(selection, version=version)
    counts = client.count_rows(selection.name, filter=selection.filter, version=version or None)
    blocks = tuple(form_blocks(counts, window_rows))
    schema = info.schema
    if selection.columns is not None:
        schema = select_schema(schema, selection.columns)
    return DatasetPlan(
        selection,
        schema,
        blocks,
        _digest(blocks if selection.filter is None else (blocks, str(selection.filter))),
        _find_categories(client, selection, schema, counts, categories),
        _find_starts(counts) if isinstance(client, Client) else {},
    )


def _find_starts(counts: Mapping[int, Sequence[int]]) -> dict[int, int]:
    ends = accumulate(map(len, counts.values()))
    return {shard: end - len(counts[shard]) for shard, end in zip(counts, ends, strict=True)}


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def form_blocks(counts: Mapping[int, Sequence[int]], window_rows: int) -> list[Block]:
    """Return consecutive record batches together until they have `window_rows` rows.

    Examples
    --------
    >>> form_blocks({0: [2, 2, 1], 4: [9]}, 4)
    [Block(shard=0, first=0, end=2, rows=4), Block(shard=0, first=2, end=3, rows=1), \
Block(shard=4, first=0, end=1, rows=9)]
    """
    blocks: list[Block] = []
    for shard, batches in counts.items():
        first = rows = 0
        for end, count in enumerate(batches, 1):
            rows += count
            if rows >= window_rows or (end == len(batches) and rows):
                blocks.append(Block(shard, first, end, rows))
                first, rows = end, 0
    return blocks


def _find_categories(
    client: AnyClient,
    selection: Selection,
    schema: pa.Schema,
    counts: Mapping[int, Sequence[int]],
    given: Mapping[str, Sequence[Any]],
) -> dict[str, Any]:
    """Return the categories of all dictionary columns."""
    fields = {field.name: field for field in schema if pa.types.is_dictionary(field.type)}
    if unknown := given.keys() - fields.keys():
        raise UsageError(f"categories has {', '.join(sorted(unknown))}: not a dictionary column")
    types = {name: find_plain_type(field.type.value_type) for name, field in fields.items()}
    found = {name: _make_categories(name, values, types[name]) for name, values in given.items()}
    missing = tuple(name for name in fields if name not in found)
    if missing:
        first_batches = replace(selection, columns=missing, filter=None)
        tables: list[pa.Table] = []
        for shard in (shard for shard, batches in counts.items() if batches):
            with first_batches.open(client, shard, [(0, 1)], limit=1) as stream:
                tables.append(stream.read_all())
        for name in missing:
            chunks: Any = [chunk for table in tables for chunk in table[name].chunks]
            dictionaries = [chunk.dictionary for chunk in chunks]
            values = pa.chunked_array(dictionaries, fields[name].type.value_type).cast(types[name])
            found[name] = values.unique().drop_null()
    return found


def _make_categories(name: str, values: Sequence[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"categories[{name!r}] has values that are not {kind}: {error}") from None


_PROGRAM = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from splitarrow.pytorch.plan import run_task
run_task()
"""


def plan_dataset(
    servers: Servers,
    selection: Selection,
    window_rows: int,
    categories: Mapping[str, Sequence[Any]],
) -> DatasetPlan:
    """Return what `make_plan` returns; raise `SplitArrowError` as it does."""
    return call_with_client(make_plan, servers, selection, window_rows, categories)


def find_lengths(client: AnyClient, selection: Selection, column: str) -> Any:
    """Return the lengths of the lists in a column, as a ``pyarrow.ChunkedArray`` of int32.

    Its order is that of `DatasetPlan.blocks`. Raises `SplitArrowError` if the daemons refuse.
    """
    lengths = client.list_lengths(
        selection.name, column, filter=selection.filter, version=selection.version or None
    )
    chunks: Any = [chunk for array in lengths.values() for chunk in array.chunks]
    return pa.chunked_array(chunks, pa.int32())


def call_with_client(
    function: Callable[Concatenate[AnyClient, Selection, P], Result],
    servers: Servers,
    selection: Selection,
    *arguments: P.args,
    **keywords: P.kwargs,
) -> Result:
    """Call a function with a client, in a process of its own if loaders fork by default.

    The arguments can be pickled. Raises `ConnectionLostError` if the process ends without a result,
    and `SplitArrowError` as `splitarrow.connect` and the function do.
    """
    if default_start_method() != "fork" or GRPC_USAGE.has_fork_support:
        with servers.connect() as client:
            return function(client, selection, *arguments, **keywords)
    task = partial(_perform, function, servers.fix_token(), selection, *arguments, **keywords)
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=pickle.dumps(sys.path) + pickle.dumps(task),
        stdout=subprocess.PIPE,
        check=False,
    )
    if process.returncode:
        raise ConnectionLostError(
            f"the process that plans {selection.name!r} ended with status {process.returncode}; "
            "its standard error names the reason",
            stream=selection.name,
        )
    result: Result | SplitArrowError = pickle.loads(process.stdout)
    if isinstance(result, SplitArrowError):
        raise result
    return result


def _perform(function: Any, servers: Servers, *arguments: Any, **keywords: Any) -> Any:
    """Return the result of a function, or the error that it raises."""
    try:
        with servers.connect() as client:
            return function(client, *arguments, **keywords)
    except SplitArrowError as error:
        return error


def default_start_method() -> str:
    """Return how loaders start their workers by default."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def run_task() -> None:
    """Perform the task on standard input, and write the result to standard output."""
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    task: Callable[[], Any] = pickle.load(sys.stdin.buffer)
    prevent_pandas_import()  # which has no effect if the task contains objects of pandas
    result = task()
    with open(output, "wb") as file:
        file.write(pickle.dumps(result))
