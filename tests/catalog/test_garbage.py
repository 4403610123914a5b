"""Files with changed bytes are served or refused: nothing else, whatever is asked for."""

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

from splitarrow.errors import DatasetError, RemoteError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.kinds import open_file

from ..property.arrow_data import arrays_of_all_types
from .reading import PLAIN, asking

ARRAYS = arrays_of_all_types()
CODECS = [None, "lz4", "zstd"]
ASKED = asking(
    {},
    {"columns": ("x",)},
    {"batch_rows": 2},
    {"limit": 3},
    {"compression": "none"},
    {"columns": ("x", "y"), "limit": 4, "batch_rows": 3, "compression": "lz4"},
)


def written(new: Callable[..., Any], name: str, codec: str | None) -> bytes:
    batch = pa.record_batch({"x": ARRAYS[name], "y": list(range(len(ARRAYS[name])))})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)  # pyright: ignore[reportArgumentType]
    with new(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch.slice(1, 3))
    return sink.getvalue()


def parquet() -> bytes:
    sink = io.BytesIO()
    columns = {name: ARRAYS[name] for name in ("string", "int64", "list", "struct")}
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


PARQUET = parquet()


def change(data: bytes, draw: st.DataObject) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        changed[draw.draw(st.integers(4, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    return bytes(changed[: draw.draw(st.just(len(changed)) | st.integers(0, len(changed)))])


def serve_or_refuse(path: Path, asked: dict[str, Any]) -> None:
    refused = ""
    try:
        dataset = open_file(path)
        with closing(dataset.open(Request("name", **asked), PLAIN)) as source:
            for group in source:
                assert group
        _ = dataset.rows
    except DatasetError as error:
        refused = str(error)
    except RemoteError:
        assert "columns" in asked  # the name of the column was changed
    assert not refused or str(path) in refused
    assert "\n" not in refused


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("garbage") / "x"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.data(),
    st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]),
    st.sampled_from(list(ARRAYS)),
    st.sampled_from(CODECS),
    st.sampled_from(ASKED),
)
def test_arrow_files_and_streams(
    path: Path,
    draw: st.DataObject,
    new: Callable[..., Any],
    name: str,
    codec: str | None,
    asked: dict[str, Any],
) -> None:
    path.write_bytes(change(written(new, name, codec), draw))
    serve_or_refuse(path, asked)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data(), st.sampled_from([{}, {"limit": 3}, {"columns": ("string", "list")}]))
def test_parquet_files(path: Path, draw: st.DataObject, asked: dict[str, Any]) -> None:
    path.write_bytes(change(PARQUET, draw))
    serve_or_refuse(path, asked)


@given(st.binary(min_size=1, max_size=200), st.sampled_from([b"", b"ARROW1", b"PAR1", b"\xff" * 4]))
def test_garbage(path: Path, data: bytes, magic: bytes) -> None:
    path.write_bytes(magic + data)
    serve_or_refuse(path, {})
