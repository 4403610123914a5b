"""Record batches that are encoded as Vortex arrays decode to what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from helpers.arrow_data import draw_batches, make_arrays_of_all_types, make_batches
from splitarrow.errors import InvalidDataError, MissingExtraError
from splitarrow.formats.vortex import encoder as encoding
from splitarrow.formats.vortex.encoder import ArrayEncoder
from splitarrow.formats.vortex.message import Message, MessageKind, encode_message
from splitarrow.formats.vortex.storage import StorageConverter

ARRAYS = make_arrays_of_all_types()


def decode(encoder: ArrayEncoder, message: Message) -> Any:
    """Decode with the library's own functions."""
    import vortex.serde

    parts = [list(encode_message(each)) for each in (message, encoder.dtype_message)]
    array: Any = vortex.serde.decode_ipc_array_buffers(*parts)
    found = array.to_arrow_array(arrow_type=pa.struct(list(encoder.storage_schema)))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def check(schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
    encoder, converter = ArrayEncoder(schema), StorageConverter(schema)
    assert encoder.dtype_message.header.kind is MessageKind.DTYPE
    for batch in batches:
        message = encoder.encode(batch)
        assert message.header.kind is MessageKind.ARRAY
        assert message.header.row_count == batch.num_rows
        restored = converter.restore(decode(encoder, message), batch.slice(0, 0))
        restored.validate(full=True)
        assert restored.schema.equals(schema, check_metadata=True)
        assert restored.equals(batch)


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_decodes(name: str) -> None:
    batches = make_batches(ARRAYS[name])
    check(batches[0].schema, batches)


@given(draw_batches())
@settings(max_examples=30)
def test_drawn_batches_decode(drawn: tuple[pa.Schema, list[pa.RecordBatch]]) -> None:
    check(*drawn)


@pytest.mark.long
@given(draw_batches())
@settings(max_examples=5000)
def test_5000_drawn_batches_decode(drawn: tuple[pa.Schema, list[pa.RecordBatch]]) -> None:
    check(*drawn)


def test_floats_keep_their_bits() -> None:
    special = np.array([0x7FF8000000000001, 1 << 63, 0, 0xFFF8000000000000], np.uint64)
    rounded = np.round(np.random.default_rng(0).normal(size=2000) * 100, 2)
    values = np.concatenate([rounded, special.view(np.float64), rounded])
    batch = pa.record_batch({"f": pa.array(values, from_pandas=False)})
    encoder = ArrayEncoder(batch.schema)
    message = encoder.encode(batch)
    assert message.header.body_size < values.nbytes
    decoded = decode(encoder, message).field(0).to_numpy()
    assert (decoded.view(np.uint64) == values.view(np.uint64)).all()


def test_what_vortex_cannot_hold_is_refused_by_name() -> None:
    raw = pa.py_buffer((1 << 100).to_bytes(16, "little"))
    digits = pa.Array.from_buffers(pa.decimal128(5, 2), 1, [None, raw])
    batch = pa.record_batch([digits], names=["price"])
    with pytest.raises(InvalidDataError, match=r"cannot be encoded.*precision of decimal\(5,2\)"):
        ArrayEncoder(batch.schema).encode(batch)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vortex", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[vortex\]'"):
        encoding.ArrayEncoder(pa.schema([]))
