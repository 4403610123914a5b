"""The publishing job: rows that Spark can read become datasets that daemons serve.

1. `read_source` opens the source as a DataFrame.
2. `select_rows`, `split_rows` and `order_rows` filter, select, cast, split and order the rows.
3. `publish_to_folder` and `publish_to_daemons` write each dataset with the sink of this package: to
   a folder or an object store, or to a staging folder, from which the driver uploads the shards to
   daemons.
"""

from __future__ import annotations

import math
import re
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from ..client.cluster.publication import ShardProgress
from ..client.tokens import Token, TokenFile
from ..errors import DatasetError, UsageError
from ..publication.layout import format_data_folder
from ..publication.table_formats import find_format, list_parents, refuse_table
from ..publication.version_store import VersionStore
from ..transport.tls_options import TlsOptions
from .dictionaries import dictionary_columns
from .folder_publication import publish_folder
from .options import SparkOptions
from .spark_errors import translate_errors
from .spark_session import BATCH_BYTES, BATCH_ROWS, DEFAULTS
from .spark_versions import DATE_AND_TIME_TYPES, collect_batches, find_condition, is_remote
from .writer import WRITE_OPTIONS, write_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["PublishJob", "PublishJobResult", "publish"]

FORMATS = ("parquet", "csv", "json", "orc", "table")
"""The formats of a source; ``table`` is a table of Spark's catalog."""
_FORMATS_BY_SUFFIX = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_COMPRESSION_SUFFIXES = (".gz", ".bz2", ".zst", ".snappy", ".lz4")


def read_source(spark: SparkSession, source: str, format: str | None = None) -> DataFrame:
    """Return the rows of a source. Spark raises when it reaches a malformed row.

    The file names give the default of the format. Raises `UsageError` if they do not. Raises
    `DatasetError` if the source has files of a table whose log states its rows.
    """
    if format == "table":
        frame = spark.table(source)
        if _FILES_AS_TABLE.match(source):
            _open_folders(spark).check_files(frame)
        return frame
    folders = _open_folders(spark)
    folders.check(source)
    format = format or detect_format(source)
    reader = spark.read.option("mode", "FAILFAST")
    if format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    frame = reader.format(format).load(source)
    folders.check_files(frame)
    return frame


_FILES_AS_TABLE = re.compile(r"\s*`?(parquet|csv|json|orc|text|binaryFile)`?\s*\.", re.IGNORECASE)
"""The name of a table that stands for files, as in parquet.`/data/trips`."""


class _SourceFolders:
    """The folders of a source, in any file system that Spark can read.

    Its methods raise `DatasetError` if a folder is a table whose log states its rows, or is in one.
    """

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark
        self._jvm = session._jvm
        self._settings = session._jsparkSession.sessionState().newHadoopConf()
        self._checked: set[str] = set()

    def check(self, source: str) -> None:
        """Check the files or folders that match a path, and the folders above."""
        path = self._jvm.org.apache.hadoop.fs.Path(source)
        for status in path.getFileSystem(self._settings).globStatus(path) or ():
            self._check_upward(status.getPath())

    def check_files(self, frame: DataFrame) -> None:
        """Check the folders of the files of a frame, and those above.

        Below the source, a folder that defines a partition is not itself a table.
        """
        for folder in sorted({file.rpartition("/")[0] for file in frame.inputFiles()}):
            while "=" in folder.rpartition("/")[2]:
                folder = folder.rpartition("/")[0]
            self._check_upward(self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(folder)))

    def _check_upward(self, path: Any) -> None:
        files = path.getFileSystem(self._settings)
        path = files.makeQualified(path)
        while path is not None and (location := path.toString()) not in self._checked:
            self._checked.add(location)
            format = find_format(partial(self._has_files, files, path))
            if format is not None:
                raise refuse_table(location.removeprefix("file:"), format)
            path = path.getParent()

    def _has_files(self, files: Any, root: Any, folder: str, suffix: str) -> bool:
        path = self._jvm.org.apache.hadoop.fs.Path(root, folder)
        if not files.exists(path):
            return False
        return not suffix or any(
            status.getPath().getName().endswith(suffix) for status in files.listStatus(path)
        )


