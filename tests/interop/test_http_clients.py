"""Clients that know nothing of splitarrow read datasets over HTTP."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import splitarrow

pytestmark = pytest.mark.slow

TOKEN = "secret-of-a-reader-0123456789"
TABLE = pa.table({"n": range(50_000), "s": [f"text {number % 97}" for number in range(50_000)]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    parquet.write_table(TABLE, path / "p.parquet", row_group_size=5000)
    with pa.ipc.new_file(str(path / "a.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=5000)
    (path / "tokens.toml").write_text(
        f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\ndatasets = ["*"]\n'
    )
    return path


def serve(folder: Path, **settings: Any) -> splitarrow.Server:
    datasets = {"a": folder / "a.arrow", "p": folder / "p.parquet", "t": TABLE}
    return splitarrow.serve(datasets, http="http://127.0.0.1:0", **settings)


@pytest.fixture(scope="module")
def data(folder: Path) -> Iterator[Callable[[str], str]]:
    """Return the URL of a dataset's data."""
    with serve(folder) as server:
        yield lambda name: f"{server.http_uri}/v1/datasets/{name}/data"


def test_pyarrow_reads_a_stream(data: Callable[[str], str]) -> None:
    with urllib.request.urlopen(f"{data('t')}?columns=n&filter=n%20%3E%2049990") as response:
        assert pa.ipc.open_stream(response).read_all()["n"].to_pylist() == [*range(49_991, 50_000)]


@pytest.mark.parametrize("name", ["a", "p", "t"])
@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("parquet", pd.read_parquet),
        ("arrow-file", pd.read_feather),
        ("csv", pd.read_csv),
        ("ndjson", lambda url: pd.read_json(url, lines=True)),
    ],
)
def test_pandas_reads_every_format(
    data: Callable[[str], str], name: str, form: str, read: Callable[[str], pd.DataFrame]
) -> None:
    frame = read(f"{data(name)}?format={form}")
    assert pa.Table.from_pandas(frame, preserve_index=False).cast(TABLE.schema).equals(TABLE)


def test_polars_reads_files_and_scans_parts_of_them(data: Callable[[str], str]) -> None:
    expected = pl.DataFrame(TABLE)
    assert pl.read_ipc(f"{data('a')}?format=arrow-file").equals(expected)
    first = pl.col("n") < 10
    for scan in (
        pl.scan_ipc(f"{data('a')}?format=arrow-file"),
        pl.scan_parquet(f"{data('p')}?format=parquet"),
    ):
        assert scan.filter(first).collect().equals(expected.filter(first))


def test_curl_continues_a_file(data: Callable[[str], str], folder: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    whole = (folder / "a.arrow").read_bytes()
    path = tmp_path / "out.arrow"
    path.write_bytes(whole[:100_001])
    command = ["curl", "-sSf", "-C", "-", "-o", str(path), f"{data('a')}?format=arrow-file"]
    subprocess.run(command, check=True, timeout=60)
    assert path.read_bytes() == whole


def test_curl_sends_a_token(folder: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with serve(folder, token_file=folder / "tokens.toml") as server:
        url = f"{server.http_uri}/v1/datasets/t/data?limit=2&format=csv"
        command = ["curl", "-sS", "-H", f"Authorization: Bearer {TOKEN}", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[1:] == ['0,"text 0"', '1,"text 1"']
        done = subprocess.run([*command[:2], url], capture_output=True, text=True, timeout=60)
        assert "token" in done.stdout


def test_duckdb_reads_parts_of_parquet(data: Callable[[str], str], folder: Path) -> None:
    """The extension has to be that of the installed version of DuckDB."""
    duckdb = pytest.importorskip("duckdb")
    package = pytest.importorskip("duckdb_extension_httpfs")
    found = [*Path(package.__file__).parent.rglob(f"v{duckdb.__version__}/*.duckdb_extension")]
    if not found:
        pytest.skip(f"duckdb-extension-httpfs is not for DuckDB {duckdb.__version__}")
    connection = duckdb.connect()
    connection.execute(f"LOAD '{found[0]}'")
    query = "SELECT count(*), max(n) FROM read_parquet(?) WHERE n < 50"
    url = f"{data('p')}?format=parquet"
    assert connection.execute(query, [url]).fetchall() == [(50, 49)]
    with serve(folder, token_file=folder / "tokens.toml") as server:
        url = f"{server.http_uri}/v1/datasets/p/data?format=parquet"
        connection.execute(f"CREATE SECRET (TYPE http, BEARER_TOKEN '{TOKEN}')")
        assert connection.execute(query, [url]).fetchall() == [(50, 49)]
