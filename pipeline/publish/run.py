"""The publishing job, step by step."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from ..sink.dictionaries import dictionary_columns
from ..spark.batch_limits import batch_limits
from ..spark.errors import translate_errors
from .destinations import publish_to_daemons, publish_to_folder
from .inputs import read_source
from .job import Progress, PublishJob, PublishJobResult
from .rows import order_rows, select_rows, split_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    publish_dataset = publish_to_daemons if job.targets_daemons else publish_to_folder
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
                results.append(publish_dataset(ordered, name, job, job_id, progress))
    return results
