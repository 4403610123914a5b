"""The tables of docs/formats.md: each cell is tried."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import vortex_messages
from helpers.arrow_data import make_arrays_of_all_types
from helpers.files import write_file, write_stream
from helpers.package import ROOT
from helpers.round_trips import read_ours
from helpers.vortex_messages import make_file
from splitarrow.cli.app import run
from splitarrow.cli.arrow_output import ArrowOutput, make_assembler, open_arrow_file
from splitarrow.cli.local_input import LocalInput, open_local, open_selection, read_schema_metadata
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import SplitArrowError
from splitarrow.formats.arrow.conversion import MessageConverter
from splitarrow.formats.arrow.form import Form
from splitarrow.formats.arrow.tensors import (
    AnyTensor,
    Tensor,
    convert_to_tensor,
    encode_tensor,
    write_message,
)

HOOK = runpy.run_path(str(ROOT / "tests" / "docs" / "formats_table.py"))
fill_page, find_row, make_table = HOOK["fill_page"], HOOK["find_row"], HOOK["make_table"]
PAGE = (ROOT / "docs" / "formats.md").read_text()
ARRAYS = make_arrays_of_all_types()


def read_table(heading: str) -> list[dict[str, str]]:
    """Return the rows of the table under a heading, by the names of their columns."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


FORMATS = [
    {**row, "format": name} for row in read_table("Formats") for name in row["formats"].split("; ")
]


def write(path: Path, array: pa.Array, form: Form) -> None:
    """Convert one column to a file of Arrow IPC."""
    source = path.with_name("source.arrow")
    write_file(source, [pa.record_batch([array], names=["c"])])
    with open_local(str(source)) as dataset, open_selection(dataset, "t") as stream:
        write_arrow(path, stream, form)


def write_arrow(path: Path, stream: LocalInput, form: Form) -> None:
    schema = read_schema_metadata(stream)
    converter = MessageConverter(schema, form)
    output = ArrowOutput(
        open_arrow_file(path), make_assembler(path.suffix, legacy=False), converter, schema
    )
    for message in stream.messages():
        output.write(message)
    output.close()


def try_arrow(folder: Path, array: pa.Array, form: Form) -> str:
    """Write messages of a form, and return whether our reader gets the same values."""
    path = folder / "out.arrow"
    write(path, array, form)
    expected = read_ours(folder / "source.arrow")
    try:
        return "yes" if read_ours(path).equals(expected) else "wrong"
    except SplitArrowError:
        back = folder / "back.arrow"
        with open_local(str(path)) as dataset, open_selection(dataset, "t") as stream:
            write_arrow(back, stream, Form("little", "v5"))
        return "written" if read_ours(back).equals(expected) else "wrong"


# The forms of Arrow IPC hold all types. These are written and converted back, but not read.
WRITTEN = {
    "big-endian": {"string_view", "binary_view", "run_end_encoded"},
    "V4": {"run_end_encoded"},
}
FORMS = {
    "unchanged": Form(),
    "big-endian": Form("big"),
    "V4": Form(version="v4"),
    "compressed": Form(compression="zstd"),
}


@pytest.mark.slow
def test_the_table_of_types_is_that_of_a_run() -> None:
    assert fill_page(PAGE, make_table()) == PAGE, "run make formats"


@pytest.mark.slow
@pytest.mark.parametrize("name", ARRAYS)
def test_all_forms_of_arrow_hold_a_type(tmp_path: Path, name: str) -> None:
    for form, written in FORMS.items():
        is_read = find_row(name) not in WRITTEN.get(form, ())
        assert try_arrow(tmp_path, ARRAYS[name], written) == ("yes" if is_read else "written"), form


TABLE = pa.table({"n": pa.array([1, None, 3], pa.int64()), "s": ["a", "b", None]})


def write_delta(path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(path), TABLE)


def write_orc(path: Path) -> None:
    from pyarrow import orc

    orc.write_table(TABLE, str(path))


def write_vortex_file(path: Path) -> None:
    path.write_bytes(make_file(TABLE))


def write_vortex_stream(path: Path) -> None:
    path.write_bytes(vortex_messages.write_stream(*vortex_messages.encode_arrow(TABLE)))


def write_feather_1(path: Path) -> None:
    from pyarrow import feather

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        feather.write_feather(TABLE, str(path), version=1)


def write_form(path: Path, form: Form) -> None:
    source = write_file(path.with_name("source.arrow"), TABLE)
    with open_local(str(source)) as dataset, open_selection(dataset, "t") as stream:
        write_arrow(path, stream, form)


