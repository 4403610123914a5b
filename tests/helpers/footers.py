"""Handmade footers of Arrow IPC files, which need not be valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers

from splitarrow.fbs import arrow_generated as fbs

BlockTuple = tuple[int, int, int]


def footer(
    record_batches: Sequence[BlockTuple] = (),
    dictionaries: Sequence[BlockTuple] = (),
    *,
    version: int = 4,
    endianness: int = 0,
    columns: Sequence[str] | None = (),
) -> bytes:
    """Return the FlatBuffer of a footer. Its columns are int32. `None` omits the schema."""
    builder = flatbuffers.Builder(256)
    batches = _blocks(builder, fbs.FooterStartRecordBatchesVector, record_batches)
    dictionary_blocks = _blocks(builder, fbs.FooterStartDictionariesVector, dictionaries)
    schema = None if columns is None else _schema(builder, columns, endianness)
    fbs.FooterStart(builder)
    fbs.FooterAddVersion(builder, version)
    if schema is not None:
        fbs.FooterAddSchema(builder, schema)
    fbs.FooterAddDictionaries(builder, dictionary_blocks)
    fbs.FooterAddRecordBatches(builder, batches)
    builder.Finish(fbs.FooterEnd(builder))
    return bytes(builder.Output())


def _blocks(builder: Any, start: Any, blocks: Sequence[BlockTuple]) -> int:
    start(builder, len(blocks))
    for offset, metadata, body in reversed(blocks):
        fbs.CreateBlock(builder, offset, metadata, body)
    return builder.EndVector()


def _schema(builder: Any, columns: Sequence[str], endianness: int) -> int:
    fields = [_field(builder, name) for name in columns]
    fbs.SchemaStartFieldsVector(builder, len(fields))
    for field in reversed(fields):
        builder.PrependUOffsetTRelative(field)
    vector = builder.EndVector()
    fbs.SchemaStart(builder)
    fbs.SchemaAddEndianness(builder, endianness)
    fbs.SchemaAddFields(builder, vector)
    return fbs.SchemaEnd(builder)


def _field(builder: Any, name: str) -> int:
    text = builder.CreateString(name)
    fbs.IntStart(builder)
    fbs.IntAddBitWidth(builder, 32)
    fbs.IntAddIsSigned(builder, True)
    number = fbs.IntEnd(builder)
    fbs.FieldStartChildrenVector(builder, 0)
    children = builder.EndVector()
    fbs.FieldStart(builder)
    fbs.FieldAddName(builder, text)
    fbs.FieldAddNullable(builder, True)
    fbs.FieldAddTypeType(builder, fbs.Type.Int)
    fbs.FieldAddType(builder, number)
    fbs.FieldAddChildren(builder, children)
    return fbs.FieldEnd(builder)
