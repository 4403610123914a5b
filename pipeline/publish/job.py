"""The settings of a publishing job, and its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import UsageError
from ...transport.tls.options import TlsOptions
from .inputs import FORMATS

Progress = Callable[[str], None]
"""Called with what a job does at the moment, in a few words."""
MODES = ("append", "overwrite", "error", "ignore")


@dataclass(frozen=True, slots=True)
class PublishJob:
    """The settings of a publishing job. They are consistent once the object exists.

    Raises
    ------
    UsageError
        If settings contradict each other, or one has a wrong value.
    """

    source: str
    """A file or folder, a URL that Spark can read, or the name of a table."""
    name: str
    """The name of the dataset."""
    to: Sequence[str]
    """The folder, or the URL in an object store, that contains the dataset's folder; or the
    control planes of daemons."""
    format: str | None = None
    """The format of the source, one of `FORMATS`; None detects it by the file names."""
    select: str | None = None
    """The columns: the expressions after SELECT in SQL."""
    filter: str | None = None
    """The condition on the rows: the expression after WHERE in SQL."""
    cast: Mapping[str, str] = field(default_factory=dict[str, str])
    """Spark types by column. A value that does not fit fails the job."""
    repartition: int | None = None
    """The number of tasks that write; None leaves it to Spark."""
    sort: Sequence[str] = ()
    """The columns to sort by. The prefix ``-`` means descending order."""
    shuffle_seed: int | None = None
    """Orders the rows by a hash of this seed and the row; None does not shuffle."""
    split: Mapping[str, float] = field(default_factory=dict[str, float])
    """Shares of the rows by name, such as ``{"train": 0.9}``. Each is published as a dataset
    ``NAME-SHARE``."""
    split_by: Sequence[str] = ()
    """Rows with equal values in these columns fall into the same share. The default is all
    columns."""
    rows_per_shard: int | None = None
    """The number of rows of a shard."""
    bytes_per_shard: str | None = None
    """The size of a shard, such as ``128MiB``."""
    compression: str = "none"
    """``none``, ``lz4`` or ``zstd``."""
    dictionary: str = "none"
    """The columns to dictionary-encode: ``none``, names separated by commas, or ``auto`` to
    choose them by a sample."""
    mode: str = "error"
    """The action if the dataset exists: one of `MODES`."""
    job_id: str | None = None
    """The identifier of the publication. A second job with the same identifier publishes
    nothing. None generates one."""
    replicas: int = 1
    """The number of daemons that store each shard."""
    token: str | None = field(default=None, repr=False)
    """The token that authenticates the publisher at the daemons."""
    tls: TlsOptions | None = None
    """The TLS settings for daemons at ``grpc+tls://``; None takes them from the environment."""
    staging: str | None = None
    """The folder for shards on their way to daemons. The driver and all tasks must share it. None
    uses a temporary folder of this machine."""

    def __post_init__(self) -> None:
        """Check everything that does not depend on the data."""
        if self.mode not in MODES:
            raise UsageError(f"mode is {self.mode!r}; it must be one of {', '.join(MODES)}")
        if self.format not in (None, *FORMATS):
            raise UsageError(f"format is {self.format!r}; it must be one of {', '.join(FORMATS)}")
        self._check_destinations()
        self._check_split()
        if self.sort and self.shuffle_seed is not None:
            raise UsageError("sort and shuffle_seed exclude each other")

    @property
    def targets_daemons(self) -> bool:
        """Whether the destinations are daemons, and not a folder."""
        return is_control_uri(self.to[0])

    def _check_destinations(self) -> None:
        if not self.to:
            raise UsageError("no destination; pass a folder or the control planes of daemons")
        controls = [uri for uri in self.to if is_control_uri(uri)]
        if len(self.to) > 1 and len(controls) < len(self.to):
            raise UsageError(
                f"the destinations are {', '.join(self.to)}; pass either one folder or only "
                "control planes (grpc://…)"
            )
        if controls and self.mode in ("error", "ignore"):
            raise UsageError(
                f"mode is {self.mode!r}; for daemons it must be 'append' or 'overwrite'"
            )

    def _check_split(self) -> None:
        for share, fraction in self.split.items():
            if not math.isfinite(fraction) or fraction <= 0:
                raise UsageError(f"the share {share!r} of the split is {fraction}; it must be > 0")
        total = sum(self.split.values())
        if total > 1 + 1e-9:
            raise UsageError(f"the shares of the split add up to {total:g}; the maximum is 1")
        if self.split_by and not self.split:
            raise UsageError("split_by requires a split")


@dataclass(frozen=True, slots=True)
class PublishJobResult:
    """One dataset that a job published."""

    name: str
    """The name of the dataset."""
    location: str
    """Its path or URL, or the daemons that received shards, separated by commas."""
    version: int | None
    """Its version; None for daemons, which number their versions themselves."""
    rows: int
    """The number of rows that the job published."""
    shards: int
    """The number of shards that the job published."""
    nbytes: int
    """The size of these shards in bytes. With daemons, it includes replicas."""


def is_control_uri(destination: str) -> bool:
    """Return whether a destination is the URI of a control plane."""
    return destination.partition(":")[0].lower().startswith("grpc")
