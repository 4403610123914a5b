"""Manifests: decoding inverts encoding, and every malformed document is refused."""

from __future__ import annotations

import base64
import json
import pickle
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import DatasetError, InvalidDataError
from splitarrow.publication.manifest import (
    ColumnRange,
    Manifest,
    ShardEntry,
    decode_manifest,
    encode_manifest,
)

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.dictionary(pa.int8(), pa.string()))])
CREATED = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def make_shard(number: int = 0, **changes: Any) -> ShardEntry:
    columns = {"n": ColumnRange(-5, 2**53, 1), "text": ColumnRange("a", "ß", 0)}
    entry = ShardEntry(f"data/job/{number}.arrow", 10, 1000 + number, f"{number:064x}", columns)
    return replace(entry, **changes)


def make_manifest(**changes: Any) -> Manifest:
    shards = (make_shard(0), make_shard(1))
    return replace(Manifest(3, CREATED, "job-1", SCHEMA, shards, {"by": "test"}), **changes)


def test_the_json_document_has_every_field() -> None:
    document = json.loads(encode_manifest(make_manifest()))
    assert document["format"] == "splitarrow-manifest"
    assert document["format_version"] == 1
    assert document["version"] == 3
    assert datetime.fromisoformat(document["created"]) == CREATED
    assert document["job"] == document["snapshot"] == "job-1"
    assert (document["rows"], document["bytes"], document["shards_total"]) == (20, 2001, 2)
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"])))
    assert schema == SCHEMA
    assert document["properties"] == {"by": "test"}
    assert document["shards"][1] == {
        "path": "data/job/1.arrow",
        "ordinal": 1,
        "rows": 10,
        "bytes": 1001,
        "sha256": f"{1:064x}",
        "columns": {
            "n": {"min": -5, "max": str(2**53), "nulls": 1},
            "text": {"min": "a", "max": "ß", "nulls": 0},
        },
    }


def test_optional_fields_have_defaults() -> None:
    document = json.loads(encode_manifest(make_manifest()))
    for name in ("snapshot", "shards_total", "properties"):
        del document[name]
    for entry in document["shards"]:
        del entry["ordinal"], entry["columns"]
    decoded = decode_manifest(json.dumps(document).encode(), "it")
    assert (decoded.snapshot, decoded.shards_total, decoded.properties) == ("job-1", 2, {})
    assert [entry.ordinal for entry in decoded.shards] == [0, 1]


def test_shards_are_sorted_by_ordinal() -> None:
    manifest = make_manifest(
        shards=(make_shard(0, ordinal=7), make_shard(1, ordinal=2)), shards_total=8
    )
    assert [entry.ordinal for entry in manifest.shards] == [2, 7]
    assert decode_manifest(encode_manifest(manifest), "it") == manifest


def test_a_manifest_pickles() -> None:
    assert pickle.loads(pickle.dumps(make_manifest())) == make_manifest()


def set_at(document: Any, keys: tuple[Any, ...], value: Any) -> None:
    for key in keys[:-1]:
        document = document[key]
    document[keys[-1]] = value


