"""The job that publishes: files or a table of Spark become a dataset that daemons serve."""

from __future__ import annotations

import math
import re
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from ..errors import DatasetError, UsageError
from ..formats.manifest import Manifest
from ..server.catalog.versions import VersionStore
from ..transport.certificates import TlsOptions
from .batching import batches_for
from .dictionaries import dictionary_columns
from .spread import publish_folder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json", "orc", "table")
MODES = ("append", "overwrite", "error", "ignore")
_SUFFIXES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
_BUCKETS = 1_000_000
_RAISED = re.compile(r"^(?:splitarrow\.)?[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Publication:
    """What is to be published, and how."""

    source: str
    """A file or folder, any URL that Spark reads, or the name of a table."""
    name: str
    """What the dataset is called."""
    to: Sequence[str]
    """A folder or URL of an object store, below which datasets lie; or control planes."""
    format: str | None = None
    """What the source is: one of `FORMATS`; None: what the names of the files say."""
    select: str | None = None
    """The columns, as after SELECT in SQL."""
    filter: str | None = None
    """Which rows, as after WHERE."""
    cast: Mapping[str, str] = field(default_factory=dict[str, str])
    """Types of Spark, by column; a value that does not fit fails the job."""
    repartition: int | None = None
    """How many tasks write."""
    sort: Sequence[str] = ()
    """Columns to sort by; a ``-`` in front: from the largest to the smallest."""
    shuffle_seed: int | None = None
    """Mixes the rows: the same seed and rows give the same order."""
    split: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parts and their shares, such as ``train`` 0.9; each becomes a dataset ``NAME-PART``."""
    split_by: Sequence[str] = ()
    """Rows with the same values in these columns come into the same part; all by default."""
    rows_per_shard: int | None = None
    """The number of rows of a shard."""
    bytes_per_shard: str | None = None
    """The size of a shard, as in ``128MiB``."""
    compression: str = "none"
    """``none``, ``lz4`` or ``zstd``."""
    dictionary: str = "none"
    """``none``, columns with commas, or ``auto``: those where a sample says that it pays."""
    mode: str = "error"
    """What to do where the dataset exists: one of `MODES`."""
    job_id: str | None = None
    """What the publication is called; of two with one name, one is done."""
    replicas: int = 1
    """How many daemons get each shard."""
    token: str | None = field(default=None, repr=False)
    """Who publishes, to the daemons."""
    tls: TlsOptions | None = None
    """What to trust and to show, with daemons at ``grpc+tls://``."""
    staging: str | None = None
    """A folder that all tasks and the driver see, where shards wait to be sent to daemons."""

    def __post_init__(self) -> None:
        """Check what can be checked without the data."""
        if self.mode not in MODES:
            raise UsageError(f"mode is {self.mode!r}; known are {', '.join(MODES)}")
        if self.format not in (None, *FORMATS):
            raise UsageError(f"format is {self.format!r}; known are {', '.join(FORMATS)}")
        if not self.to:
            raise UsageError("say where to publish: a folder, or control planes")
        controls = [place for place in self.to if _is_control(place)]
        if len(self.to) > 1 and len(controls) < len(self.to):
            raise UsageError("publish to one folder, or to control planes (grpc://…)")
        if controls and self.mode in ("error", "ignore"):
            raise UsageError("to daemons, the mode is append or overwrite")
        if any(not math.isfinite(share) or share <= 0 for share in self.split.values()):
            raise UsageError("the shares of a split are more than 0")
        if self.split and sum(self.split.values()) > 1 + 1e-9:
            raise UsageError(f"the shares of the split add up to {sum(self.split.values()):g}")
        if self.split_by and not self.split:
            raise UsageError("split_by goes with a split")
        if self.sort and self.shuffle_seed is not None:
            raise UsageError("rows are sorted or shuffled, not both")


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one dataset."""

    name: str
    """Its name."""
    place: str
    """Where it is."""
    version: int | None
    """Its version; None at daemons, which count for themselves."""
    rows: int
    """How many rows this job published."""
    shards: int
    """How many shards it published."""
    nbytes: int
    """How many bytes they take."""


def publish(
    spark: SparkSession, wanted: Publication, tell: Callable[[str], None] | None = None
) -> list[Done]:
    """Read, prepare and publish; return what was published: one dataset, or one for each part.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session that knows the data source; see `session`.
    wanted : Publication
        What to do.
    tell : callable, optional
        Is told what is being done.

    Raises
    ------
    UsageError
        If a column or an expression is wrong.
    DatasetError
        If the source cannot be read, a value does not fit, or the dataset cannot be written.
    """
    say = tell or (lambda text: None)
    job = wanted.job_id or uuid.uuid4().hex
    done: list[Done] = []
    with _explained(wanted):
        source = read(spark, wanted.source, wanted.format)
        frame = _prepared(spark, source, wanted)
        encoded = _dictionary(frame, wanted)
        write = _to_daemons if _is_control(wanted.to[0]) else _to_folder
        with batches_for(spark, source):
            for name, part in _parts(frame, wanted):
                say(name)
                done.append(write(_ordered(part, wanted), name, wanted, job, encoded))
    return done


def _prepared(spark: SparkSession, frame: DataFrame, wanted: Publication) -> DataFrame:
    if wanted.filter:
        frame = frame.where(wanted.filter)
    if wanted.select:
        frame = spark.sql(f"SELECT {wanted.select} FROM {{frame}}", frame=frame)
    for column, kind in wanted.cast.items():
        if column not in frame.columns:
            raise UsageError(f"no column {column!r} to cast; there are {', '.join(frame.columns)}")
        frame = frame.withColumn(column, frame[f"`{column}`"].cast(kind))
    return frame


def read(spark: SparkSession, source: str, format: str | None = None) -> DataFrame:
    """Return the rows of a source. A malformed row raises when it is reached.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    source : str
        A file or folder, any URL that Spark reads, or the name of a table.
    format : str, optional
        One of `FORMATS`; by default what the names of the files say.

    Raises
    ------
    UsageError
        If that cannot be told.
    """
    kind = format or format_of(source)
    if kind == "table":
        return spark.table(source)
    reader = spark.read.option("mode", "FAILFAST")
    if kind == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    return reader.format(kind).load(source)


def format_of(source: str) -> str:
    """Return what a source is, by the names of its files.

    Raises
    ------
    UsageError
        If they do not say.

    Examples
    --------
    >>> format_of("trips.csv.gz"), format_of("s3a://bucket/trips.parquet")
    ('csv', 'parquet')
    """
    path = Path(source)
    names = [path.name]
    if path.is_dir():
        names = sorted(found.name for found in path.rglob("*") if found.is_file())
    kinds: set[str] = set()
    for name in names:
        suffixes = Path(name).suffixes
        if suffixes and suffixes[-1] in _PACKED:
            suffixes.pop()
        if not name.startswith(("_", ".")) and suffixes and suffixes[-1] in _SUFFIXES:
            kinds.add(_SUFFIXES[suffixes[-1]])
    if len(kinds) == 1:
        return kinds.pop()
    what = f"it has {' and '.join(sorted(kinds))}" if kinds else "no name says it"
    raise UsageError(f"what {source!r} is: {what}; say the format, one of {', '.join(FORMATS)}")


def _parts(frame: DataFrame, wanted: Publication) -> Iterator[tuple[str, DataFrame]]:
    if not wanted.split:
        yield wanted.name, frame
        return
    columns = _columns(frame, wanted.split_by) if wanted.split_by else _hashable(frame)
    bucket = sf.pmod(sf.xxhash64(sf.lit("split"), *columns), sf.lit(_BUCKETS))
    begin = 0.0
    for part, share in wanted.split.items():
        end = begin + share
        low, high = round(begin * _BUCKETS), round(end * _BUCKETS)
        yield f"{wanted.name}-{part}", frame.where((bucket >= low) & (bucket < high))
        begin = end


def _ordered(frame: DataFrame, wanted: Publication) -> DataFrame:
    if wanted.repartition is not None and not wanted.sort and wanted.shuffle_seed is None:
        return frame.repartition(wanted.repartition)
    keys: list[Column] = []
    if wanted.sort:
        names = [name.removeprefix("-") for name in wanted.sort]
        keys = [
            column.desc() if name.startswith("-") else column.asc()
            for name, column in zip(wanted.sort, _columns(frame, names), strict=True)
        ]
    elif wanted.shuffle_seed is not None:
        columns = _hashable(frame)
        keys = [sf.xxhash64(sf.lit(wanted.shuffle_seed), *columns)]
    if not keys:
        return frame
    if wanted.repartition is not None:
        frame = frame.repartitionByRange(wanted.repartition, *keys)
        return frame.sortWithinPartitions(*keys)
    return frame.orderBy(*keys)


def _columns(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise UsageError(f"no column {absent[0]!r}; there are {', '.join(frame.columns)}")
    return [frame[f"`{name}`"] for name in names]


def _hashable(frame: DataFrame) -> list[Column]:
    """Return the columns that Spark can hash: maps and variants it cannot."""
    names = [found.name for found in frame.schema.fields if _can_hash(found.dataType)]
    if not names:
        raise UsageError("no column can be hashed; name some with split_by, or do not shuffle")
    return _columns(frame, names)


def _can_hash(kind: st.DataType) -> bool:
    text = kind.simpleString()
    return not any(word in text for word in ("map<", "variant", "geometry", "geography"))


def _dictionary(frame: DataFrame, wanted: Publication) -> str:
    if wanted.dictionary != "auto":
        return wanted.dictionary
    return ",".join(dictionary_columns(frame)) or "none"


def _to_folder(frame: DataFrame, name: str, wanted: Publication, job: str, encoded: str) -> Done:
    place = f"{wanted.to[0].rstrip('/')}/{name}"
    store = VersionStore(place)
    made = _made(store, job) if wanted.job_id else None
    if made is None and wanted.mode in ("error", "ignore"):
        existing = store.load()
        if existing is not None and wanted.mode == "error":
            raise DatasetError(
                f"{place} exists, in version {existing.version}: append to it or overwrite it"
            )
        made = existing
    if made is None:
        mode = "overwrite" if wanted.mode == "overwrite" else "append"
        _write(frame, place, wanted, job, encoded, mode)
        made = _made(store, job)
    if made is None:
        raise DatasetError(f"{place}: the version of the job {job} is gone already")
    return _done(name, place, made, made.version)


def _made(store: VersionStore, job: str) -> Manifest | None:
    for version in reversed(store.versions()):
        manifest = store.load(version)
        if manifest is not None and manifest.job == job:
            return manifest
    return None


def _done(name: str, place: str, made: Manifest, version: int | None) -> Done:
    own = [shard for shard in made.shards if shard.path.startswith(f"data/{made.job}/")]
    rows, nbytes = sum(shard.rows for shard in own), sum(shard.nbytes for shard in own)
    return Done(name, place, version, rows, len(own), nbytes)


def _to_daemons(frame: DataFrame, name: str, wanted: Publication, job: str, encoded: str) -> Done:
    with _staging(wanted) as folder:
        place = f"{folder}/{job}/{name}"
        _write(frame, place, wanted, job, encoded, "overwrite")
        told = publish_folder(
            place,
            name,
            list(wanted.to),
            replicas=wanted.replicas,
            mode=wanted.mode,
            token=wanted.token,
            tls=wanted.tls,
        )
        nbytes = sum(found.bytes for found in told.daemons.values())
        return Done(name, ",".join(told.daemons), None, told.rows, told.shards, nbytes)


@contextmanager
def _staging(wanted: Publication) -> Generator[str]:
    if wanted.staging is not None:
        yield wanted.staging.rstrip("/")
        return
    with tempfile.TemporaryDirectory(prefix="splitarrow-publish-") as folder:
        yield folder


def _write(
    frame: DataFrame, place: str, wanted: Publication, job: str, encoded: str, mode: str
) -> None:
    options: dict[str, Any] = {
        "rows_per_shard": wanted.rows_per_shard,
        "bytes_per_shard": wanted.bytes_per_shard,
        "compression": wanted.compression,
        "dictionary": encoded,
        "job_id": job,
    }
    writer = frame.write.format("splitarrow").mode(mode)
    for key, value in options.items():
        if value is not None:
            writer = writer.option(key, value)
    writer.save(place)


@contextmanager
def _explained(wanted: Publication) -> Generator[None]:
    try:
        yield
    except AnalysisException as error:
        if "PYTHON_DATA_SOURCE" in (error.getCondition() or ""):
            raise DatasetError(f"{wanted.source}: {reason(error)}") from None
        raise UsageError(f"{wanted.source}: {reason(error)}") from None
    except (PySparkException, Py4JJavaError) as error:
        raise DatasetError(f"{wanted.source}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Return why Spark failed, in one line: what Python raised in a worker, if it did."""
    text = str(error)
    raised = _RAISED.findall(text)
    if raised:
        return raised[-1].partition(" SQLSTATE")[0].strip()
    return (text.strip().splitlines() or [type(error).__name__])[0].partition(" SQLSTATE")[0]


def _is_control(place: str) -> bool:
    return place.partition(":")[0].lower().startswith("grpc")
