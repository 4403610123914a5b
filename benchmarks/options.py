"""What is measured: the options of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..errors import UsageError
from .dataset import COLUMNS, ROW_BYTES

Consume = Literal["count", "sum"]
"""What a client does with each batch: add up the rows, or sum every column."""
Read = Literal["iterate", "all"]
"""Whether a client takes batch after batch and drops it, or reads one whole table."""

MOST_BATCHES = 1 << 16
"""How many batches a data set has at most, unless its size is chosen."""
DEFAULT_BYTES = 1 << 30
_CONCURRENT_PART = 4


@dataclass(frozen=True, slots=True)
class Options:
    """What a run measures. It is valid once built.

    Raises
    ------
    UsageError
        If an option is impossible.
    """

    batch_bytes: tuple[int, ...] = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
    """The sizes of the batches, in bytes of body."""
    backends: tuple[str, ...] | None = None
    """Which backends, by name; None takes all that can run here."""
    rounds: int = 5
    """How many counted rounds follow the warm-up round."""
    total_bytes: int | None = None
    """The bytes of body that one read moves; None: 1 GiB, but 65536 batches at most."""
    clients: int = 8
    """How many clients read at once in the last part of the run; 1 leaves that part out."""
    concurrent_batch_bytes: int = 1 << 20
    """The size of the batches in that part, in bytes of body."""
    concurrent_backends: tuple[str, ...] = ("splitarrow-tcp", "flight")
    """The backends of that part, as far as they are among `backends`."""
    consume: Consume = "count"
    """What a client does with each batch."""
    read: Read = "iterate"
    """Whether a client takes batch after batch, or one whole table."""
    validate: str | None = None
    """How splitarrow's clients check batches; None leaves it to their default."""
    directory: Path | None = None
    """Where the data files are made, and removed again; None: the system's temporary folder."""
    timeout: float = 300.0
    """The longest time for one read, in seconds."""

    def __post_init__(self) -> None:
        if not self.batch_bytes:
            raise UsageError("there has to be one batch size at least")
        for size in (*self.batch_bytes, self.concurrent_batch_bytes):
            if size < ROW_BYTES or size % ROW_BYTES:
                raise UsageError(
                    f"a batch of {size} bytes: the size is a multiple of {ROW_BYTES}, "
                    f"one row of {COLUMNS} doubles"
                )
        if self.total_bytes is not None and self.total_bytes < max(self.batch_bytes):
            raise UsageError(
                f"a total of {self.total_bytes} bytes holds no batch of {max(self.batch_bytes)}"
            )
        if self.rounds < 1:
            raise UsageError("there has to be one counted round at least")
        if not 1 <= self.clients <= 256:
            raise UsageError("the number of clients is from 1 to 256")
        if self.backends is not None and not self.backends:
            raise UsageError("there has to be one backend at least")
        if self.consume not in get_args(Consume):
            raise UsageError(f"consume={self.consume!r}: it is count or sum")
        if self.read not in get_args(Read):
            raise UsageError(f"read={self.read!r}: it is iterate or all")
        if self.validate not in (None, "full", "cheap", "off"):
            raise UsageError(f"validate={self.validate!r}: it is full, cheap or off")
        if self.timeout <= 0:
            raise UsageError("timeout has to be more than 0 seconds")
        if self.directory is not None and not self.directory.is_dir():
            raise UsageError(f"there is no folder {self.directory}")

    def batches(self, batch_bytes: int, *, concurrent: bool = False) -> int:
        """Return how many batches of a size one read moves.

        Parameters
        ----------
        batch_bytes : int
            The size of a batch, in bytes of body.
        concurrent : bool
            Whether it is one of several clients' reads; each then moves a quarter.
        """
        total = DEFAULT_BYTES if self.total_bytes is None else self.total_bytes
        if concurrent:
            total //= _CONCURRENT_PART
        count = max(1, total // batch_bytes)
        return count if self.total_bytes is not None else min(count, MOST_BATCHES)
