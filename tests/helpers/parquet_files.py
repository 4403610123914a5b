"""Parquet files with any schema: pyarrow writes the data, and the footer gets other annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from splitarrow.formats.parquet.footer import MAGIC, TAIL_BYTES, Footer, read_footer_size
from splitarrow.formats.parquet.thrift import Struct, Type, Value

Edit = Callable[[Struct], Struct | None]


def write_parquet(table: Any, **options: Any) -> bytes:
    """Return the bytes of a file that pyarrow writes."""
    sink = pa.BufferOutputStream()
    arguments: Any = {"store_schema": False, **options}
    pq.write_table(table, sink, **arguments)
    return sink.getvalue().to_pybytes()


def footer_of(file: bytes) -> bytes:
    """Return the footer of a file."""
    size = read_footer_size(file[-TAIL_BYTES:], len(file))
    return file[-TAIL_BYTES - size : -TAIL_BYTES]


def with_footer(file: bytes, footer: bytes) -> bytes:
    """Return a file with another footer."""
    body = file[: -TAIL_BYTES - len(footer_of(file))]
    return body + footer + len(footer).to_bytes(4, "little") + MAGIC


def edit_schema(file: bytes, edits: Mapping[str, Edit]) -> bytes:
    """Return a file whose schema elements are edited, by their path. None removes an element."""
    footer = Footer.parse(footer_of(file))
    paths = _paths(footer.root)
    missing = edits.keys() - paths.values()
    assert not missing, (missing, list(paths.values()))
    elements: list[Struct] = []
    for index, element in enumerate(footer.elements):
        edit = edits.get(paths[index])
        edited = element if edit is None else edit(dict(element))
        if edited is not None:
            elements.append(edited)
    return with_footer(file, footer.with_elements(elements))


def field(number: int, kind: Type, content: Any) -> Edit:
    """Return an edit that sets a field of a SchemaElement."""
    return lambda element: element | {number: Value(kind, content)}


def _paths(node: Any) -> dict[int, str]:
    found = {node.index: node.path}
    for child in node.children:
        found.update(_paths(child))
    return found
