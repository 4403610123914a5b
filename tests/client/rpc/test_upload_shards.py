"""Shards for a publication, and the requests and responses of publications."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.rpc import upload
from splitarrow.client.rpc.info import PublishResult, parse_result
from splitarrow.client.rpc.upload import (
    encode_publication,
    open_shard,
    upload_shard,
)
from splitarrow.errors import DatasetError, ProtocolError, UsageError

TABLE = pa.table({"n": pa.array([1, 2, 3]), "s": pa.array(["a", "b", "a"]).dictionary_encode()})
STORED = {"dataset": "d", "job": "j", "ordinal": 4, "rows": 3, "bytes": 9, "sha256": "ab"}
PUBLISHED = {"dataset": "d", "version": 2, "snapshot": "s", "shards": 3, "rows": 4, "bytes": 5}


def write(path: Path, table: pa.Table, compression: Any = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=options) as writer,
    ):
        writer.write_table(table)
    return path


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_keeps_its_compression(tmp_path: Path, compression: str | None, kind: Any) -> None:
    path = write(tmp_path / "x.arrow", TABLE, compression)
    with open_shard(kind(path)) as shard:
        assert (shard.schema, shard.codec) == (TABLE.schema, compression)
        assert pa.Table.from_batches(list(shard.batches), shard.schema) == TABLE


def test_a_file_without_batches_has_no_compression(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", TABLE.slice(0, 0).select([]), "zstd")
    with open_shard(path) as shard:
        assert (list(shard.batches), shard.codec) == ([], None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.arrow").write_bytes(b"ARROW1")
    for name in ("bad.arrow", "missing.arrow"):
        with pytest.raises(DatasetError, match=f"cannot read the shard .*{name}"):
            open_shard(tmp_path / name).__enter__()


def test_a_file_behind_another_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", TABLE, None)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DatasetError, match=r"x\.arrow: another Arrow IPC file begins at byte"):
        open_shard(path).__enter__()


def test_arrow_data_has_no_compression() -> None:
    with open_shard(TABLE) as shard:
        assert (shard.schema, shard.codec) == (TABLE.schema, None)
    with open_shard([], TABLE.schema) as shard:
        assert (shard.schema, list(shard.batches)) == (TABLE.schema, [])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each upload; its response is `STORED`."""
    uploads: list[Any] = []

    def upload_batches(channel: Any, descriptor: Any, *arguments: Any) -> Any:
        uploads.append((json.loads(descriptor.cmd), *arguments))
        return json.dumps(STORED).encode()

    monkeypatch.setattr(upload, "upload_batches", upload_batches)
    return uploads


@pytest.mark.parametrize(
    ("requested", "used"), [(None, "lz4"), ("none", None), ("zstd", "zstd"), ("lz4", "lz4")]
)
def test_a_shard_has_the_requested_compression_or_that_of_its_file(
    tmp_path: Path, sent: list[Any], requested: str | None, used: str | None
) -> None:
    channel: Any = None
    with open_shard(write(tmp_path / "x.arrow", TABLE, "lz4")) as shard:
        result = upload_shard(channel, "d", shard, "j", 0, requested)
    ((command, name, schema, _, _, codec),) = sent
    assert command == {"dataset": "d", "publish": {"job": "j", "ordinal": 0}}
    assert (name, schema, codec) == ("d", TABLE.schema, used)
    assert (result.name, result.job, result.ordinal) == ("d", "j", 4)
    assert (result.rows, result.bytes, result.sha256) == (3, 9, "ab")


def test_a_shard_needs_a_job_and_an_ordinal(sent: list[Any]) -> None:
    channel: Any = None
    with open_shard(TABLE) as shard:
        with pytest.raises(UsageError, match="job is empty"):
            upload_shard(channel, "d", shard, " ", 0)
        with pytest.raises(UsageError, match="ordinal is -1; expected 0 or more"):
            upload_shard(channel, "d", shard, "j", -1)
    assert sent == []


@pytest.mark.parametrize("field", STORED)
def test_a_malformed_response_to_a_shard_is_an_error(
    sent: list[Any], monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    channel: Any = None
    monkeypatch.delitem(STORED, field)
    with open_shard(TABLE) as shard, pytest.raises(ProtocolError, match="malformed upload result"):
        upload_shard(channel, "d", shard, "j", 0)


def publication(**arguments: Any) -> Any:
    defaults: dict[str, Any] = {
        "job": "j",
        "ordinals": [2, 0, 2],
        "shards_total": 3,
        "snapshot": None,
        "mode": "overwrite",
        "schema": None,
        "properties": None,
    }
    return json.loads(encode_publication("d", **{**defaults, **arguments}))


def test_a_publication_lists_its_shards_once_and_in_order() -> None:
    body = {"dataset": "d", "job": "j", "ordinals": [0, 2], "shards_total": 3, "snapshot": "j"}
    assert publication() == {**body, "mode": "overwrite"}
    more = publication(mode="append", snapshot="s", schema=TABLE.schema, properties={"k": "ü"})
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(more.pop("schema"))))
    assert schema == TABLE.schema
    assert more == {**body, "snapshot": "s", "mode": "append", "properties": {"k": "ü"}}


def test_the_number_of_shards_is_that_of_the_ordinals_by_default() -> None:
    assert publication(ordinals=range(3), shards_total=None)["shards_total"] == 3
    assert publication(ordinals=[], shards_total=None)["shards_total"] == 0
    assert publication(ordinals=[2])["ordinals"] == [2]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"job": ""}, "job is empty"),
        ({"mode": "replace"}, "mode is 'replace'; expected append or overwrite"),
        ({"ordinals": [3]}, "ordinals range from 3 to 3; expected 0 to 2 for 3 shards"),
        ({"ordinals": [-1, 1]}, "an ordinal in ordinals is -1; expected 0 or more"),
        ({"shards_total": None}, "ordinals range from 0 to 2; expected 0 to 1 for 2 shards"),
    ],
)
def test_an_invalid_publication_is_a_usage_error(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        publication(**arguments)


def test_the_response_to_a_publication_is_its_result() -> None:
    result = parse_result(PublishResult, json.dumps(PUBLISHED).encode(), "d")
    assert (result.name, result.version, result.snapshot) == ("d", 2, "s")
    assert (result.shards, result.rows, result.bytes) == (3, 4, 5)
    for field in PUBLISHED:
        other = {name: value for name, value in PUBLISHED.items() if name != field}
        with pytest.raises(ProtocolError, match="malformed publication result"):
            parse_result(PublishResult, json.dumps(other).encode(), "d")
    with pytest.raises(ProtocolError, match="malformed publication result"):
        parse_result(PublishResult, b"{", "d")
