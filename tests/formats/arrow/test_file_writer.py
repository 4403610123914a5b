"""Arrow files whose buffers all begin at multiples of 64 bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from splitarrow.errors import InvalidDataError, UsageError
from splitarrow.formats.arrow.file_writer import ALIGNMENT, AlignedFileWriter


def write(batches: list[pa.RecordBatch], compression: str | None = None) -> bytes:
    file = AlignedFileWriter(batches[0].schema, compression)
    data = b"".join(file.begin())
    for batch in batches:
        data += b"".join(file.add(batch))
        assert file.position == len(data)
    data += b"".join(file.end())
    assert file.position == len(data)
    return data


def addresses(array: Any) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None and buffer.size]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("name", sorted(make_arrays_of_all_types()))
def test_every_type_is_read_back(name: str, compression: str | None) -> None:
    array = make_arrays_of_all_types()[name]
    batches = [pa.record_batch([array], names=["x"]), pa.record_batch([array[1:]], names=["x"])]
    with pa.ipc.open_file(write(batches, compression)) as reader:
        assert reader.num_record_batches == 2
        assert [reader.get_batch(index) for index in range(2)] == batches


def test_every_buffer_is_aligned() -> None:
    batch = pa.record_batch({"a": [1, None, 3], "b": ["x", "yy", None], "c": [[1], [], None]})
    data = pa.py_buffer(write([batch] * 3))
    with pa.ipc.open_file(data) as reader:
        for index in range(3):
            for column in reader.get_batch(index).columns:
                assert all((at - data.address) % ALIGNMENT == 0 for at in addresses(column))
        assert reader.get_batch(2) == batch


def test_a_file_is_a_stream_between_its_magic_and_its_footer() -> None:
    batch = pa.record_batch({"a": [1]})
    with pa.ipc.open_stream(write([batch])[8:]) as reader:
        assert list(reader) == [batch]


def encoded(values: list[str]) -> pa.RecordBatch:
    return pa.record_batch({"d": pa.array(values).dictionary_encode()})


def test_a_dictionary_may_grow_but_not_be_replaced() -> None:
    grown = [encoded(["a"]), encoded(["a", "b"])]
    with pa.ipc.open_file(write(grown)) as reader:
        assert reader.read_all().to_pydict() == {"d": ["a", "a", "b"]}
        assert reader.stats.num_dictionary_batches >= 1
    with pytest.raises(InvalidDataError, match="replaces a dictionary"):
        write([encoded(["a"]), encoded(["b"])])


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(UsageError):
        AlignedFileWriter(pa.schema([("a", pa.int8())]), "gzip")
