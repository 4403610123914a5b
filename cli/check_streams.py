"""Checks of datasets of a server for ``splitarrow check``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..errors import InvalidValueWarning, SplitArrowError, UsageError
from ..formats.arrow.file_scan import Defect
from .check_report import Progress, Report
from .connection import is_control_uri, open_client


def check_uri(
    uri: str, *, full: bool, progress: Progress, token: str | None, connect_timeout: float
) -> Iterator[Report]:
    """Read a dataset of a server, or all of its datasets, and check each message.

    Raises `UsageError` if the URI is malformed.
    """
    options: dict[str, Any] = {
        "validate": "full" if full else "cheap",
        "connect_timeout": connect_timeout,
    }
    if not is_control_uri(uri):
        from ..client.open import open as open_stream
        from ..client.uris import complete_uri

        name = complete_uri(uri).redacted()
        yield _read(name, partial(open_stream, uri, **options), progress)
        return
    from ..client.uris import split_dataset

    address, name = split_dataset(uri)
    with open_client(address, token, connect_timeout) as client:
        for dataset in [name] if name else list(client):
            target = f"{address}/{dataset}"
            yield _read(target, partial(client.read, dataset, **options), progress)


def _read(target: str, open_stream: Callable[[], Any], progress: Progress) -> Report:
    report = Report(target, "dataset")
    rows = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InvalidValueWarning)
        try:
            with open_stream() as stream:
                report.columns = len(stream.schema)
                for batch in stream:
                    report.record_batches += 1
                    report.messages += 1
                    rows += batch.num_rows
                    report.nbytes = stream.bytes_received
                    progress(rows, report.nbytes)
        except UsageError:
            raise
        except SplitArrowError as error:
            place = "stream" if error.sequence is None else f"message {error.sequence}"
            report.add_defect(Defect(place, None, error.message))
    report.rows = rows
    for warning in caught:
        if issubclass(warning.category, InvalidValueWarning):
            report.add_warning(Defect("stream", None, str(warning.message)))
    return report