def write_sink(path: Path) -> None:
    sink: Any = open_sink(path.suffix, path, TABLE.schema)
    for batch in TABLE.to_batches():
        sink.write(batch)
    sink.close()


SOURCES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "Arrow IPC file": ("t.arrow", lambda path: write_file(path, TABLE)),
    "Arrow IPC stream": ("t.arrows", lambda path: write_stream(path, TABLE)),
    "Arrow IPC, big-endian": ("t.arrow", lambda path: write_form(path, Form("big"))),
    "Arrow IPC, V4": ("t.arrow", lambda path: write_form(path, Form(version="v4"))),
    "Arrow IPC, framing before 0.15": (
        "t.arrows",
        lambda path: write_stream(path, TABLE, use_legacy_format=True),
    ),
    "Arrow IPC, lz4 or zstd": ("t.arrow", lambda path: write_file(path, TABLE, compression="zstd")),
    "Feather version 1": ("t.feather", write_feather_1),
    "Parquet": ("t.parquet", lambda path: pq.write_table(TABLE, path)),
    "ORC": ("t.orc", write_orc),
    "Vortex file": ("t.vortex", write_vortex_file),
    "Vortex stream": ("t.vortexs", write_vortex_stream),
    "CSV": ("t.csv", write_sink),
    "JSON Lines": ("t.jsonl", write_sink),
    "Delta table": ("delta", write_delta),
}


@pytest.mark.filterwarnings("ignore:Feather V1 files:DeprecationWarning")
@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row["format"])
def test_a_row_of_formats_is_true(tmp_path: Path, row: dict[str, str]) -> None:
    name, make = SOURCES[row["format"]]
    path = tmp_path / name
    make(path)
    with open_local(str(path)) as dataset, open_selection(dataset, "t") as stream:
        batches = list(stream)
    table = pa.Table.from_batches(batches)
    assert table["n"].to_pylist() == [1, None, 3]
    with open_local(str(path)) as dataset:
        from splitarrow.protocol.request import Request
        from splitarrow.server.catalog.dataset import Encoding

        source = dataset.open(Request("t"), Encoding())
        assert row["sent"] == ("decoded" if source.blocking else "unchanged")
        source.close()


def test_every_format_has_a_row() -> None:
    assert {row["format"] for row in FORMATS} == SOURCES.keys()


MATRIX = np.array([[0.0, 2.5, 0.0], [0.0, 0.0, -1.0]])
TENSORS: dict[str, Any] = {
    "dense": MATRIX,
    "COO": pa.SparseCOOTensor.from_dense_numpy(MATRIX),
    "CSR": pa.SparseCSRMatrix.from_dense_numpy(MATRIX),
    "CSC": pa.SparseCSCMatrix.from_dense_numpy(MATRIX),
    "CSF": pa.SparseCSFTensor.from_dense_numpy(MATRIX),
}
SUFFIXES = (".tensor", ".npy", ".arrow", ".parquet", ".csv")


def read_tensors(path: Path) -> list[AnyTensor]:
    with open_local(str(path)) as dataset, open_selection(dataset, "t") as stream:
        return list(stream.tensors())


def list_arrays(tensor: AnyTensor) -> list[Any]:
    """Return the shape and all numbers of a tensor."""
    if isinstance(tensor, Tensor):
        return [tensor.shape, tensor.to_numpy().tolist()]
    arrays = [array.tolist() for array in tensor.index_arrays]
    return [tensor.kind, tensor.shape, tensor.values.tolist(), arrays]


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_converted_as_stated(tmp_path: Path, name: str) -> None:
    source = tmp_path / "source.tensor"
    converted = convert_to_tensor(TENSORS[name])
    assert converted is not None
    parts = write_message(encode_tensor(converted))
    source.write_bytes(b"".join(bytes(part) for part in parts))
    (tensor,) = read_tensors(source)
    taken = {".tensor", ".npy"} if name == "dense" else {".tensor"}
    for suffix in SUFFIXES:
        path = tmp_path / f"out{suffix}"
        status = run(["convert", str(source), str(path), "--quiet"])
        assert (status == 0) == path.exists() == (suffix in taken), suffix
        if status == 0:
            assert list(map(list_arrays, read_tensors(path))) == [list_arrays(tensor)]
        else:
            assert status == 2


def test_the_page_names_every_tensor() -> None:
    section = PAGE.partition("## Tensors\n")[2].partition("\n## ")[0]
    assert [name for name in TENSORS if name not in section] == []
