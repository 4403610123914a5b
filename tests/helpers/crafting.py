"""Handmade FlatBuffers of Arrow IPC messages, which need not be valid."""

from __future__ import annotations

from collections.abc import Sequence

import flatbuffers

INT, UTF8, TIMESTAMP, STRUCT, LIST = 2, 5, 10, 13, 12
"""Values of the union Type of Schema.fbs."""
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH, TENSOR, SPARSE_TENSOR = 1, 2, 3, 4, 5
"""Values of the union MessageHeader of Message.fbs."""
LITTLE, BIG = 0, 1
LZ4, ZSTD = 0, 1
V4, V5 = 3, 4


class Crafter:
    """Builds one message. Its methods return positions in the buffer, which may be shared."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)

    def text(self, value: str) -> int:
        return self.builder.CreateString(value)

    def vector(self, places: Sequence[int]) -> int:
        self.builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            self.builder.PrependUOffsetTRelative(place)
        return self.builder.EndVector()

    def structs(self, pairs: Sequence[tuple[int, int]]) -> int:
        """Return a vector of pairs of int64: field nodes, or buffers."""
        self.builder.StartVector(16, len(pairs), 8)
        for first, second in reversed(pairs):
            self.builder.PrependInt64(second)
            self.builder.PrependInt64(first)
        return self.builder.EndVector()

    def pair(self, key: int, value: int) -> int:
        self.builder.StartObject(2)
        self.builder.PrependUOffsetTRelativeSlot(0, key, 0)
        self.builder.PrependUOffsetTRelativeSlot(1, value, 0)
        return self.builder.EndObject()

    def empty_table(self) -> int:
        self.builder.StartObject(0)
        return self.builder.EndObject()

    def int_type(self, bits: int = 32) -> int:
        self.builder.StartObject(2)
        self.builder.PrependInt32Slot(0, bits, 0)
        self.builder.PrependBoolSlot(1, True, False)
        return self.builder.EndObject()

    def timestamp_type(self, zone: int) -> int:
        self.builder.StartObject(2)
        self.builder.PrependUOffsetTRelativeSlot(1, zone, 0)
        return self.builder.EndObject()

    def encoding(self, dictionary_id: int) -> int:
        index = self.int_type(8)
        self.builder.StartObject(4)
        self.builder.PrependInt64Slot(0, dictionary_id, 0)
        self.builder.PrependUOffsetTRelativeSlot(1, index, 0)
        return self.builder.EndObject()

    def field(
        self,
        name: int,
        kind: int,
        data_type: int,
        children: Sequence[int] = (),
        *,
        dictionary: int = 0,
        custom_metadata: int = 0,
        child_vector: int = 0,
    ) -> int:
        child_vector = child_vector or self.vector(children)
        self.builder.StartObject(7)
        self.builder.PrependUOffsetTRelativeSlot(0, name, 0)
        self.builder.PrependBoolSlot(1, True, False)
        self.builder.PrependUint8Slot(2, kind, 0)
        self.builder.PrependUOffsetTRelativeSlot(3, data_type, 0)
        self.builder.PrependUOffsetTRelativeSlot(4, dictionary, 0)
        self.builder.PrependUOffsetTRelativeSlot(5, child_vector, 0)
        self.builder.PrependUOffsetTRelativeSlot(6, custom_metadata, 0)
        return self.builder.EndObject()

    def schema(
        self, fields: Sequence[int], *, custom_metadata: int = 0, endianness: int = LITTLE
    ) -> int:
        vector = self.vector(fields)
        self.builder.StartObject(4)
        self.builder.PrependInt16Slot(0, endianness, 0)
        self.builder.PrependUOffsetTRelativeSlot(1, vector, 0)
        self.builder.PrependUOffsetTRelativeSlot(2, custom_metadata, 0)
        return self.builder.EndObject()

    def batch(
        self,
        rows: int,
        nodes: Sequence[tuple[int, int]],
        buffers: Sequence[tuple[int, int]],
        codec: int | None = None,
        method: int = 0,
    ) -> int:
        compression = 0
        if codec is not None:
            self.builder.StartObject(2)
            self.builder.PrependInt8Slot(0, codec, 0)
            self.builder.PrependInt8Slot(1, method, 0)
            compression = self.builder.EndObject()
        node_vector = self.structs(nodes)
        buffer_vector = self.structs(buffers)
        self.builder.StartObject(5)
        self.builder.PrependInt64Slot(0, rows, 0)
        self.builder.PrependUOffsetTRelativeSlot(1, node_vector, 0)
        self.builder.PrependUOffsetTRelativeSlot(2, buffer_vector, 0)
        self.builder.PrependUOffsetTRelativeSlot(3, compression, 0)
        return self.builder.EndObject()

    def dictionary(self, dictionary_id: int, batch: int, *, is_delta: bool = False) -> int:
        self.builder.StartObject(3)
        self.builder.PrependInt64Slot(0, dictionary_id, 0)
        self.builder.PrependUOffsetTRelativeSlot(1, batch, 0)
        self.builder.PrependBoolSlot(2, is_delta, False)
        return self.builder.EndObject()

    def message(
        self,
        header_type: int,
        header: int,
        body_length: int = 0,
        *,
        version: int = V5,
        custom_metadata: int = 0,
    ) -> bytes:
        self.builder.StartObject(5)
        self.builder.PrependInt16Slot(0, version, 0)
        self.builder.PrependUint8Slot(1, header_type, 0)
        self.builder.PrependUOffsetTRelativeSlot(2, header, 0)
        self.builder.PrependInt64Slot(3, body_length, 0)
        self.builder.PrependUOffsetTRelativeSlot(4, custom_metadata, 0)
        self.builder.Finish(self.builder.EndObject())
        metadata = bytes(self.builder.Output())
        return metadata + bytes(-len(metadata) % 8)


def schema_of_ints(names: Sequence[str], *, bits: int = 32, endianness: int = LITTLE) -> bytes:
    """Return the schema message of plain integer columns."""
    crafter = Crafter()
    data_type = crafter.int_type(bits)
    fields = [crafter.field(crafter.text(name), INT, data_type) for name in names]
    return crafter.message(SCHEMA, crafter.schema(fields, endianness=endianness))


def plain_batch(rows: int, buffers: Sequence[tuple[int, int]], body_length: int) -> bytes:
    """Return a record batch message of one column without nulls."""
    crafter = Crafter()
    batch = crafter.batch(rows, [(rows, 0)], buffers)
    return crafter.message(RECORD_BATCH, batch, body_length)


def empty_message(header_type: int, body_length: int = 0) -> bytes:
    """Return a message whose header is an empty table."""
    crafter = Crafter()
    return crafter.message(header_type, crafter.empty_table(), body_length)
