"""Reading from daemons: what the driver asks of a control plane, and what a task fetches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ..client.control import Client, connect
from ..client.described import DatasetInfo
from ..errors import remote_error
from ..transport.certificates import TlsOptions
from .casting import Caster
from .filters import PushedFilter

_MOST_BATCH_BYTES = 16 << 20
"""How much is handed to Spark in one piece: it is copied once more there."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A dataset, and how it is read. It goes to every task."""

    uri: str
    """The control plane, or several with commas."""
    dataset: str
    """The name of the dataset there."""
    token: str | None = field(default=None, repr=False)
    """Who reads."""
    tls: TlsOptions | None = None
    """What to trust and to show."""
    transport: str = "auto"
    """How the data comes; ``auto`` takes shared memory on the daemon's host."""
    connect_timeout: float = 10.0
    """The longest time to connect, in seconds."""
    stall_timeout: float = 30.0
    """The longest silence of a daemon, in seconds."""
    window_bytes: int = 32 << 20
    """How much is read ahead of Spark in each task, in bytes; 0: nothing."""

    def client(self) -> Client:
        """Connect to the control plane; raises as `splitarrow.connect` does."""
        return connect(self.uri, self.token, tls=self.tls, connect_timeout=self.connect_timeout)

    def info(self, version: str | None = None) -> DatasetInfo:
        """Return what the control plane tells of the dataset.

        Parameters
        ----------
        version : str, optional
            The version that is wanted; by default the one that is there.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if that version is gone.
        """
        with self.client() as client:
            info = client.info(self.dataset)
            if version in (None, info.version):
                return info
            if "," in client.uri:  # daemons together have one version, the snapshot
                raise remote_error(
                    "FAILED_PRECONDITION",
                    f"the dataset {self.dataset!r} has changed: its version is {info.version}, "
                    f"not {version}",
                    stream=self.dataset,
                )
            return client.asked({"dataset": self.dataset, "version": version})


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task reads: some shards of one version."""

    version: str
    """The version, as the control plane calls it."""
    shards: tuple[int, ...] | None
    """The ordinals of the shards in that version; None: all rows."""
    limit: int | None = None
    """The largest number of rows."""


def batches(
    origin: Origin, portion: Portion, filter: PushedFilter | None, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a portion, with the schema that Spark expects.

    Parameters
    ----------
    origin : Origin
        Where they are.
    portion : Portion
        Which they are.
    filter : PushedFilter, optional
        Which of them to leave.
    target : pyarrow.Schema
        The columns that are read, and their types.

    Raises
    ------
    SplitArrowError
        If the data cannot be read to its end, or a value does not fit.
    """
    with (
        origin.client() as client,
        client.read(
            origin.dataset,
            columns=target.names or None,
            filter=filter,
            limit=portion.limit,
            transport=origin.transport,
            connect_timeout=origin.connect_timeout,
            stall_timeout=origin.stall_timeout,
            prefetch_bytes=origin.window_bytes,
            window_bytes=max(1, origin.window_bytes),
            parallel=2,
            shards=portion.shards,
            version=portion.version or None,
        ) as stream,
    ):
        caster = Caster(stream.schema, target)
        for batch in stream:
            for piece in pieces(batch):
                yield caster.cast(piece)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces that Spark takes well; a batch without rows has none."""
    rows = batch.num_rows
    if not rows:
        return
    count = -(-batch.nbytes // _MOST_BATCH_BYTES) or 1
    step = -(-rows // count)
    for begin in range(0, rows, step):
        yield batch if step >= rows else batch.slice(begin, step)
