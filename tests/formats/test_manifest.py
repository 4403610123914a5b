"""Manifests: what is written is read back, and nothing malformed gets through."""

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
from splitarrow.formats.manifest import ColumnRange, Manifest, ShardEntry

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.dictionary(pa.int8(), pa.string()))])
CREATED = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def shard(number: int = 0, **changes: Any) -> ShardEntry:
    columns = {"n": ColumnRange(-5, 2**53, 1), "text": ColumnRange("a", "ß", 0)}
    entry = ShardEntry(f"data/job/{number}.arrow", 10, 1000 + number, f"{number:064x}", columns)
    return replace(entry, **changes)


def manifest(**changes: Any) -> Manifest:
    shards = (shard(0), shard(1))
    return replace(Manifest(3, CREATED, "job-1", SCHEMA, shards, {"by": "test"}), **changes)


def test_what_the_json_says() -> None:
    document = json.loads(manifest().to_json())
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


def test_what_may_be_left_out_has_defaults() -> None:
    document = json.loads(manifest().to_json())
    for name in ("snapshot", "shards_total", "properties"):
        del document[name]
    for entry in document["shards"]:
        del entry["ordinal"], entry["columns"]
    found = Manifest.from_json(json.dumps(document).encode(), "it")
    assert (found.snapshot, found.shards_total, found.properties) == ("job-1", 2, {})
    assert [entry.ordinal for entry in found.shards] == [0, 1]


def test_shards_stand_in_the_order_of_their_ordinals() -> None:
    found = manifest(shards=(shard(0, ordinal=7), shard(1, ordinal=2)), shards_total=8)
    assert [entry.ordinal for entry in found.shards] == [2, 7]
    assert Manifest.from_json(found.to_json(), "it") == found


def test_it_pickles() -> None:
    assert pickle.loads(pickle.dumps(manifest())) == manifest()


def set_at(document: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = value


GONE = object()
BIG = 1 << 63


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("format",), "parquet", "format is 'parquet'"),
        (("format",), GONE, "format is missing"),
        (("format_version",), 2, "format_version is 2; this release reads 1"),
        (("version",), 0, "version is 0"),
        (("version",), -1, "version is -1"),
        (("version",), True, "version is True"),
        (("version",), 1.0, "version is 1.0"),
        (("version",), "1", "version is '1'"),
        (("version",), GONE, "version is missing"),
        (("created",), "today", "created is 'today'"),
        (("created",), "2026-01-02T03:04:05", "not in UTC"),
        (("created",), "2026-01-02T03:04:05+01:00", "not in UTC"),
        (("job",), "", "job is empty"),
        (("job",), 5, "job is 5"),
        (("job",), "\ud800", "job is not Unicode"),
        (("snapshot",), [], "snapshot is list"),
        (("schema",), GONE, "schema: it is missing"),
        (("schema",), "not base64!", "schema: it is not base64"),
        (("schema",), "", "schema: "),
        (("schema",), "AAAAAAAA", "schema: "),
        (("schema",), base64.b64encode(SCHEMA.serialize().to_pybytes() + b"12345678").decode(),
         "schema: it is not one encapsulated message"),
        (("rows",), 21, "rows is 21, but the shards have 20"),
        (("rows",), GONE, "rows is missing"),
        (("bytes",), 1, "bytes is 1, but the shards have 2001"),
        (("shards_total",), 1, "shards_total is 1"),
        (("shards",), {}, "shards is dict, not a list"),
        (("shards",), GONE, "shards is missing"),
        (("shards", 1), "x", "shards[1]: it is 'x', not an object"),
        (("shards", 1, "path"), "data/job/0.arrow", "two shards have the path"),
        (("shards", 1, "ordinal"), 0, "two shards have the ordinal 0"),
        (("shards", 1, "ordinal"), 5, "shards_total is 2, but there are shards up to 5"),
        (("shards", 1, "ordinal"), -1, "shards[1]: ordinal is -1"),
        (("shards", 1, "rows"), -1, "shards[1]: rows is -1"),
        (("shards", 1, "bytes"), BIG, "shards[1]: bytes is 9223372036854775808"),
        (("shards", 1, "bytes"), None, "shards[1]: bytes is missing"),
        (("shards", 1, "sha256"), "00", "shards[1]: sha256 is '00'"),
        (("shards", 1, "sha256"), "G" * 64, "shards[1]: sha256"),
        (("shards", 1, "columns"), [], "shards[1]: columns is list"),
        (("shards", 1, "columns", "n"), 1, "shards[1]: columns['n']: it is 1"),
        (("shards", 1, "columns", "n", "nulls"), GONE, "columns['n']: nulls is missing"),
        (("shards", 1, "columns", "n", "min"), True, "minimum is True"),
        (("shards", 1, "columns", "n", "min"), [1], "minimum is list"),
        (("shards", 1, "columns", "n", "max"), "x" * 65, "maximum has 65 characters"),
        (("properties",), {"a": 1}, "properties['a'] is 1"),
        (("properties",), [], "properties is list"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_named(place: tuple[Any, ...], value: Any, said: str) -> None:
    document = json.loads(manifest().to_json())
    if value is GONE:
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        del inner[place[-1]]
    else:
        set_at(document, place, value)
    with pytest.raises(DatasetError) as caught:
        Manifest.from_json(json.dumps(document).encode(), "versions/3.json")
    assert str(caught.value).startswith("versions/3.json is no manifest: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "data/../../x", "data//x", "./x", "data/", "a\\b", "a\0b", "a\nb",
     "_splitarrow/versions/00000001.json", "..", "."],
)  # fmt: skip
def test_paths_stay_in_the_dataset(path: str) -> None:
    with pytest.raises(InvalidDataError, match="path"):
        shard(path=path)
    document = json.loads(manifest().to_json())
    document["shards"][0]["path"] = path
    with pytest.raises(DatasetError, match=r"it is no manifest: shards\[0\]: path "):
        Manifest.from_json(json.dumps(document).encode(), "it")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"format": NaN}'],
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"^it is no manifest: "):
        Manifest.from_json(data, "it")


def test_what_is_built_is_checked() -> None:
    with pytest.raises(InvalidDataError, match="created is not in UTC"):
        manifest(created=CREATED.astimezone(timezone(timedelta(hours=1))))
    with pytest.raises(InvalidDataError, match="version is 0"):
        manifest(version=0)
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
def test_reading_gives_what_was_written(written: Manifest) -> None:
    data = written.to_json()
    found = Manifest.from_json(data, "it")
    assert found == written
    assert found.schema.metadata == written.schema.metadata
    assert found.to_json() == data


@given(manifests(), st.data())
def test_garbage_is_refused_or_valid(written: Manifest, data: st.DataObject) -> None:
    raw = bytearray(written.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DatasetError):
        Manifest.from_json(bytes(raw), "it").to_json()
