"""The options of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..errors import UsageError
from .datasets import COLUMNS, ROW_BYTES

Consume = Literal["count", "sum", "numpy"]
"""The operation of a client on each batch: count its rows, sum each column, or make a NumPy array
of each column and sum that."""
Read = Literal["iterate", "all"]
"""Whether a client iterates over batches and drops them, or reads one table."""
Validate = Literal["strict", "full", "cheap", "off"]
"""How splitarrow's clients validate batches."""

DEFAULT_BYTES = 1 << 30
"""The default size of a read, in bytes."""
MAX_BATCHES = 1 << 16
"""The maximum number of batches of a read of the default size."""
MAX_CLIENTS = 256
_CONCURRENT_DIVISOR = 4


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. They are consistent once the object exists.

    Raises `UsageError` if an option has a wrong value.
    """

    batch_bytes: tuple[int, ...] = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
    """The sizes of batch bodies, in bytes."""
    backends: tuple[str, ...] | None = None
    """The names of the backends; None selects all that can run on this machine."""
    rounds: int = 7
    """The number of counted rounds. One warm-up round precedes them."""
    total_bytes: int | None = None
    """The number of body bytes that a read transfers. None means 1 GiB, but at most 65536
    batches."""
    clients: tuple[int, ...] = (8,)
    """The numbers of concurrent clients in the second section, in addition to 1; 1 alone omits that
    section."""
    concurrent_batch_bytes: int = 1 << 20
    """The size of batch bodies in the second section, in bytes."""
    concurrent_backends: tuple[str, ...] = ("splitarrow-tcp", "flight")
    """The backends of the second section, as far as `backends` contains them."""
    consume: tuple[Consume, ...] = ("count", "sum")
    """The operations of a client on each batch, which take turns. The second section has the
    first one."""
    read: Read = "iterate"
    """Whether a client iterates over batches or reads one table."""
    validate: Validate | None = None
    """How splitarrow's clients validate batches; None keeps their default."""
    directory: Path | None = None
    """The folder for temporary data files; None selects the system's temporary folder."""
    timeout: float = 300.0
    """The longest time for one read, in seconds."""

    def __post_init__(self) -> None:
        """Check every option."""
        if not self.batch_bytes:
            raise UsageError("no batch size; pass at least one")
        for size in (*self.batch_bytes, self.concurrent_batch_bytes):
            if size < ROW_BYTES or size % ROW_BYTES:
                raise UsageError(
                    f"the batch size is {size} bytes; it must be a multiple of {ROW_BYTES}, the "
                    f"size of a row of {COLUMNS} doubles"
                )
        if self.total_bytes is not None and self.total_bytes < max(self.batch_bytes):
            raise UsageError(
                f"the total is {self.total_bytes} bytes; it must be at least the largest batch "
                f"size, {max(self.batch_bytes)} bytes"
            )
        if self.rounds < 1:
            raise UsageError(f"the number of rounds is {self.rounds}; it must be at least 1")
        if not self.clients:
            raise UsageError("no number of clients; pass at least one")
        for clients in self.clients:
            if not 1 <= clients <= MAX_CLIENTS:
                raise UsageError(
                    f"the number of clients is {clients}; it must be from 1 to {MAX_CLIENTS}"
                )
        if self.backends is not None and not self.backends:
            raise UsageError("no backend; pass at least one, or None for all")
        if not self.consume:
            raise UsageError("no operation of the client; pass at least one")
        for consume in self.consume:
            _check_choice("consume", consume, get_args(Consume))
        _check_choice("read", self.read, get_args(Read))
        if self.validate is not None:
            _check_choice("validate", self.validate, get_args(Validate))
        if self.timeout <= 0:
            raise UsageError(f"the timeout is {self.timeout:g} s; it must be more than 0")
        if self.directory is not None and not self.directory.is_dir():
            raise UsageError(f"the folder {self.directory} does not exist")

    def batches(self, batch_bytes: int, *, concurrent: bool = False) -> int:
        """Return the number of batches of one read. Each of several clients reads a quarter."""
        total = DEFAULT_BYTES if self.total_bytes is None else self.total_bytes
        if concurrent:
            total //= _CONCURRENT_DIVISOR
        count = max(1, total // batch_bytes)
        return count if self.total_bytes is not None else min(count, MAX_BATCHES)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
