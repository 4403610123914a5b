"""Validation of decoded record batches for ``splitarrow check``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ..formats.arrow.decoding import validate_memory
from ..formats.arrow.file_scan import Defect
from .check_report import Progress, Report


def find_reason(data: Any) -> str:
    """Return why pyarrow refuses values."""
    try:
        data.validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error).partition("\n")[0]
    return ""


def count_batches(batches: Iterator[pa.RecordBatch], report: Report, progress: Progress) -> None:
    """Validate record batches, and count them."""
    for batch in batches:
        place = f"{report.batch_noun} {report.record_batches}"
        if not validate_memory(batch):
            reason = find_reason(batch)
            report.add_warning(Defect(place, None, reason, rows=batch.num_rows))
        report.record_batches += 1
        report.rows = (report.rows or 0) + batch.num_rows
        progress(report.rows, report.nbytes)
