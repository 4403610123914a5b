"""The Variants of parquet-testing, against their expected values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.variant_encoding import encode
from splitarrow import variant
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.variant.python_values import decode, decode_metadata

REFUSED = {43}
"""Files that contradict the specification, which a reader may refuse."""
DIFFERENT_TEXTS = {
    "primitive_decimal16": '"12345678912345678.90"',
    "primitive_time": '"12:33:54.123456"',
    "primitive_timestamp": '"2025-04-16T16:34:56.780000+00:00"',
    "primitive_timestampntz": '"2025-04-16T12:34:56.780000"',
}
"""Values of which the expected JSON is not what the types state: digits and ISO 8601."""


def _column(pairs: list[tuple[bytes, bytes]]) -> Any:
    metadata, values = zip(*pairs, strict=True)
    return pa.StructArray.from_arrays(
        [pa.array(metadata, pa.binary()), pa.array(values, pa.binary())], ["metadata", "value"]
    )


def _load_json(folder: Path) -> dict[str, Any]:
    text = (folder / "data_dictionary.json").read_text().rstrip()
    return json.loads(text.replace(",\n}", "\n}"))


def test_values_decode_to_their_expected_json(parquet_test_data: Path) -> None:
    folder = parquet_test_data / "variant"
    expected = _load_json(folder)
    names = sorted(path.stem for path in folder.glob("*.value") if path.stem in expected)
    assert len(names) >= 28
    column = _column(
        [
            ((folder / f"{name}.metadata").read_bytes(), (folder / f"{name}.value").read_bytes())
            for name in names
        ]
    )
    assert variant.is_valid(column).to_pylist() == [True] * len(names)
    texts = dict(zip(names, variant.to_json(column).to_pylist(), strict=True))
    for name, text in DIFFERENT_TEXTS.items():
        assert texts.pop(name) == text.strip('"' if name == "primitive_decimal16" else ""), name
    for name, text in texts.items():
        if name == "primitive_float":
            assert json.loads(text) == pytest.approx(expected[name], rel=1e-7)
        else:
            assert json.loads(text) == expected[name], name


def test_values_survive_python(parquet_test_data: Path) -> None:
    for path in sorted((parquet_test_data / "variant").glob("*.value")):
        value = decode(path.with_suffix(".metadata").read_bytes(), path.read_bytes())
        assert decode(*encode(value)) == value, path.stem


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Return the metadata and the value that follow one another in a file."""
    for end in range(3, len(data)):
        try:
            decode_metadata(data[:end])
            decode(data[:end], data[end:])
        except InvalidDataError:
            continue
        return data[:end], data[end:]
    raise AssertionError("the file has no Variant")


def test_shredded_files_are_reconstructed_byte_for_byte(parquet_test_data: Path) -> None:
    folder = parquet_test_data / "shredded_variant"
    cases = [
        case
        for case in json.loads((folder / "cases.json").read_text())
        if (folder / case.get("parquet_file", "none")).is_file()
    ]
    assert len(cases) >= 69
    for case in cases:
        column = pq.read_table(folder / case["parquet_file"]).column("var")
        if "error_message" in case or case["case_number"] in REFUSED:
            with pytest.raises(InvalidDataError):
                variant.unshred(column)
            continue
        found = variant.unshred(column).to_pylist()
        files = case.get("variant_files") or [case["variant_file"]]
        for row, name in zip(found, files, strict=True):
            if name is None:
                assert row is None
            else:
                assert (row["metadata"], row["value"]) == _split((folder / name).read_bytes())
