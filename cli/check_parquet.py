"""Checks of Parquet files for ``splitarrow check``."""

from __future__ import annotations

from typing import Any

from ..formats.arrow.file_scan import Defect
from ..formats.parquet.conversions import DEFAULT_OPTIONS
from ..server.catalog.files.parquet import inspect_parquet
from ..transport.memory.files import SourceFile
from .check_report import Progress, Report
from .check_values import count_batches

_MAGIC_BYTES = 4


def check_parquet(file: SourceFile, report: Report, *, full: bool, progress: Progress) -> None:
    """Check the footer of a Parquet file; with `full`, all pages and values, too.

    Raises `ProtocolError`, `pyarrow.ArrowException` if the footer or, with `full`, a page cannot be
    read.
    """
    report.batch_noun = "row group"
    with inspect_parquet(file) as (plan, parquet):
        metadata = parquet.metadata
        report.columns = len(plan.columns.schema)
        _check_row_groups(metadata, file.size, report)
        groups = metadata.num_row_groups
        if full and report.is_sound:
            batches = (
                plan.columns.convert(batch, by_name=False, options=DEFAULT_OPTIONS)
                for batch in parquet.iter_batches()
            )
            report.rows = 0
            count_batches(batches, report, progress)
            if report.rows != metadata.num_rows:
                problem = f"it lists {metadata.num_rows} rows; the pages have {report.rows}"
                report.add_defect(Defect("footer", None, problem))
        report.record_batches, report.rows = groups, metadata.num_rows


def _check_row_groups(metadata: Any, size: int, report: Report) -> None:
    """Check the places and sizes of all column chunks."""
    rows = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        if group.num_rows < 0:
            problem = f"it declares {group.num_rows} rows"
            report.add_defect(Defect(f"row group {number}", None, problem))
        for index in range(group.num_columns):
            chunk = group.column(index)
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
                begin = min(begin, chunk.dictionary_page_offset)
            nbytes = chunk.total_compressed_size
            if begin < _MAGIC_BYTES or nbytes < 0 or begin + nbytes > size:
                problem = (
                    f"column {chunk.path_in_schema} has {nbytes} bytes at byte {begin}, outside "
                    f"the file of {size} bytes"
                )
                report.add_defect(Defect(f"row group {number}", begin, problem, nbytes))
            if chunk.num_values < 0:
                problem = f"column {chunk.path_in_schema} declares {chunk.num_values} values"
                report.add_defect(Defect(f"row group {number}", begin, problem, nbytes))
    if rows != metadata.num_rows:
        problem = f"it lists {metadata.num_rows} rows; its row groups have {rows}"
        report.add_defect(Defect("footer", None, problem))
