"""Fields of unshredded Variant columns, found in each batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ....formats.parquet.shredded_fields import find_field
from ..messages.reencoding import Batches
from ..query.selection import Selection, select_fields
from .file_dataset import FileContents


def read_fields(
    read: Callable[[FileContents, Selection], Batches], contents: FileContents, selection: Selection
) -> Batches:
    """Yield batches of columns and fields of Variants.

    Parameters
    ----------
    read : callable
        Yields batches of columns, as `FileDataset.read_batches` does.
    contents : FileContents
        The contents, with the fields; see `FileContents.with_fields`.
    selection : Selection
        The columns and fields.

    Raises
    ------
    InvalidDataError
        If a Variant is invalid.
    """
    schema = contents.schema
    own = select_fields(schema, range(len(schema) - len(contents.fields)))
    indices = range(len(schema)) if selection.columns is None else selection.columns
    names = [schema.names[index] for index in indices]
    sources = [contents.fields[name].column if name in contents.fields else name for name in names]
    columns = tuple(own.get_field_index(name) for name in dict.fromkeys(sources))
    stored = replace(selection, schema=select_fields(own, columns), columns=columns, filter=None)
    stored_contents = replace(contents, schema=own, fields={})
    with closing(read(stored_contents, stored)) as batches:
        for batch, custom_metadata in batches:
            arrays: list[Any] = []
            for name, source in zip(names, sources, strict=True):
                column = batch.column(source)
                field = contents.fields.get(name)
                arrays.append(column if field is None else find_field(column, field))
            yield pa.RecordBatch.from_arrays(arrays, schema=selection.schema), custom_metadata