REMOVED = object()
BIG = 1 << 63


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("format",), "parquet", "format is 'parquet'"),
        (("format",), REMOVED, "format is missing"),
        (("format_version",), 2, "format_version is 2; this release reads 1"),
        (("version",), 0, "version is 0"),
        (("version",), -1, "version is -1"),
        (("version",), True, "version is True"),
        (("version",), 1.0, "version is 1.0"),
        (("version",), "1", "version is '1'"),
        (("version",), REMOVED, "version is missing"),
        (("created",), "today", "created is 'today'"),
        (("created",), "2026-01-02T03:04:05", "not in UTC"),
        (("created",), "2026-01-02T03:04:05+01:00", "not in UTC"),
        (("job",), "", "job is empty"),
        (("job",), 5, "job is 5"),
        (("job",), "\ud800", "job is not valid Unicode"),
        (("snapshot",), [], "snapshot is list"),
        (("schema",), REMOVED, "schema is missing"),
        (("schema",), "not base64!", "schema is not valid base64"),
        (("schema",), "", "schema: "),
        (("schema",), "AAAAAAAA", "schema: "),
        (("schema",), base64.b64encode(SCHEMA.serialize().to_pybytes() + b"12345678").decode(),
         "schema: expected exactly one encapsulated Arrow message"),
        (("rows",), 21, "rows is 21, but the sum over the shards is 20"),
        (("rows",), REMOVED, "rows is missing"),
        (("bytes",), 1, "bytes is 1, but the sum over the shards is 2001"),
        (("shards_total",), 1, "shards_total is 1"),
        (("shards",), {}, "shards is dict; expected a list"),
        (("shards",), REMOVED, "shards is missing"),
        (("shards", 1), "x", "shards[1] is 'x'; expected an object"),
        (("shards", 1, "path"), "data/job/0.arrow", "two shards have the path"),
        (("shards", 1, "ordinal"), 0, "two shards have the ordinal 0"),
        (("shards", 1, "ordinal"), 5, "shards_total is 2, but the largest ordinal is 5"),
        (("shards", 1, "ordinal"), -1, "shards[1]: ordinal is -1"),
        (("shards", 1, "rows"), -1, "shards[1]: rows is -1"),
        (("shards", 1, "bytes"), BIG, "shards[1]: bytes is 9223372036854775808"),
        (("shards", 1, "bytes"), None, "shards[1]: bytes is missing"),
        (("shards", 1, "sha256"), "00", "shards[1]: sha256 is '00'"),
        (("shards", 1, "sha256"), "G" * 64, "shards[1]: sha256"),
        (("shards", 1, "columns"), [], "shards[1]: columns is list"),
        (("shards", 1, "columns", "n"), 1, "shards[1]: columns['n'] is 1; expected an object"),
        (("shards", 1, "columns", "n", "nulls"), REMOVED, "columns['n']: nulls is missing"),
        (("shards", 1, "columns", "n", "min"), True, "minimum is True"),
        (("shards", 1, "columns", "n", "min"), [1], "minimum is list"),
        (("shards", 1, "columns", "n", "max"), "x" * 65, "maximum has 65 characters"),
        (("properties",), {"a": 1}, "properties['a'] is 1"),
        (("properties",), [], "properties is list"),
    ],
)  # fmt: skip
def test_the_error_for_a_malformed_field_names_it(
    keys: tuple[Any, ...], value: Any, reason: str
) -> None:
    document = json.loads(encode_manifest(make_manifest()))
    if value is REMOVED:
        inner = document
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
    else:
        set_at(document, keys, value)
    with pytest.raises(DatasetError) as caught:
        decode_manifest(json.dumps(document).encode(), "versions/3.json")
    assert str(caught.value).startswith("versions/3.json is not a valid manifest: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "data/../../x", "data//x", "./x", "data/", "a\\b", "a\0b", "a\nb",
     "_splitarrow/versions/00000001.json", "..", "."],
)  # fmt: skip
def test_paths_outside_the_dataset_are_refused(path: str) -> None:
    with pytest.raises(InvalidDataError, match="path"):
        make_shard(path=path)
    document = json.loads(encode_manifest(make_manifest()))
    document["shards"][0]["path"] = path
    with pytest.raises(DatasetError, match=r"it is not a valid manifest: shards\[0\]: path "):
        decode_manifest(json.dumps(document).encode(), "it")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"format": NaN}'],
)
def test_documents_that_are_not_json_objects_are_refused(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"^it is not a valid manifest: "):
        decode_manifest(data, "it")


def test_the_constructors_validate() -> None:
    with pytest.raises(InvalidDataError, match="which is not in UTC"):
        make_manifest(created=CREATED.astimezone(timezone(timedelta(hours=1))))
    with pytest.raises(InvalidDataError, match="version is 0"):
        make_manifest(version=0)
    with pytest.raises(InvalidDataError, match="maximum is inf"):
        ColumnRange(1.0, float("inf"), 0)


TEXTS = st.text(max_size=20)
VALUES = st.one_of(
    st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
COUNTS = st.integers(0, 2**40)
COLUMNS = st.dictionaries(
    TEXTS, st.builds(ColumnRange, VALUES.filter(lambda v: len(str(v)) < 60), st.none(), COUNTS)
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    ordinals = draw(st.lists(st.integers(0, 100), unique=True, max_size=5))
    entries = [
        ShardEntry(
            f"data/{index}",
            draw(COUNTS),
            draw(COUNTS),
            draw(st.binary(min_size=32, max_size=32)).hex(),
            draw(COLUMNS),
            ordinal,
        )
        for index, ordinal in enumerate(ordinals)
    ]
    names = draw(st.lists(TEXTS, max_size=3))
    return Manifest(
        draw(st.integers(1, 2**40)),
        draw(st.datetimes(timezones=st.just(UTC))),
        draw(st.text(min_size=1)),
        pa.schema([(name, pa.int8()) for name in names], {"k": draw(TEXTS)}),
        tuple(entries),
        draw(st.dictionaries(TEXTS, TEXTS)),
        draw(TEXTS),
        draw(st.integers(101, 200)),
    )


@given(manifests())
def test_decoding_returns_the_encoded_manifest(written: Manifest) -> None:
    data = encode_manifest(written)
    decoded = decode_manifest(data, "it")
    assert decoded == written
    assert decoded.schema.metadata == written.schema.metadata
    assert encode_manifest(decoded) == data


@given(manifests(), st.data())
def test_mutated_documents_are_refused_or_valid(written: Manifest, data: st.DataObject) -> None:
    raw = bytearray(encode_manifest(written))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DatasetError):
        encode_manifest(decode_manifest(bytes(raw), "it"))
