"""The options of a read, validated once.

A `ReadPlan` says how to read a dataset, and the `ReadOptions` in it how to read one stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, cast, get_args

from ..errors import UsageError
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator
from ..transport.base import ConnectOptions
from ..transport.tls_options import TlsOptions

Validation = Literal["strict", "full", "cheap", "off"]
"""How thoroughly decoded record batches are checked."""


def check_validation(value: str | None) -> Validation | None:
    """Return `value` if it is a `Validation` or None.

    Raises `UsageError` if it is anything else.
    """
    if value is not None and value not in get_args(Validation):
        raise UsageError(f"validate is {value!r}; expected {', '.join(get_args(Validation))}")
    return cast("Validation | None", value)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a stream. It is valid once built."""

    validate: Validation | None = None
    """How to check batches. `None` is ``full``, or ``cheap`` if the peer is on this host."""
    connect_timeout: float = 10.0
    """The time limit for one connection attempt, in seconds."""
    stall_timeout: float | None = 30.0
    """The longest wait for data from the peer, in seconds. `None` disables the limit."""
    prefetch_bytes: int | None = None
    """The size of the batches to prefetch, in bytes. 0 disables prefetching. `None` prefetches
    where a measurement shows that the consumer gains by it."""
    max_decoded_bytes: int = 1 << 30
    """The limit on decoded data that the consumer has not taken, in bytes. A compressed batch, or
    the dictionaries of a stream, that exceed it raise `LimitError`; prefetching pauses at it."""
    limits: Limits = DEFAULT_LIMITS
    """Limits on the data that the server sends."""
    allocator: Allocator = DEFAULT_ALLOCATOR
    """Supplies the memory that bodies are received into."""
    require_transport: str | None = None
    """The scheme or UCX lane (``rc_mlx5``, ``cma``) that must carry the data. `None` allows all."""
    tls: TlsOptions | None = None
    """Certificates for TLS. `None` reads the ``SPLITARROW_TLS_*`` variables."""

    def __post_init__(self) -> None:
        check_validation(self.validate)
        if self.connect_timeout <= 0:
            raise UsageError(f"connect_timeout is {self.connect_timeout:g}; expected more than 0")
        if self.stall_timeout is not None and self.stall_timeout <= 0:
            raise UsageError(
                f"stall_timeout is {self.stall_timeout:g}; expected more than 0, or None"
            )
        if self.prefetch_bytes is not None and self.prefetch_bytes < 0:
            raise UsageError(
                f"prefetch_bytes is {self.prefetch_bytes}; expected 0 or more, or None"
            )
        if self.max_decoded_bytes < 1:
            raise UsageError(f"max_decoded_bytes is {self.max_decoded_bytes}; expected 1 or more")

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


@lru_cache(maxsize=8)
def _limit_decoded(limits: Limits, nbytes: int) -> Limits:
    """Return limits with another one for decoded data. Programs use the same ones for all reads."""
    return replace(limits, decoded_bytes=nbytes)


AUTO_TRANSPORT = "auto"
"""The `transport` that takes the first location that can be reached."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How to read the endpoints of a dataset. It is valid once built."""

    options: ReadOptions
    """How to read the stream of one endpoint."""
    transport: str = AUTO_TRANSPORT
    """The scheme to use, ``flight`` for DoGet, or ``auto`` for the first that can be reached."""
    location_timeout: float = 2.0
    """The time limit to connect to one of several locations, in seconds."""
    resume_attempts: int = 8
    """Consecutive retries per server without receiving a row; 0 disables resuming."""
    parallel: int = 4
    """The number of endpoints to read at a time."""
    window_bytes: int = 256 << 20
    """The size of the batches to prefetch from several endpoints together, in bytes."""

    def __post_init__(self) -> None:
        if self.location_timeout <= 0:
            raise UsageError(f"location_timeout is {self.location_timeout:g}; expected more than 0")
        for name, least in (("resume_attempts", 0), ("parallel", 1), ("window_bytes", 1)):
            value: int = getattr(self, name)
            if value < least:
                raise UsageError(f"{name} is {value}; expected {least} or more")
