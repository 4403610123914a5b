"""Descriptions of datasets over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file, write_parquet, write_shards
from helpers.http_downloads import download
from helpers.publication import numbers, publish
from splitarrow.publication.version_store import VersionStore

TABLE = numbers(5, 100)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[splitarrow.Server]:
    folder = tmp_path_factory.mktemp("described")
    write_parquet(folder / "rows.parquet", TABLE, row_group_size=30)
    write_shards(folder / "shards", [TABLE.slice(0, 40), TABLE.slice(40)])
    write_file(folder / "file.arrow", TABLE)
    store = VersionStore(str(folder / "published"))
    publish(store, "one", numbers(0), numbers(10))
    datasets = {
        "rows": str(folder / "rows.parquet"),
        "a/b": str(folder / "shards"),
        "data": str(folder / "file.arrow"),
        "published": str(folder / "published"),
    }
    with splitarrow.serve(datasets, http="http://127.0.0.1:0") as server:
        yield server


def describe(server: splitarrow.Server, path: str) -> Any:
    found = download(server.http_uri or "", f"/v1/{path}")
    assert found.status == 200, found.body
    return json.loads(found.body)


def test_a_description_has_the_schema_in_two_forms(server: splitarrow.Server) -> None:
    found = describe(server, "datasets/rows")
    assert (found["rows"], found["kind"], found["shards"]) == (100, "parquet file", 1)
    assert found["schema"][0] == {"name": "n", "type": "int64", "nullable": True}
    message = base64.b64decode(found["arrow_schema"])
    assert pa.ipc.read_schema(pa.py_buffer(message)).equals(TABLE.schema)
    assert found["data"] == "/v1/datasets/rows/data"


@pytest.mark.parametrize(("name", "end"), [("rows", 104), ("published", 19)])
def test_statistics_are_those_of_all_parts(server: splitarrow.Server, name: str, end: int) -> None:
    found = describe(server, f"datasets/{name}")["statistics"]
    assert found["n"] == {"min": 5 if name == "rows" else 0, "max": end, "nulls": 0}


def test_data_without_statistics_has_none(server: splitarrow.Server) -> None:
    assert describe(server, "datasets/a%2Fb")["statistics"] == {}


def test_shards_are_described(server: splitarrow.Server) -> None:
    for name in ("a/b", "a%2Fb"):
        found = describe(server, f"datasets/{name}/shards/1")
        assert (found["name"], found["shard"], found["rows"]) == ("a/b", 1, 60)
        read = download(server.http_uri or "", found["data"])
        assert pa.ipc.open_stream(read.body).read_all().equals(TABLE.slice(40))


def test_a_dataset_may_be_named_data(server: splitarrow.Server) -> None:
    assert describe(server, "datasets/data")["rows"] == 100
    assert download(server.http_uri or "", "/v1/datasets/data/data?limit=1").status == 200


def test_the_api_is_described(server: splitarrow.Server) -> None:
    found = describe(server, "openapi.json")
    assert found["openapi"].startswith("3.1")
    reads = found["paths"]["/v1/datasets/{name}/data"]
    assert "put" not in reads
    assert {each["name"] for each in reads["get"]["parameters"]} >= {"columns", "filter", "limit"}
    for path in found["paths"]:
        if path.startswith("/v1/datasets/{name}"):
            url = path.format(name="a%2Fb", shard=0)
            assert download(server.http_uri or "", url).status == 200