class _RemoteFolders:
    """The same over Spark Connect, where only queries reach the file systems of the server."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._checked: set[str] = set()

    def check(self, source: str) -> None:
        """Check a file or folder. `check_files` checks the rest, and what matches a pattern."""
        if not _GLOB_CHARACTERS.search(source):
            self._check(source.rstrip("/"))

    def check_files(self, frame: DataFrame) -> None:
        """Check the folders of the files of a frame, and those above."""
        for file in frame.inputFiles():
            url = urlsplit(file)
            for name in list_parents(unquote(url.path).strip("/")):
                if "=" not in name.rpartition("/")[2]:
                    self._check(f"{url.scheme}://{url.netloc}/{name}".rstrip("/"))

    def _check(self, folder: str) -> None:
        if folder in self._checked:
            return
        self._checked.add(folder)
        format = find_format(partial(self._has_files, folder))
        if format is not None:
            raise refuse_table(folder.removeprefix("file://"), format)

    def _has_files(self, root: str, folder: str, suffix: str) -> bool:
        path = _GLOB_CHARACTERS.sub(r"\\\g<0>", f"{root}/{folder}")
        if suffix:
            path += f"/*{suffix}"
        reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            return bool(reader.load(path).schema)
        except AnalysisException as error:
            if find_condition(error) != "PATH_NOT_FOUND":
                raise
            return False


_GLOB_CHARACTERS = re.compile(r"[\\\[\]{}*?]")
"""The characters of a path that have a meaning in a pattern of Hadoop."""


def _open_folders(spark: SparkSession) -> _SourceFolders | _RemoteFolders:
    return _RemoteFolders(spark) if is_remote(spark) else _SourceFolders(spark)


def detect_format(source: str) -> str:
    """Return the format of a file or folder by the suffixes of its file names.

    Raises `UsageError` if no suffix is known, or the files of a folder have several formats.

    Examples
    --------
    >>> detect_format("trips.csv.gz"), detect_format("s3a://bucket/trips.parquet")
    ('csv', 'parquet')
    """
    path = Path(source)
    files = [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    formats = {_format_by_suffix(file) for file in files} - {None}
    if len(formats) == 1:
        return str(formats.pop())
    several = f"has files of {' and '.join(sorted(map(str, formats)))}"
    problem = several if formats else "has no known suffix"
    raise UsageError(
        f"cannot detect the format of {source!r}: it {problem}; set the format to one of "
        f"{', '.join(FORMATS)}"
    )


def _format_by_suffix(file: Path) -> str | None:
    if file.name.startswith(("_", ".")):
        return None  # Spark ignores these files
    suffixes = file.suffixes
    if suffixes and suffixes[-1] in _COMPRESSION_SUFFIXES:
        suffixes.pop()
    return _FORMATS_BY_SUFFIX.get(suffixes[-1]) if suffixes else None


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
    token: Token | None = field(default=None, repr=False)
    """The token that authenticates the publisher at the daemons, or a function that returns it."""
    token_file: TokenFile = None
    """A file with the token, in place of `token`."""
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


_HASH_BUCKETS = 1_000_000
"""The resolution of a split: shares are multiples of a millionth."""
_UNHASHABLE_TYPES = ("map<", "variant", "geometry", "geography")


def select_rows(spark: SparkSession, frame: DataFrame, job: PublishJob) -> DataFrame:
    """Return the rows and columns that the job's filter, select and casts describe.

    Raises `UsageError` if a cast names a column that does not exist.
    """
    if job.filter:
        frame = frame.where(job.filter)
    if job.select:
        frame = spark.sql(f"SELECT {job.select} FROM {{frame}}", frame=frame)
    for name, type_name in job.cast.items():
        (column,) = _columns(frame, [name])
        frame = frame.withColumn(name, column.cast(type_name))
    return frame


def split_rows(frame: DataFrame, job: PublishJob) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name and the rows of each dataset: one per share, or a single one.

    A hash of the `split_by` columns decides on the share of a row, so equal rows never fall into
    different shares, and each run of the job splits in the same way.
    """
    if not job.split:
        yield job.name, frame
        return
    keys = _columns(frame, job.split_by) if job.split_by else _hashable_columns(frame)
    bucket = sf.pmod(sf.xxhash64(sf.lit("split"), *keys), sf.lit(_HASH_BUCKETS))
    for share, (begin, end) in _bucket_ranges(job.split).items():
        yield f"{job.name}-{share}", frame.where((bucket >= begin) & (bucket < end))


