"""Checks of row groups before pyarrow decodes them: sizes, numbers of values, and dictionaries."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from ....errors import ExhaustedError, InvalidDataError, ProtocolError
from ....formats.parquet.thrift import CompactReader
from ....formats.text import format_size
from ....transport.memory.files import SourceFile
from .object_file import ObjectFile

_HEADER_BYTES = 256
_PAGE_BYTES, _DICTIONARY_HEADER, _COUNT = 2, 7, 1
_FIXED = "FIXED_LEN_BYTE_ARRAY"


def check_row_groups(
    file: SourceFile, parquet: Any, groups: list[int], names: list[str] | None, limit: int
) -> None:
    """Check some columns of some row groups.

    Parameters
    ----------
    file : SourceFile
        The file.
    parquet : pyarrow.parquet.ParquetFile
        The same file.
    groups : list of int
        The row groups to read.
    names : list of str or None
        The top-level columns to read; None for all.
    limit : int
        The largest decoded size of a column in a row group, in bytes.

    Raises
    ------
    ExhaustedError
        If a column in a row group is larger than `limit` bytes. A page or even a value may be as
        large as its column in a row group, and pyarrow decodes a page in one go.
    InvalidDataError
        If a column does not have a value for each row, or a dictionary has another size than its
        values. Repeated columns may have any number of values.
    """
    schema = parquet.schema
    selected = [
        (index, schema.column(index))
        for index in range(len(schema))
        if names is None or schema.column(index).path.partition(".")[0] in names
    ]
    for group in groups:
        row_group = parquet.metadata.row_group(group)
        for index, column in selected:
            chunk = row_group.column(index)
            if chunk.total_uncompressed_size > limit:
                raise ExhaustedError(
                    f"the column {column.path!r} has {chunk.total_uncompressed_size} bytes in row "
                    f"group {group} of {PurePath(file.path).name}; the limit is "
                    f"{format_size(limit)}: write smaller row groups, read other columns, or start "
                    "the server with more parquet_bytes"
                )
            if not column.max_repetition_level and chunk.num_values != row_group.num_rows:
                raise InvalidDataError(
                    f"the column {column.path!r} has {chunk.num_values} values in row group "
                    f"{group}, which has {row_group.num_rows} rows"
                )
            if column.physical_type == _FIXED and chunk.has_dictionary_page:
                _check_dictionary(file, chunk.dictionary_page_offset, column)


def _check_dictionary(file: SourceFile, offset: int, column: Any) -> None:
    """Check that a dictionary of values of fixed length has the size of its values.

    pyarrow takes any bytes as values. An object is not read for it, which takes a request.
    """
    if isinstance(file, ObjectFile) or not 0 < offset < file.size:
        return
    data = bytes(file.read(offset, min(_HEADER_BYTES, file.size - offset)))
    try:
        header = CompactReader(data).read_struct()
        nbytes: int = header[_PAGE_BYTES].content
        count: int = header[_DICTIONARY_HEADER].content[_COUNT].content
    except (ProtocolError, KeyError, TypeError):  # pyarrow has the better error
        return
    if nbytes != count * column.length:
        raise InvalidDataError(
            f"the dictionary of the column {column.path!r} has {nbytes} bytes, but {count} values "
            f"of {column.length} bytes"
        )
