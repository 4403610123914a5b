"""The Variants of parquet-testing, against their expected values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from splitarrow import variant
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.variant.python_decoder import decode, decode_metadata
from splitarrow.formats.parquet.variant.python_encoder import encode

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


DUCKDB_ACCEPTS = {40, 42, 43}
"""Contradictions that duckdb 2.0 reads as if one of the values were not there."""
DUCKDB_REFUSES = {41}
"""Valid files that duckdb 2.0 refuses: elements without a field ``value``."""
DUCKDB_TEXTS = {14, 15, 58, 59} | {30} | {20, 21, 22, 23, 33, 34, 35, 36, 64, 65, 66, 67}
"""Other JSON texts of duckdb: the digits of a float as a double, binary in hexadecimal, and
timestamps with a space, which SQL prefers to the T of ISO 8601."""


def test_duckdb_reads_the_same_json_from_shredded_files(parquet_test_data: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    folder = parquet_test_data / "shredded_variant"
    differences: set[int] = set()
    with duckdb.connect() as connection:
        for case in json.loads((folder / "cases.json").read_text()):
            path = folder / case.get("parquet_file", "none")
            if not path.is_file():
                continue
            found = [_read_own(path)]
            query = f"SELECT var::JSON::VARCHAR FROM '{path}'"
            try:
                found.append([row[0] for row in connection.sql(query).fetchall()])
            except duckdb.Error:
                found.append(None)
            own, other = ([text and json.loads(text) for text in each or ["0"]] for each in found)
            if own != other or (found[0] is None) != (found[1] is None):
                differences.add(case["case_number"])
    assert differences <= DUCKDB_ACCEPTS | DUCKDB_REFUSES | DUCKDB_TEXTS


def _read_own(path: Path) -> list[str | None] | None:
    try:
        return variant.to_json(variant.unshred(pq.read_table(path).column("var"))).to_pylist()
    except InvalidDataError:
        return None
