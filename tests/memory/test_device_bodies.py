"""Record batches from bodies in the memory of a device, which the processor cannot touch."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.trap_device import TrapMemory
from splitarrow.errors import InvalidDataError
from splitarrow.formats.arrow.encoder import MessageEncoder
from splitarrow.memory import DeviceBatch, device_bodies
from splitarrow.memory.device_bodies import BodyDecoder, can_decode_on_device
from splitarrow.memory.pool import PoolBlock

ARRAYS = make_arrays_of_all_types()
NULLS = pa.record_batch({"n": pa.array([1, None, 3, None] * 100, pa.int32())})


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> TrapMemory:
    monkeypatch.setattr(device_bodies, "PROTECTION", 0)
    return TrapMemory()


def encode(batch: pa.RecordBatch, memory: TrapMemory) -> tuple[bytes, int, int, PoolBlock]:
    """Return the message, the size of the body, and where it is on the device."""
    (message,) = MessageEncoder(batch.schema).encode(batch)
    body = b"".join(bytes(part) for part in message.body or ())
    placed = memory.open_allocator().device.allocate(max(len(body), 1))
    memory.device.write(placed.address, body)
    owner: Any = placed.owner
    return bytes(message.metadata), len(body), placed.address, owner


def decode(
    batch: pa.RecordBatch, memory: TrapMemory, change: Any = None, *, fully: bool = True
) -> DeviceBatch:
    metadata, nbytes, begin, block = encode(batch, memory)
    decoder = BodyDecoder(batch.schema, memory.device, validates=True, fully=fully)
    changed = change(metadata) if change else metadata
    assert decoder.accepts(changed)
    return decoder.decode(changed, nbytes, lambda at: begin + at, [block])


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_is_decoded_or_needs_the_host(memory: TrapMemory, name: str) -> None:
    batch = pa.record_batch({"c": ARRAYS[name]})
    if not can_decode_on_device(batch.schema, fully=False):
        assert not can_decode_on_device(batch.schema, fully=True)
        return
    decoded = decode(batch, memory)
    assert decoded.device == "trap:0"
    assert decoded.to_arrow().equals(batch)
    del decoded
    assert memory.used_bytes == 0


def test_what_needs_the_host_is_known() -> None:
    texts = pa.schema({"s": pa.string()})
    indices = pa.schema({"d": pa.dictionary(pa.int8(), pa.int64())})
    lists = pa.schema({"l": pa.list_(pa.int8())})
    assert not any(can_decode_on_device(each, fully=False) for each in (texts, indices, lists))
    for kind in (pa.decimal128(3), pa.time64("us"), pa.date64()):
        for schema in (pa.schema({"v": kind}), pa.schema({"v": pa.list_(kind, 2)})):
            assert can_decode_on_device(schema, fully=False)
            assert not can_decode_on_device(schema, fully=True)
    assert can_decode_on_device(pa.schema({"n": pa.int64(), "b": pa.bool_()}), fully=True)


@pytest.mark.parametrize("declared", [-2, 401])
def test_impossible_null_counts_are_refused(memory: TrapMemory, declared: int) -> None:
    def change(metadata: bytes) -> bytes:
        return metadata.replace(struct.pack("<qq", 400, 200), struct.pack("<qq", 400, declared))

    with pytest.raises(InvalidDataError, match=f"has 400 values and {declared} nulls"):
        decode(NULLS, memory, change, fully=False)


def test_unknown_null_counts_need_the_host(memory: TrapMemory) -> None:
    (message,) = MessageEncoder(NULLS.schema).encode(NULLS)
    numbers = struct.pack("<qq", 400, 200), struct.pack("<qq", 400, -1)
    decoder = BodyDecoder(NULLS.schema, memory.device, validates=True, fully=True)
    assert not decoder.accepts(bytes(message.metadata).replace(*numbers))


def test_nulls_are_counted_if_values_are_validated(memory: TrapMemory) -> None:
    def change(metadata: bytes) -> bytes:
        return metadata.replace(struct.pack("<qq", 400, 200), struct.pack("<qq", 400, 199))

    with pytest.raises(InvalidDataError, match="'n' declares 199 nulls, and its validity has 200"):
        decode(NULLS, memory, change)
    assert decode(NULLS, memory, change, fully=False)["n"].null_count == 199


def test_a_buffer_that_is_too_short_is_refused(memory: TrapMemory) -> None:
    def change(metadata: bytes) -> bytes:
        return metadata.replace(struct.pack("<q", 400), struct.pack("<q", 4000))

    with pytest.raises(InvalidDataError, match=r"has 50 bytes; expected at least 500"):
        decode(NULLS, memory, change, fully=False)


def test_other_messages_are_not_accepted(memory: TrapMemory) -> None:
    decoder = BodyDecoder(NULLS.schema, memory.device, validates=True, fully=True)
    (compressed,) = MessageEncoder(NULLS.schema, compression="zstd").encode(NULLS)
    assert not decoder.accepts(bytes(compressed.metadata))


def test_rows_of_a_batch_are_in_the_same_memory(memory: TrapMemory) -> None:
    batch = decode(NULLS, memory)
    used = memory.used_bytes
    part = batch.slice(8, 100)
    assert part.to_arrow() == NULLS.slice(8, 100)
    assert part["n"].null_count == 50
    assert batch.slice(0, 1000) is batch
    assert memory.used_bytes == used
    assert part.get_total_buffer_size() == 13 + 400
    with pytest.raises(ValueError, match="cannot begin at 3; expected a multiple of 8"):
        batch.slice(3)
