"""The options of a read: declared once, validated once.

`ReadArguments` declares what users pass. `Read.of` turns it into frozen values. The reads that
precede the one for the user, such as that of a schema, use copies of these values, so that no
option is lost on the way.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, TypedDict, get_args

from ..errors import InvalidRequestError, UsageError
from ..formats.arguments import check_integer, check_seconds, check_text, list_items, refuse
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator
from ..protocol.request import Request, Span
from ..transport.base import ConnectOptions
from ..transport.tls_options import TlsOptions, check_tls
from .uris import UNKNOWN_NAME

AUTO = "auto"
"""The `format` that is chosen for the link, and the `transport` that takes the first location that
can be reached."""
Validation = Literal["strict", "full", "cheap", "off"]
"""How thoroughly decoded record batches are checked."""


class ReadArguments(TypedDict, total=False):
    """The options of a read, which `open`, `Client.read` and all their other forms take.

    The last ones, from `transport` on, are for datasets of a control plane.
    """

    columns: str | Sequence[str] | None
    """The columns to read, in this order, and fields of structs such as `st.x`. `None` reads all
    columns."""
    filter: Any
    """The rows to read. The filter may use any column of the dataset. It is one of these:

    - a condition in SQL, such as ``"delay > 60 and carrier = 'AA'"``;
    - a tuple such as ``("delay", ">", 60)``, a list of tuples that must all hold, or a list of
      such lists of which one must hold;
    - an expression of pyarrow, such as ``pc.field("delay") > 60``, or of polars;
    - a condition of `splitarrow.geo`.

    Without a control plane, a first connection reads the schema of the dataset.
    """
    limit: int | None
    """The largest number of rows to read."""
    batch_rows: int | None
    """The largest number of rows in a batch."""
    compression: Literal["none", "lz4", "zstd", "auto"] | str | None
    """The codec of the bodies. `None` keeps that of the source; ``auto`` compresses while that is
    faster on the link."""
    format: Literal["arrow", "vortex", "auto"] | str | None
    """The format of the messages. `None` is ``arrow``; ``vortex`` sends compressed arrays, which
    need the extra ``vortex`` here and at the server. ``auto`` takes them where the link is slower
    than decoding, which the first read from a server measures. DoGet always has Arrow."""
    batches: Span | Sequence[Span] | None
    """The first stored record batch to read and the one after the last, counted from 0; in a
    Parquet file, the row groups. Up to 512 ranges in ascending order, such as
    ``[(0, 2), (7, 8)]``, read only these. They are selected before the filter and the limit. With
    `shards`, which then names one shard, they are counted in that shard."""
    rows: Span | None
    """Like a range of `batches`, but in rows. Give only one of both."""
    validate: Literal["strict", "full", "cheap", "off"] | str | None
    """How to check batches before they are returned. ``full`` checks every value that a consumer
    relies on: offsets, UTF-8, indices. Values outside of the range of their type, such as a decimal
    with too many digits, cause an `errors.InvalidValueWarning`; ``strict`` refuses them. ``cheap``
    checks the sizes of buffers and no value: text may not be UTF-8, and an offset may be out of
    bounds. ``off`` checks nothing. The default is ``full``, or ``cheap`` if
    the server is on this host."""
    connect_timeout: float
    """The time limit to connect, in seconds. The default is 10."""
    stall_timeout: float | None
    """The longest wait for data from the server, in seconds. The default is 30. A read of a control
    plane's dataset may retry for 5 seconds more. `None` disables the limit."""
    prefetch_bytes: int | None
    """The size of the batches that a thread of the stream may prefetch, in bytes. 0 disables
    prefetching: only the kernel's buffers fill ahead of the consumer. `None` measures how long the
    stream and its consumer take, and starts a thread where that makes both together faster; at most
    32 MiB and one batch then wait."""
    max_decoded_bytes: int
    """The limit on decoded data that the consumer has not taken, in bytes. The default is 1 GiB. A
    compressed batch, or the dictionaries of the stream, that exceed it raise `LimitError`;
    prefetching pauses. Each of the `parallel` endpoints may exceed its share by one batch."""
    require_transport: str | None
    """The scheme, or lane of UCX (``cma``, ``rc_mlx5/mlx5_0:1``), that must carry the data. A
    connection that uses anything else is refused, also if it only reads the schema."""
    limits: Limits
    """Limits on the data that the server sends."""
    tls: TlsOptions | None
    """Certificates for TLS. `None` takes those of the client, or reads the variables
    ``SPLITARROW_TLS_CA``, ``_CERT``, ``_KEY`` and ``_SERVER_NAME``."""
    memory: Any
    """Where the batches land: ``"pinned"`` for page-locked memory, ``"cuda:0"`` for the memory of a
    CUDA device, or an object of `splitarrow.memory`. With a device, the result is a `DeviceStream`.
    `None` is pageable host memory, or the server's own over ``shm``."""
    transport: str
    """The scheme to use: ``tcp``, ``tcp+tls``, ``shm``, ``ucx``, ``http`` with or without TLS, or
    ``flight`` for DoGet. The default, ``auto``, takes the first location that can be reached."""
    location_timeout: float
    """The time limit to connect to one of several locations, in seconds. The default is 2."""
    resume_attempts: int
    """Consecutive retries per server without receiving a row, also of a URL. The default is 8; 0
    disables resuming."""
    parallel: int
    """The number of endpoints to read at a time. The default is 4."""
    window_bytes: int
    """The size of the batches to prefetch from several endpoints together, in bytes. The default is
    256 MiB."""
    shards: Iterable[int] | None
    """The shards to read, by their ordinals, or the endpoints by their indices if the dataset is
    not published. They arrive in the order of the dataset. `None` reads all."""
    version: str | None
    """The version to read, as `Client.info` reports it. `None` reads the current version."""
    sql: str | None
    """A SELECT statement whose result to read; see `Client.sql`. It replaces the name, `memory` and
    the arguments that select. The other arguments apply to each dataset that it reads. The result
    is held in memory."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How to read one stream; see `ReadArguments`. It is valid once built."""

    validate: Validation | None = None
    connect_timeout: float = 10.0
    stall_timeout: float | None = 30.0
    prefetch_bytes: int | None = None
    max_decoded_bytes: int = 1 << 30
    limits: Limits = DEFAULT_LIMITS
    allocator: Allocator = DEFAULT_ALLOCATOR
    """Supplies the memory that bodies are received into."""
    require_transport: str | None = None
    tls: TlsOptions | None = None
    open_timeout: float | None = None
    """The longest wait for the schema, in seconds. None is `stall_timeout`."""

    def __post_init__(self) -> None:
        if self.validate is not None and str(self.validate) not in get_args(Validation):
            refuse("validate", self.validate, ", ".join(get_args(Validation)))
        check_seconds("connect_timeout", self.connect_timeout)
        check_seconds("stall_timeout", self.stall_timeout, optional=True)
        if self.prefetch_bytes is not None:
            check_integer("prefetch_bytes", self.prefetch_bytes, 0)
        check_integer("max_decoded_bytes", self.max_decoded_bytes, 1)
        if not isinstance(self.limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse("limits", self.limits, "splitarrow.Limits")
        if self.require_transport is not None:
            check_text("require_transport", self.require_transport)
        check_tls(self.tls)

    @property
    def connect_options(self) -> ConnectOptions:
        """The options for connecting to a data listener."""
        return ConnectOptions(
            limits=self.limits,
            timeout=self.connect_timeout,
            allocator=self.allocator,
            tls=self.tls,
            reuse=True,
        )

    @property
    def decoder_limits(self) -> Limits:
        """The limits, with `max_decoded_bytes` applied to what one message decodes to."""
        return _limit_decoded(self.limits, min(self.limits.decoded_bytes, self.max_decoded_bytes))

    @property
    def window_bytes(self) -> int:
        """The size of the batches to prefetch in any case, in bytes."""
        return min(self.prefetch_bytes or 0, self.max_decoded_bytes)

    @property
    def schema_timeout(self) -> float | None:
        """The longest wait for a message before the schema has arrived, in seconds."""
        return self.stall_timeout if self.open_timeout is None else self.open_timeout

    def within(self, seconds: float) -> StreamOptions:
        """Return options to connect and to receive the schema within some seconds each."""
        return replace(
            self,
            connect_timeout=min(self.connect_timeout, seconds),
            open_timeout=min(self.schema_timeout or seconds, seconds),
        )

    def for_preparation(self) -> StreamOptions:
        """Return the options of a read whose data is for this process alone, not for the user."""
        return replace(self, prefetch_bytes=0, allocator=DEFAULT_ALLOCATOR)


@lru_cache(maxsize=8)
def _limit_decoded(limits: Limits, nbytes: int) -> Limits:
    """Return limits with another one for decoded data. Most reads of a program share them."""
    return replace(limits, decoded_bytes=nbytes)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How to read the endpoints of a dataset; see `ReadArguments`. It is valid once built."""

    options: StreamOptions
    """How to read the stream of one endpoint."""
    transport: str = AUTO
    location_timeout: float = 2.0
    resume_attempts: int = 8
    parallel: int = 4
    window_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        check_text("transport", self.transport)
        check_seconds("location_timeout", self.location_timeout)
        for name, least in (("resume_attempts", 0), ("parallel", 1), ("window_bytes", 1)):
            check_integer(name, getattr(self, name), least)


@dataclass(frozen=True, slots=True)
class Read:
    """A read: the request, and the plan with the options of its streams. It is valid once built."""

    request: Request
    """What to read. Its dataset is `UNKNOWN_NAME` where a ticket names it."""
    plan: ReadPlan
    """How to read it."""
    filter: Any = None
    """The filter that is not bound to a schema yet."""
    chooses_format: bool = False
    """Whether the link decides on the format."""
    shards: frozenset[int] | None = None
    """The shards to read; None reads all."""
    memory: Any = None
    """Where the batches land, as the user has named it."""
    sql: str | None = None
    """The query whose result to read, instead of a dataset."""

    @classmethod
    def of(cls, arguments: ReadArguments, name: str | None = None) -> Read:
        """Return the read of a dataset; without a name, the read of a ticket or of a query.

        An invalid value raises `UsageError`, and an unknown argument TypeError.
        """
        if not arguments and name is None:
            return _DEFAULT_READ
        if unknown := arguments.keys() - _NAMES:
            raise _unknown_argument(min(unknown))
        given = arguments.get
        if (sql := given("sql")) is not None:
            check_text("sql", sql)
            _check_no_selection(name, arguments)
        memory, shards, data_format = given("memory"), given("shards"), given("format")
        if data_format is not None:
            check_text("format", data_format)
        options = StreamOptions(
            allocator=find_allocator(memory),
            **{key: arguments[key] for key in _OPTIONS if key in arguments},
        )
        plan = ReadPlan(options, **{key: arguments[key] for key in _PLAN if key in arguments})
        selection: dict[str, Any] = {key: arguments[key] for key in _REQUEST if key in arguments}
        if selection:
            selection |= {"columns": column_names(given("columns"))}
            selection |= check_spans(given("batches"), given("rows"))
            selection["format"] = None if data_format == AUTO else data_format
        return cls(
            build_request(UNKNOWN_NAME if name is None else name, **selection),
            plan,
            given("filter"),
            data_format == AUTO,
            None if shards is None else _check_shards(shards),
            memory,
            sql,
        )

    @property
    def options(self) -> StreamOptions:
        """How to read one stream."""
        return self.plan.options

    def selecting(self, **fields: Any) -> Read:
        """Return the read with other fields of its request."""
        return replace(self, request=replace(self.request, **fields))


_DEFAULT_READ = Read(Request(UNKNOWN_NAME), ReadPlan(StreamOptions()))
_NAMES = frozenset(ReadArguments.__optional_keys__)
_REQUEST = tuple(field.name for field in fields(Request) if field.name in _NAMES - {"filter"})
_OPTIONS = tuple(field.name for field in fields(StreamOptions) if field.name in _NAMES)
_PLAN = tuple(field.name for field in fields(ReadPlan) if field.name in _NAMES)
_NOT_WITH_SQL = (
    *("columns", "filter", "limit", "shards", "batches", "rows", "batch_rows", "version"),
    "memory",
)


def find_allocator(memory: Any) -> Allocator:
    """Return the host memory that bodies are received into, for the argument `memory` of a read."""
    if memory is None:
        return DEFAULT_ALLOCATOR
    from ..memory.device_memory import DeviceMemory, select_memory

    selected = select_memory(memory)
    return selected.open_allocator() if isinstance(selected, DeviceMemory) else selected


def build_request(name: str, **selection: Any) -> Request:
    """Return a request for a dataset, and raise `UsageError` if a field of `Request` is invalid."""
    check_text("the name of a dataset", name)
    try:
        return Request(name, **selection)
    except InvalidRequestError as error:
        about = "" if name == UNKNOWN_NAME else f"cannot request {name!r}: "
        raise UsageError(f"{about}{error.message}") from None


def column_names(columns: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return names of columns as a tuple. A single string is the name of one column."""
    if columns is None or isinstance(columns, str):
        return None if columns is None else (columns,)
    return tuple(list_items("columns", columns, "a name or several names"))


def check_spans(batches: Any, rows: Any) -> dict[str, Any]:
    """Return the ranges of record batches or of rows, at most one of which may be given."""
    if batches is not None and rows is not None:
        raise UsageError("batches and rows both select a part of the dataset; give one of them")
    return {
        "batches": None if batches is None else _check_ranges(batches),
        "rows": None if rows is None else _check_span("rows", "row", rows),
    }


def _check_ranges(batches: Any) -> Span | tuple[Span, ...]:
    """Return one range of record batches, or several that neither overlap nor touch each other."""
    try:
        several = [tuple(span) for span in batches]
    except TypeError:
        return _check_span("batches", "record batch", batches)
    if not several:
        raise UsageError("batches has no ranges; expected at least one, such as (3, 7)")
    merged: list[Span] = []
    for span in several:
        first, end = _check_span("batches", "record batch", span)
        if merged and merged[-1][1] == first <= end:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((first, end))
    return merged[0] if len(merged) == 1 else tuple(merged)


def _check_span(name: str, item: str, span: Any) -> Span:
    try:
        first, end = (operator.index(number) for number in span)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} is {span!r}; expected the first {item} and the one after the last, "
            "such as (3, 7)"
        ) from None
    return first, end


def _check_shards(shards: Any) -> frozenset[int]:
    found = list_items("shards", shards, "ordinals of shards, such as [0, 2]")
    return frozenset(check_integer("an ordinal in shards", ordinal, 0) for ordinal in found)


def _check_no_selection(name: str | None, arguments: ReadArguments) -> None:
    """Refuse arguments that select from one dataset beside a query."""
    given = [key for key in _NOT_WITH_SQL if arguments.get(key) is not None]
    if name is not None:
        given.insert(0, repr(name))
    if given:
        raise UsageError(f"sql cannot be combined with {', '.join(given)}")


def _unknown_argument(name: str) -> TypeError:
    similar = difflib.get_close_matches(name, _NAMES, 1)
    hint = f"; did you mean {similar[0]!r}?" if similar else ""
    return TypeError(f"a read has no argument {name!r}{hint}")
