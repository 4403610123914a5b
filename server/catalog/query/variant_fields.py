"""Fields of Variant columns that requests name as columns of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from ....formats.parquet.field_descriptions import VariantField, choose_fields, extend_schema
from ....protocol.request import Request
from ..dataset import Encoding
from .selection import Selection


def add_fields(
    schema: pa.Schema, request: Request
) -> tuple[pa.Schema, Mapping[str, VariantField], Request]:
    """Return a schema with the fields of Variants that a request may name, and these fields.

    They follow the columns of the schema, which describes them. The request returned names all
    columns to send. If it can name no field, nothing is added.
    """
    has_filter = request.filter is not None
    fields = choose_fields(schema, request.columns or (), has_filter=has_filter)
    if not fields:
        return schema, fields, request
    columns = tuple(schema.names) if request.columns is None else request.columns
    return extend_schema(schema, fields), fields, replace(request, columns=columns)


def resolve_schema(request: Request, encoding: Encoding, schema: pa.Schema) -> pa.Schema:
    """Return the schema of the stream for a request; errors are those of `Selection.resolve`."""
    schema, _, request = add_fields(schema, request)
    return Selection.resolve(request, encoding, schema).schema
