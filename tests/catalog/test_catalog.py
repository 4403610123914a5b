"""The catalog, and telling what a source is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather

from splitarrow.errors import ConfigError, DatasetError, NotFoundError, UsageError
from splitarrow.server.catalog.catalog import Catalog, open_dataset
from splitarrow.server.catalog.names import nearest

from .reading import numbers, serve, table_of, write_file, write_parquet, write_stream

TABLE = pa.table({"delay": [60, 75]})


def test_datasets_by_name(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x", numbers())
    with Catalog({"flights": TABLE, "numbers": str(path)}) as catalog:
        assert catalog.names() == ["flights", "numbers"]
        assert (len(catalog), "flights" in catalog, "x" in catalog) == (2, True, False)
        assert serve(catalog.lookup("flights")).table == TABLE
        assert serve(catalog.lookup("numbers")).batches == numbers()
        catalog.add("more", [TABLE.to_batches()[0]])
        catalog.remove("flights")
        assert catalog.names() == ["numbers", "more"]
        with pytest.raises(NotFoundError):
            catalog.lookup("flights")
        with pytest.raises(NotFoundError):
            catalog.remove("flights")
    assert catalog.names() == []
    assert Catalog([("a", TABLE), ("b", TABLE)]).names() == ["a", "b"]


def test_an_unknown_name_tells_the_nearest() -> None:
    catalog = Catalog({"flights": TABLE, "flights-2024": TABLE, "trips": TABLE})
    with pytest.raises(
        NotFoundError, match=r"^no dataset 'flihgts'; the nearest are 'flights', 'flig"
    ):
        catalog.lookup("flihgts")
    with pytest.raises(NotFoundError, match=r"^no dataset 'TRIPS'; the nearest is 'trips'"):
        catalog.lookup("TRIPS")
    with pytest.raises(NotFoundError, match=r"^no dataset 'x'; there are 'flights', 'fl"):
        catalog.lookup("x")
    with pytest.raises(NotFoundError, match=r"^no dataset 'x'$"):
        Catalog().lookup("x")


@pytest.mark.parametrize(
    ("existing", "clause"),
    [
        ([], ""),
        (["a"], "; there is only 'a'"),
        (["a", "b", "c", "d"], "; there are 'a', 'b', 'c', 'd'"),
        (["a", "b", "c", "d", "e"], "; there are 'a', 'b', 'c' and 2 more"),
        (["zulu", "zulus"], "; the nearest are 'zulu', 'zulus'"),
    ],
)
def test_nearest_names(existing: list[str], clause: str) -> None:
    assert nearest("zulu!", existing) == clause


def test_a_name_is_a_key_and_not_a_path(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", numbers())
    catalog = Catalog({"x": path})
    for name in (str(path), "x.arrow", "../x.arrow", "./x", ""):
        with pytest.raises(NotFoundError):
            catalog.lookup(name)
    odd = Catalog({"../../etc/passwd": TABLE, "a b?&=": TABLE, "Zürich": TABLE})
    assert serve(odd.lookup("../../etc/passwd")).table == TABLE


@pytest.mark.parametrize("name", ["", "  ", "a\0b", 7, None])
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(ConfigError, match="is no name for a dataset"):
        Catalog([(name, TABLE)])


def test_a_name_is_given_once() -> None:
    with pytest.raises(ConfigError, match="name 'a' is given twice"):
        Catalog([("a", TABLE), ("a", TABLE)])
    catalog = Catalog({"a": TABLE})
    with pytest.raises(ConfigError, match="twice"):
        catalog.add("a", TABLE)
    with pytest.raises(UsageError):
        Catalog({"a": 7})


def test_a_path_is_told_by_what_it_holds(tmp_path: Path) -> None:
    table = table_of(numbers())
    kinds = {
        "arrow file": write_file(tmp_path / "a.parquet", numbers()),
        "arrow stream": write_stream(tmp_path / "b.arrow", numbers()),
        "parquet file": write_parquet(tmp_path / "c.feather", table),
    }
    for kind, path in kinds.items():
        for source in (path, str(path), os.fsdecode(path)):
            dataset = open_dataset(source)
            assert dataset.kind == kind
            assert serve(dataset).table == table
    old = write_stream(tmp_path / "old", numbers(), use_legacy_format=True)
    assert open_dataset(old).kind == "arrow stream"


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather_of_version_2_is_an_arrow_file(tmp_path: Path, compression: Any) -> None:
    path = str(tmp_path / "x.feather")
    feather.write_feather(table_of(numbers()), path, compression=compression)
    dataset = open_dataset(path)
    assert dataset.kind == "arrow file"
    served = serve(dataset)
    assert not served.blocking
    assert served.table == table_of(numbers())


@pytest.mark.filterwarnings("ignore:Feather V1:DeprecationWarning")
def test_feather_of_version_1(tmp_path: Path) -> None:
    table = table_of(numbers()).select(["n", "t"]).combine_chunks()
    path = tmp_path / "x.feather"
    feather.write_feather(table, str(path), version=1)
    dataset = open_dataset(path)
    assert (dataset.kind, dataset.rows) == ("feather v1 file", 300)
    assert dataset.nbytes == path.stat().st_size
    assert serve(dataset).table == table
    served = serve(dataset, columns=("t",), limit=10, compression="lz4")
    assert served.table == table.select(["t"]).slice(0, 10)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match="as a Feather file of version 1"):
        open_dataset(path)


@pytest.mark.parametrize(
    "content",
    [b"hello, world", b"\x1f\x8b\x08\x00", b"\0" * 100, b"\x08\0\0\0" + b"\xff" * 8, b"x"],
)
def test_a_file_of_no_known_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"x\.arrow begins with b'.*; an Arrow IPC file or"):
        open_dataset(path)


def test_paths_that_lead_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot read .*nowhere: No such file or directory$"):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    with pytest.raises(DatasetError, match="empty is empty; an Arrow IPC file"):
        open_dataset(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DatasetError, match=r"pipe is neither a file nor a directory$"):
        open_dataset(tmp_path / "pipe")
    with pytest.raises(DatasetError, match="cannot read"):
        open_dataset("a\0b")
    write_file(tmp_path / "x", numbers())
    with pytest.raises(DatasetError, match=r"Not a directory$"):
        open_dataset(tmp_path / "x" / "y")


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path / "x", numbers())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DatasetError, match=r"cannot read .*x: Permission denied$"):
        open_dataset(path)