def _bucket_ranges(shares: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Return the half-open range of hash buckets of each share."""
    ranges: dict[str, tuple[int, int]] = {}
    begin = 0.0
    for share, fraction in shares.items():
        end = begin + fraction
        ranges[share] = round(begin * _HASH_BUCKETS), round(end * _HASH_BUCKETS)
        begin = end
    return ranges


def order_rows(frame: DataFrame, job: PublishJob) -> DataFrame:
    """Return the rows sorted or shuffled, in as many partitions as the job asks for."""
    keys = _sort_keys(frame, job)
    if job.repartition is None:
        return frame.orderBy(*keys) if keys else frame
    if not keys:
        return frame.repartition(job.repartition)
    return frame.repartitionByRange(job.repartition, *keys).sortWithinPartitions(*keys)


def _sort_keys(frame: DataFrame, job: PublishJob) -> list[Column]:
    if job.sort:
        columns = _columns(frame, [name.removeprefix("-") for name in job.sort])
        return [
            column.desc() if name.startswith("-") else column.asc()
            for name, column in zip(job.sort, columns, strict=True)
        ]
    if job.shuffle_seed is not None:
        return [sf.xxhash64(sf.lit(job.shuffle_seed), *_hashable_columns(frame))]
    return []


def _columns(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"no column {name!r}; the columns are {', '.join(frame.columns)}")
    return [frame[f"`{name}`"] for name in names]


def _hashable_columns(frame: DataFrame) -> list[Column]:
    names = [field.name for field in frame.schema.fields if _is_hashable(field.dataType)]
    if not names:
        raise UsageError(
            "Spark cannot hash any of the columns; select other columns, or do not split or shuffle"
        )
    return _columns(frame, names)


def _is_hashable(data_type: st.DataType) -> bool:
    name = data_type.simpleString()
    return not any(unhashable in name for unhashable in _UNHASHABLE_TYPES)


def publish_to_folder(
    frame: DataFrame, name: str, job: PublishJob, job_id: str
) -> PublishJobResult:
    """Publish rows as the next version of a dataset in a folder or an object store.

    If the job has committed a version already, that is the result. Raises `DatasetError` if the
    dataset exists and the mode is ``error``, or the dataset cannot be written.
    """
    location = f"{job.to[0].rstrip('/')}/{name}"
    store = VersionStore(location)
    # An identifier that was generated for this run cannot have a version yet.
    manifest = store.find_job(job_id) if job.job_id else None
    if manifest is None and job.mode in ("error", "ignore"):
        manifest = store.load()
        if manifest is not None and job.mode == "error":
            raise DatasetError(
                f"{location} exists, in version {manifest.version}; "
                "use the mode 'append' or 'overwrite'"
            )
    if manifest is None:
        _write(frame, location, job, job_id, overwrite=job.mode == "overwrite")
        manifest = store.find_job(job_id)
    if manifest is None:
        raise DatasetError(
            f"{location}: the version of the job {job_id} was removed right after it was published"
        )
    folder = f"{format_data_folder(manifest.job)}/"
    own = [shard for shard in manifest.shards if shard.path.startswith(folder)]
    return PublishJobResult(
        name,
        location,
        manifest.version,
        rows=sum(shard.rows for shard in own),
        shards=len(own),
        nbytes=sum(shard.nbytes for shard in own),
    )


def publish_to_daemons(
    frame: DataFrame, name: str, job: PublishJob, job_id: str, progress: Progress | None
) -> PublishJobResult:
    """Write rows to shards in the staging folder, and upload these to daemons.

    Raises `DatasetError` if the shards cannot be written, or a daemon does not commit them.
    """
    with _staging_folder(job) as folder:
        location = f"{folder}/{job_id}/{name}"
        _write(frame, location, job, job_id, overwrite=True)
        result = publish_folder(
            location,
            name,
            list(job.to),
            replicas=job.replicas,
            mode=job.mode,
            token=job.token,
            token_file=job.token_file,
            tls=job.tls,
            progress=_count_uploads(name, location, job.replicas, progress),
        )
    nbytes = sum(published.bytes for published in result.daemons.values())
    daemons = ",".join(result.daemons)
    return PublishJobResult(name, daemons, None, result.rows, result.shards, nbytes)


def _count_uploads(
    name: str, location: str, replicas: int, progress: Progress | None
) -> ShardProgress | None:
    """Return a callback that counts the uploaded copies of the shards at a location."""
    manifest = VersionStore(location).load()
    if progress is None or manifest is None:
        return None
    counter, total = count(1), len(manifest.shards) * replicas
    return lambda _: progress(f"{name}: {next(counter)} of {total} shards uploaded")


@contextmanager
def _staging_folder(job: PublishJob) -> Generator[str]:
    if job.staging is not None:
        yield job.staging.rstrip("/")
        return
    with tempfile.TemporaryDirectory(prefix="splitarrow-publish-") as folder:
        yield folder


def _write(
    frame: DataFrame, location: str, job: PublishJob, job_id: str, *, overwrite: bool
) -> None:
    options: dict[str, Any] = {
        "rows_per_shard": job.rows_per_shard,
        "bytes_per_shard": job.bytes_per_shard,
        "compression": job.compression,
        "dictionary": job.dictionary,
        "job_id": job_id,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    if is_remote(frame.sparkSession):
        settings = SparkOptions({"path": location, **given}, WRITE_OPTIONS)
        write_frame(frame, settings, overwrite=overwrite)
        return
    writer = frame.write.format("splitarrow").mode("overwrite" if overwrite else "append")
    writer.options(**given).save(location)


_NARROW_TYPES = (st.NumericType, st.BooleanType, *DATE_AND_TIME_TYPES, st.NullType)
_SAMPLE_ROWS = 100
_MAX_NARROW_BYTES = 4096
_LIMIT_FOR_NARROW_ROWS = (BATCH_ROWS, "4096")
_LIMIT_FOR_WIDE_ROWS = (BATCH_BYTES, str(32 << 20))


@contextmanager
def batch_limits(spark: SparkSession, frame: DataFrame) -> Generator[None]:
    """Choose the limit of the batches that Spark passes to Python while the context lasts.

    `session` limits batches to few rows, because it knows nothing about them. Here, the first rows
    are a sample, unless all columns are narrow by type. Narrow rows get a larger limit of rows, and
    wide rows a limit of bytes. Limits that differ from those of `session` are the user's, and stay.
    """
    if any(spark.conf.get(key, None) != DEFAULTS[key] for key in (BATCH_ROWS, BATCH_BYTES)):
        yield
        return
    narrow = _mean_row_bytes(frame) <= _MAX_NARROW_BYTES
    key, value = _LIMIT_FOR_NARROW_ROWS if narrow else _LIMIT_FOR_WIDE_ROWS
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, DEFAULTS[key])


def _mean_row_bytes(frame: DataFrame) -> float:
    """Return the mean size of a row in bytes, or infinity if the sample cannot be read."""
    if all(isinstance(field.dataType, _NARROW_TYPES) for field in frame.schema.fields):
        return 0
    try:
        sample = collect_batches(frame.limit(_SAMPLE_ROWS))
    except (PySparkException, Py4JError):  # the job itself will raise the same error
        return float("inf")
    except pa.ArrowException:  # toArrow cannot convert a VARIANT that is null
        return float("inf")
    rows = sum(batch.num_rows for batch in sample)
    return sum(batch.nbytes for batch in sample) / max(1, rows)


def publish(
    spark: SparkSession, job: PublishJob, progress: Progress | None = None
) -> list[PublishJobResult]:
    """Read a source, prepare its rows, and publish them as one dataset, or one per share.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session in which the data source is registered, such as that of `session`.
    job : PublishJob
        The settings.
    progress : callable, optional
        Called with the name of each dataset before it is published, and with its name and the
        number of uploaded shards after each upload to a daemon.

    Returns
    -------
    list of PublishJobResult
        The published datasets.

    Raises
    ------
    UsageError
        If a setting names a column that does not exist, or an expression is malformed.
    DatasetError
        If the source cannot be read, a value does not fit its type, or a dataset cannot be
        written.
    """
    job_id = job.job_id or uuid.uuid4().hex
    results: list[PublishJobResult] = []
    with translate_errors(job.source):
        source = read_source(spark, job.source, job.format)
        frame = select_rows(spark, source, job)
        if job.dictionary == "auto":
            job = replace(job, dictionary=",".join(dictionary_columns(frame)) or "none")
        with batch_limits(spark, source):
            for name, rows in split_rows(frame, job):
                if progress is not None:
                    progress(name)
                ordered = order_rows(rows, job)
                if is_control_uri(job.to[0]):
                    result = publish_to_daemons(ordered, name, job, job_id, progress)
                else:
                    result = publish_to_folder(ordered, name, job, job_id)
                results.append(result)
    return results
