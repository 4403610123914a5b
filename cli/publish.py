"""``splitarrow publish``: prepare data with Spark, and publish it as a dataset of shards."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import MofNCompleteColumn, TextColumn

from ..client.uris import is_control_uri
from ..errors import UsageError
from ..formats.text import format_bytes
from .connection import AsJson, Quiet, Token, resolve_token, with_tls_options
from .formatting import escape_text, format_count
from .options import option
from .terminal import call_repeatedly, is_terminal, make_progress, print_message, standard_output

if TYPE_CHECKING:
    from ..pipeline.publish import PublishJob, PublishJobResult


_POLL_SECONDS = 0.3


class StageTasks:
    """Adds up the tasks of all stages, so that the bar does not begin again with each stage."""

    def __init__(self) -> None:
        self._tasks: dict[int, int] = {}

    def update(self, active: Mapping[int, Any]) -> tuple[int, int]:
        """Return the completed tasks and all tasks of the stages seen so far.

        `active` has the stages that run now, by their numbers. Spark may not know one any more.
        """
        remaining = 0
        for number, stage in active.items():
            if stage is not None:
                self._tasks[number] = stage.numTasks
                remaining += stage.numTasks - stage.numCompletedTasks
        total = sum(self._tasks.values())
        return total - remaining, total


class SparkProgress:
    """Shows on a terminal that Spark starts, and then the finished tasks of its stages."""

    def __init__(self, *, enabled: bool = True) -> None:
        shown = enabled and is_terminal(sys.stderr)
        # Standard error is redirected while Spark starts. A duplicate still reaches the terminal.
        self._terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w") if shown else None
        tasks = MofNCompleteColumn()
        self._progress = make_progress(
            tasks, TextColumn("tasks"), enabled=shown, file=self._terminal
        )
        self._task = self._progress.add_task("starting Spark", total=None)

    @contextmanager
    def track(self, spark: Any, name: str) -> Generator[None]:
        """Show the tasks of a session while the context lasts."""
        self.describe(name)
        if self._terminal is None:
            yield
            return
        tasks, tracker = StageTasks(), spark.sparkContext.statusTracker()

        def show_tasks() -> None:
            active = {each: tracker.getStageInfo(each) for each in tracker.getActiveStageIds()}
            completed, total = tasks.update(active)
            if total:
                self._progress.update(self._task, total=total, completed=completed)

        with call_repeatedly(show_tasks, _POLL_SECONDS):
            yield

    def describe(self, name: str) -> None:
        """Change the dataset that is shown."""
        self._progress.update(self._task, description=name)

    def __enter__(self) -> SparkProgress:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()
        if self._terminal is not None:
            with suppress(OSError):
                self._terminal.close()


_ROWS = "Rows"
_SHARDS = "Shards"
_SPARK = "Spark"

Source = Annotated[
    str,
    typer.Argument(
        help="A file or folder of Parquet, CSV, JSON lines or ORC; a URL that Spark can read; or, "
        "with [cyan]--format table[/cyan], the name of a table.",
        metavar="SOURCE",
    ),
]
Name = Annotated[str, typer.Argument(help="The name of the dataset.", metavar="NAME")]
To = Annotated[
    list[str],
    option(
        help="The destination: a folder or the URL of an object store, where the folder NAME is "
        "written; or the control plane of a daemon. Give it once for each daemon.",
        metavar="DESTINATION",
    ),
]
Format = Annotated[
    Literal["parquet", "csv", "json", "orc", "table"] | None,
    option(help="The format of SOURCE.", default="that of the file names", panel=_ROWS),
]
Select = Annotated[
    str | None,
    option(help="The columns: expressions as after SELECT in SQL.", metavar="SQL", panel=_ROWS),
]
Filter = Annotated[
    str | None,
    option(help="The rows: a condition as after WHERE in SQL.", metavar="SQL", panel=_ROWS),
]
Cast = Annotated[
    list[str] | None,
    option(help="Cast a column to a type, as in id=int.", metavar="COLUMN=TYPE", panel=_ROWS),
]
Sort = Annotated[
    str | None,
    option(
        help="The columns to sort by. The prefix - means descending order.",
        metavar="A,B",
        panel=_ROWS,
    ),
]
ShuffleSeed = Annotated[
    int | None,
    option(
        help="Shuffle the rows. The same seed gives the same order.", metavar="SEED", panel=_ROWS
    ),
]
Split = Annotated[
    str | None,
    option(
        help="Split the rows into several datasets, NAME-PART, by shares.",
        metavar="train=0.9,validation=0.1",
        panel=_ROWS,
    ),
]
SplitBy = Annotated[
    str | None,
    option(
        help="Keep rows that are equal in these columns in one part of a split.",
        metavar="A,B",
        panel=_ROWS,
    ),
]
RowsPerShard = Annotated[
    int | None,
    option(min=1, help="The number of rows of a shard.", metavar="ROWS", panel=_SHARDS),
]
BytesPerShard = Annotated[
    str | None,
    option(help="The size of a shard.", default="128MiB", metavar="SIZE", panel=_SHARDS),
]
Compression = Annotated[
    Literal["none", "lz4", "zstd"],
    option(help="The compression of shards.", panel=_SHARDS),
]
Dictionary = Annotated[
    str,
    option(
        help="The columns to dictionary-encode; auto chooses them by a sample.",
        metavar="none|auto|A,B",
        panel=_SHARDS,
    ),
]
Mode = Annotated[
    Literal["append", "overwrite", "error", "ignore"] | None,
    option(
        help="What to do if the dataset exists. Old versions are kept in any case.",
        default="error; for daemons overwrite",
    ),
]
JobId = Annotated[
    str | None,
    option(
        help="The id of this publication. A second one with the same id publishes nothing.",
        metavar="ID",
    ),
]
Replicas = Annotated[
    int, option(min=1, help="The number of daemons that store each shard.", metavar="N")
]
Staging = Annotated[
    str | None,
    option(
        help="A folder that the whole Spark cluster shares, for shards before their upload.",
        metavar="FOLDER",
    ),
]
Repartition = Annotated[
    int | None, option(min=1, help="The number of tasks that write.", metavar="N", panel=_SPARK)
]
Master = Annotated[
    str | None,
    option(
        help="The Spark master, as in spark://host:7077.",
        default="local",
        metavar="URL",
        panel=_SPARK,
    ),
]
Conf = Annotated[
    list[str] | None,
    option(help="A property of Spark's configuration.", metavar="KEY=VALUE", panel=_SPARK),
]
SparkLog = Annotated[
    Path | None,
    option(
        help="A file for the output of Java, Spark and its Python workers.",
        default="discarded",
        metavar="FILE",
        panel=_SPARK,
    ),
]


@with_tls_options
def publish(
    source: Source,
    name: Name,
    to: To,
    format: Format = None,
    select: Select = None,
    filter: Filter = None,
    cast: Cast = None,
    sort: Sort = None,
    shuffle_seed: ShuffleSeed = None,
    split: Split = None,
    split_by: SplitBy = None,
    rows_per_shard: RowsPerShard = None,
    bytes_per_shard: BytesPerShard = None,
    compression: Compression = "none",
    dictionary: Dictionary = "none",
    mode: Mode = None,
    job_id: JobId = None,
    replicas: Replicas = 1,
    staging: Staging = None,
    token: Token = None,
    repartition: Repartition = None,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Prepare files or a table with Spark, and publish them as a dataset of shards.

    Readers see the new version once all shards are complete. Readers of an older version are not
    disturbed. This needs the extra [cyan]spark[/cyan], and Java or the extra
    [cyan]spark-jdk[/cyan].

    [dim]splitarrow publish trips/ trips --to /data --filter 'fare > 0' --shuffle-seed 1[/dim]
    """
    from ..pipeline.spark_session import require_pyspark

    require_pyspark()
    from ..pipeline.publish import PublishJob
    from ..transport.tls_options import TlsOptions

    job = PublishJob(
        source=source,
        name=name,
        to=to,
        format=format,
        select=select,
        filter=filter,
        cast=_parse_pairs(cast, "--cast"),
        repartition=repartition,
        sort=_parse_names(sort),
        shuffle_seed=shuffle_seed,
        split=_parse_split(split),
        split_by=_parse_names(split_by),
        rows_per_shard=rows_per_shard,
        bytes_per_shard=bytes_per_shard,
        compression=compression,
        dictionary=dictionary,
        mode=mode or ("overwrite" if is_control_uri(to[0]) else "error"),
        job_id=job_id,
        replicas=replicas,
        token=resolve_token(token),
        tls=TlsOptions.from_environment(),
        staging=staging,
    )
    results = _run(job, master, _parse_pairs(conf, "--conf"), spark_log, show_progress=not quiet)
    if as_json:
        with standard_output():
            print(json.dumps([_describe(result) for result in results], ensure_ascii=False))
    if not quiet:
        for result in results:
            print_message(_summarize(result))


