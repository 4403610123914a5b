"""CSV, JSON Lines and ORC files are served with all of their values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

import splitarrow
from helpers.round_trips import read_ours
from splitarrow.errors import DatasetError
from splitarrow.server.catalog.files import text_files

CSV = 'carrier,delay,day\nAA,70,2026-01-01\nBB,,2026-01-02\n"C, C",5.5,2026-01-03\n'
JSON = (
    '{"carrier": "AA", "delay": 70, "tags": ["x"]}\n'
    '{"carrier": "BB", "delay": null}\n'
    '{"delay": 5.5, "carrier": "C, C", "more": true}\n'
)


def served(path: Path) -> dict[str, pa.Table]:
    """Return the table and a selection of it, as a reader gets them."""
    with splitarrow.serve({"a": path}) as server:
        uri = server.uri("a")
        return {
            "all": splitarrow.open(uri).read_all(),
            "some": splitarrow.open(
                uri, columns=["delay", "carrier"], filter="delay > 60"
            ).read_all(),
        }


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text(CSV)
    found = served(path)
    assert found["all"].schema.types == [pa.string(), pa.float64(), pa.date32()]
    assert found["all"]["carrier"].to_pylist() == ["AA", "BB", "C, C"]
    assert found["some"].to_pydict() == {"delay": [70.0], "carrier": ["AA"]}


def test_types_follow_from_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 64)
    path = tmp_path / "numbers.csv"
    path.write_text("n\n" + "\n".join(str(n) for n in range(100)) + "\n0.5\n")
    server = splitarrow.serve({"a": path}, control="grpc://127.0.0.1:0")
    with server, splitarrow.connect(server.control_uri or "") as client:
        assert len(client["a"]) == 101
        assert client["a"].to_arrow()["n"].to_pylist() == [*map(float, range(100)), 0.5]
        assert len(client.count_rows("a")[0]) > 2
        assert client["a"].to_arrow(batches=(1, 2)).num_rows > 0


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "flights.jsonl"
    path.write_text(JSON)
    found = served(path)
    assert found["all"].schema.names == ["carrier", "delay", "tags", "more"]
    assert found["all"]["tags"].to_pylist() == [["x"], None, None]
    assert found["some"].to_pydict() == {"delay": [70.0], "carrier": ["AA"]}


def test_orc(tmp_path: Path) -> None:
    table = pa.table({"carrier": ["AA", "BB"], "delay": [70, 5], "l": [[1], None]})
    path = tmp_path / "flights"
    orc.write_table(table, path)
    found = served(path)
    assert found["all"] == table
    assert found["some"].to_pydict() == {"delay": [70], "carrier": ["AA"]}


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.csv", 'a,b\n"x\n",1\n3\n', "line 4 has 1 values, and the first line has 2 names"),
        ("a.csv", "\n\n", "it has no line with the names of the columns"),
        ("a.jsonl", '{"a": 1e999}\n{"a": 1, "a": 2}\n', "line 2: the key 'a' is repeated"),
        ("a.jsonl", '{"a": 18446744073709551615}\n{"a": "x"}\n', "'a' has values of different"),
        ("a.jsonl", f'{{"a": {"[" * 2000}{"]" * 2000}}}\n', "its values are nested too deeply"),
        ("a.jsonl", "{}\n", "its rows have no columns"),
    ],
)
def test_an_error_names_the_line_or_column(
    tmp_path: Path, name: str, text: str, error: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=error):
        read_ours(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "a,b\n1\n1,2,3\n"), ("a.jsonl", '{"a": 1\n'), ("a.txt", "a,b\n1,2\n")],
)
def test_a_malformed_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=name):
        splitarrow.serve({"a": tmp_path / name})
