"""The source of a publishing job, as a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    source : str
        A file or folder, a URL that Spark can read, or the name of a table.
    format : str, optional
        One of `FORMATS`. The default is detected by the file names.

    Raises
    ------
    UsageError
        If the format cannot be detected.
    """
    format = format or detect_format(source)
    if format == "table":
        return spark.table(source)
    reader = spark.read.option("mode", "FAILFAST")
    if format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    return reader.format(format).load(source)


def detect_format(source: str) -> str:
    """Return the format of a file or folder by the suffixes of its file names.

    Raises
    ------
    UsageError
        If no suffix is known, or the files of a folder have several formats.

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
    problem = (
        f"has files of {' and '.join(sorted(map(str, formats)))}"
        if formats
        else ("has no known suffix")
    )
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
