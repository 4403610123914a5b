"""``splitarrow publish``: files or a table become a dataset that daemons serve, by Spark."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ..errors import UsageError
from .connecting import AsJson, Token, token_or_default
from .figures import counted, printable, size
from .output import say, standard_output
from .sparkprogress import SparkProgress
from .wording import flag, option

_ROWS = "Rows"
_SHARDS = "Shards"
_SPARK = "Spark"


def publish(
    source: Annotated[
        str,
        typer.Argument(
            help="A file or folder of Parquet, CSV, JSON lines or ORC, a URL that Spark reads, or "
            "with [cyan]--format table[/cyan] the name of a table.",
            metavar="SOURCE",
        ),
    ],
    name: Annotated[str, typer.Argument(help="What the dataset is called.", metavar="NAME")],
    to: Annotated[
        list[str],
        option(
            help="Where it goes: a folder or a URL of an object store, below which it is called "
            "NAME; or the control plane of a daemon, as often as there are daemons.",
            metavar="PLACE",
        ),
    ],
    format: Annotated[
        str | None, option(help="What SOURCE is: parquet, csv, json, orc or table.", panel=_ROWS)
    ] = None,
    select: Annotated[
        str | None,
        option(help="The columns, as after SELECT in SQL.", metavar="SQL", panel=_ROWS),
    ] = None,
    filter: Annotated[
        str | None, option(help="The rows, as after WHERE in SQL.", metavar="SQL", panel=_ROWS)
    ] = None,
    cast: Annotated[
        list[str] | None,
        option(help="The type of a column, as in id=int.", metavar="COLUMN=TYPE", panel=_ROWS),
    ] = None,
    sort: Annotated[
        str | None,
        option(help="Columns to sort by, with - in front: downwards.", metavar="A,B", panel=_ROWS),
    ] = None,
    shuffle_seed: Annotated[
        int | None,
        option(help="Mix the rows; the same seed gives the same order.", panel=_ROWS),
    ] = None,
    split: Annotated[
        str | None,
        option(
            help="Make several datasets, NAME-PART, of shares of the rows.",
            metavar="train=0.9,validation=0.1",
            panel=_ROWS,
        ),
    ] = None,
    split_by: Annotated[
        str | None,
        option(
            help="Keep rows with the same values in these columns together in a split.",
            metavar="A,B",
            panel=_ROWS,
        ),
    ] = None,
    rows_per_shard: Annotated[
        int | None, option(min=1, help="The number of rows of a shard.", panel=_SHARDS)
    ] = None,
    bytes_per_shard: Annotated[
        str | None,
        option(help="The size of a shard.", default="128MiB", metavar="SIZE", panel=_SHARDS),
    ] = None,
    compression: Annotated[str, option(help="none, lz4 or zstd.", panel=_SHARDS)] = "none",
    dictionary: Annotated[
        str,
        option(
            help="The columns to dictionary-encode; auto: where a sample says that it pays.",
            metavar="none|auto|A,B",
            panel=_SHARDS,
        ),
    ] = "none",
    mode: Annotated[
        str,
        option(
            help="Where the dataset exists: append, overwrite, error or ignore. Old versions stay "
            "in any case.",
            default="error; to daemons overwrite",
        ),
    ] = "",
    job_id: Annotated[
        str | None,
        option(help="A name for this publication: what it has published is not published again."),
    ] = None,
    replicas: Annotated[int, option(min=1, help="How many daemons get each shard.")] = 1,
    staging: Annotated[
        str | None,
        option(
            help="A folder that all of the cluster sees, where shards wait to be sent to daemons.",
            metavar="FOLDER",
        ),
    ] = None,
    token: Token = None,
    repartition: Annotated[
        int | None, option(min=1, help="How many tasks write.", panel=_SPARK)
    ] = None,
    master: Annotated[
        str | None,
        option(help="Where Spark runs, as in spark://host:7077.", default="local", panel=_SPARK),
    ] = None,
    conf: Annotated[
        list[str] | None, option(help="A setting of Spark.", metavar="KEY=VALUE", panel=_SPARK)
    ] = None,
    spark_log: Annotated[
        Path | None,
        option(
            help="Where Java, Spark and its workers write what they have to say.",
            default="nowhere",
            metavar="FILE",
            panel=_SPARK,
        ),
    ] = None,
    quiet: Annotated[bool, flag("-q", "--quiet", help="Show no progress and no summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prepare files or a table with Spark, and publish them as a dataset of shards.

    Nobody sees a shard before all are there. Readers of an older version are not disturbed. It
    needs the extra [cyan]spark[/cyan], and Java or the extra [cyan]spark-jdk[/cyan].

    [dim]splitarrow publish trips/ trips --to /data --filter 'fare > 0' --shuffle-seed 1[/dim]
    """
    from ..pipeline.session import require_pyspark, session

    require_pyspark()
    from ..pipeline.publish import Publication
    from ..pipeline.publish import publish as run
    from ..pipeline.starting import silence_queries
    from ..transport.certificates import TlsOptions

    daemons = to[0].lower().startswith("grpc")
    wanted = Publication(
        source=source,
        name=name,
        to=to,
        format=format,
        select=select,
        filter=filter,
        cast=_pairs(cast, "--cast"),
        repartition=repartition,
        sort=_names(sort),
        shuffle_seed=shuffle_seed,
        split={part: _share(text) for part, text in _pairs(_names(split), "--split").items()},
        split_by=_names(split_by),
        rows_per_shard=rows_per_shard,
        bytes_per_shard=bytes_per_shard,
        compression=compression,
        dictionary=dictionary,
        mode=mode or ("overwrite" if daemons else "error"),
        job_id=job_id,
        replicas=replicas,
        token=token_or_default(token),
        tls=TlsOptions.from_environment(),
        staging=staging,
    )
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN" if spark_log else "OFF",
        **_pairs(conf, "--conf"),
    }
    silence_queries()
    with _log_file(spark_log) as log, SparkProgress(enabled=not quiet) as progress:
        spark = session(f"splitarrow publish {name}", master=master, settings=settings, log=log)
        try:
            with progress.following(spark, name):
                done = run(spark, wanted, progress.show)
        finally:
            spark.stop()
    if as_json:
        with standard_output():
            found = [
                {
                    "dataset": one.name,
                    "place": one.place,
                    "version": one.version,
                    "rows": one.rows,
                    "shards": one.shards,
                    "bytes": one.nbytes,
                }
                for one in done
            ]
            print(json.dumps(found, ensure_ascii=False))
    if not quiet:
        for one in done:
            version = "" if one.version is None else f", version {one.version}"
            say(
                f"{printable(one.name)}: {counted(one.rows, 'row')} in "
                f"{counted(one.shards, 'shard')}, {size(one.nbytes)}{version}, at "
                f"{printable(one.place)}"
            )


@contextmanager
def _log_file(path: Path | None) -> Generator[IO[bytes]]:
    """Open what takes the messages of Spark: they would stand between ours."""
    if path is None:
        with tempfile.TemporaryFile() as nowhere:
            yield nowhere
    else:
        with path.open("ab+") as log:
            yield log


def _names(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _pairs(given: list[str] | None, what: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals or not value.strip():
            raise UsageError(f"{what} {text!r} is not of the form NAME=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--split: {text!r} is no share such as 0.9") from None
