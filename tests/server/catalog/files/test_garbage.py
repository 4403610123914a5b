"""Files with mutated bytes are served or refused with one error, for every request."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.arrow_data import make_arrays_of_all_types
from helpers.catalog import DEFAULTS, requests
from splitarrow.errors import DatasetError, RemoteError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.files.file_types import open_file

ARRAYS = make_arrays_of_all_types()
CODECS = [None, "lz4", "zstd"]
REQUESTS = requests(
    {},
    {"columns": ("x",)},
    {"batch_rows": 2},
    {"limit": 3},
    {"compression": "none"},
    {"columns": ("x", "y"), "limit": 4, "batch_rows": 3, "compression": "lz4"},
)


def encode(new: Callable[..., Any], name: str, codec: str | None) -> bytes:
    batch = pa.record_batch({"x": ARRAYS[name], "y": list(range(len(ARRAYS[name])))})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)  # pyright: ignore[reportArgumentType]
    with new(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch.slice(1, 3))
    return sink.getvalue()


def encode_parquet() -> bytes:
    sink = io.BytesIO()
    columns = {name: ARRAYS[name] for name in ("string", "int64", "list", "struct")}
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


PARQUET = encode_parquet()


def mutate(data: bytes, draw: st.DataObject) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        changed[draw.draw(st.integers(4, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    return bytes(changed[: draw.draw(st.just(len(changed)) | st.integers(0, len(changed)))])


def read_or_refuse(path: Path, fields: dict[str, Any]) -> None:
    error_text = ""
    try:
        dataset = open_file(path)
        with closing(dataset.open(Request("name", **fields), DEFAULTS)) as source:
            for group in source:
                assert group
        _ = dataset.rows
    except DatasetError as error:
        error_text = str(error)
    except RemoteError:
        assert "columns" in fields  # the mutation changed the name of the column
    assert not error_text or str(path) in error_text
    assert "\n" not in error_text


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("garbage") / "x"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.data(),
    st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]),
    st.sampled_from(list(ARRAYS)),
    st.sampled_from(CODECS),
    st.sampled_from(REQUESTS),
)
def test_mutated_arrow_files_and_streams_are_served_or_refused(
    path: Path,
    draw: st.DataObject,
    new: Callable[..., Any],
    name: str,
    codec: str | None,
    fields: dict[str, Any],
) -> None:
    path.write_bytes(mutate(encode(new, name, codec), draw))
    read_or_refuse(path, fields)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data(), st.sampled_from([{}, {"limit": 3}, {"columns": ("string", "list")}]))
def test_mutated_parquet_files_are_served_or_refused(
    path: Path, draw: st.DataObject, fields: dict[str, Any]
) -> None:
    path.write_bytes(mutate(PARQUET, draw))
    read_or_refuse(path, fields)


@given(st.binary(min_size=1, max_size=200), st.sampled_from([b"", b"ARROW1", b"PAR1", b"\xff" * 4]))
def test_garbage_after_a_magic_is_refused_or_served(path: Path, data: bytes, magic: bytes) -> None:
    path.write_bytes(magic + data)
    read_or_refuse(path, {})