def _run(
    job: PublishJob,
    master: str | None,
    conf: dict[str, str],
    log_path: Path | None,
    *,
    show_progress: bool,
) -> Sequence[PublishJobResult]:
    """Run a job in its own Spark session."""
    from ..pipeline.publish import publish as run_job
    from ..pipeline.spark_errors import disable_query_logging
    from ..pipeline.spark_session import session

    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN" if log_path else "OFF",
        **conf,
    }
    disable_query_logging()
    with _open_log(log_path) as log, SparkProgress(enabled=show_progress) as progress:
        title = f"splitarrow publish {job.name}"
        spark = session(title, master=master, settings=settings, log=log)
        try:
            with progress.track(spark, job.name):
                return run_job(spark, job, progress.describe)
        finally:
            spark.stop()


@contextmanager
def _open_log(path: Path | None) -> Generator[IO[bytes]]:
    """Open the file for Spark's output, which would mix with that of the command."""
    if path is None:
        with tempfile.TemporaryFile() as discarded:
            yield discarded
    else:
        with path.open("ab+") as log:
            yield log


def _describe(result: PublishJobResult) -> dict[str, Any]:
    return {
        "dataset": result.name,
        "location": result.location,
        "version": result.version,
        "rows": result.rows,
        "shards": result.shards,
        "bytes": result.nbytes,
    }


def _summarize(result: PublishJobResult) -> str:
    version = "" if result.version is None else f", version {result.version}"
    return (
        f"{escape_text(result.name)}: {format_count(result.rows, 'row')} in "
        f"{format_count(result.shards, 'shard')}, {format_bytes(result.nbytes)}{version}, at "
        f"{escape_text(result.location)}"
    )


def _parse_names(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _parse_pairs(texts: list[str] | None, option_name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals or not value.strip():
            raise UsageError(f"{option_name} {text!r}: expected NAME=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _parse_split(text: str | None) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part, share in _parse_pairs(_parse_names(text), "--split").items():
        try:
            shares[part] = float(share)
        except ValueError:
            raise UsageError(f"--split: {share!r} is not a number, such as 0.9") from None
    return shares
