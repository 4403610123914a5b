"""The catalog, and the types of sources that it opens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from helpers.catalog import number_batches, read_dataset, to_table
from helpers.files import write_file, write_parquet, write_stream
from splitarrow.errors import ConfigError, DatasetError, NotFoundError, UsageError
from splitarrow.server.catalog.catalog import Catalog, open_dataset
from splitarrow.server.catalog.suggestions import suggest_names

TABLE = pa.table({"delay": [60, 75]})


def test_datasets_are_added_looked_up_and_removed_by_name(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x", number_batches())
    with Catalog({"flights": TABLE, "numbers": str(path)}) as catalog:
        assert catalog.names() == ["flights", "numbers"]
        assert (len(catalog), "flights" in catalog, "x" in catalog) == (2, True, False)
        assert read_dataset(catalog.lookup("flights")).table == TABLE
        assert read_dataset(catalog.lookup("numbers")).batches == number_batches()
        catalog.add("more", [TABLE.to_batches()[0]])
        catalog.remove("flights")
        assert catalog.names() == ["numbers", "more"]
        with pytest.raises(NotFoundError):
            catalog.lookup("flights")
        with pytest.raises(NotFoundError):
            catalog.remove("flights")
    assert catalog.names() == []
    assert Catalog([("a", TABLE), ("b", TABLE)]).names() == ["a", "b"]


@pytest.mark.parametrize("kind", ["table", "batches", "tensor", "file"])
def test_a_reader_gets_all_data_of_a_dataset_that_is_replaced_before_it_opens(
    kind: str, tmp_path: Path
) -> None:
    """The reader may wait for a thread after it has looked the dataset up."""
    sent = number_batches()
    source = {
        "table": to_table(sent),
        "batches": sent,
        "tensor": pa.Tensor.from_numpy(np.arange(6)),
        "file": write_file(tmp_path / "x", sent),
    }[kind]
    with Catalog({"data": source}) as catalog:
        dataset = catalog.lookup("data")
        before = read_dataset(dataset)
        catalog.replace("data", TABLE)
        assert read_dataset(dataset).groups == before.groups


def test_the_error_for_an_unknown_name_suggests_similar_names() -> None:
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
def test_suggestions_depend_on_the_number_of_names(existing: list[str], clause: str) -> None:
    assert suggest_names("zulu!", existing) == clause


def test_a_name_is_a_key_and_not_a_path(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", number_batches())
    catalog = Catalog({"x": path})
    for name in (str(path), "x.arrow", "../x.arrow", "./x", ""):
        with pytest.raises(NotFoundError):
            catalog.lookup(name)
    odd = Catalog({"../../etc/passwd": TABLE, "a b?&=": TABLE, "Zürich": TABLE})
    assert read_dataset(odd.lookup("../../etc/passwd")).table == TABLE


@pytest.mark.parametrize("name", ["", "  ", "a\0b", 7, None])
def test_invalid_names_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="is not a valid dataset name"):
        Catalog([(name, TABLE)])


def test_names_are_unique() -> None:
    with pytest.raises(ConfigError, match="name 'a' is given twice"):
        Catalog([("a", TABLE), ("a", TABLE)])
    catalog = Catalog({"a": TABLE})
    with pytest.raises(ConfigError, match="twice"):
        catalog.add("a", TABLE)
    with pytest.raises(UsageError):
        Catalog({"a": 7})


def test_the_contents_decide_the_type_of_a_file(tmp_path: Path) -> None:
    table = to_table(number_batches())
    kinds = {
        "arrow file": write_file(tmp_path / "a.parquet", number_batches()),
        "arrow stream": write_stream(tmp_path / "b.arrow", number_batches()),
        "parquet file": write_parquet(tmp_path / "c.feather", table),
    }
    for kind, path in kinds.items():
        for source in (path, str(path), os.fsdecode(path)):
            dataset = open_dataset(source)
            assert dataset.kind == kind
            assert read_dataset(dataset).table == table
    old = write_stream(tmp_path / "old", number_batches(), use_legacy_format=True)
    assert open_dataset(old).kind == "arrow stream"


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather_of_version_2_is_an_arrow_file(tmp_path: Path, compression: Any) -> None:
    path = str(tmp_path / "x.feather")
    feather.write_feather(to_table(number_batches()), path, compression=compression)
    dataset = open_dataset(path)
    assert dataset.kind == "arrow file"
    result = read_dataset(dataset)
    assert not result.blocking
    assert result.table == to_table(number_batches())


@pytest.mark.filterwarnings("ignore:Feather V1:DeprecationWarning")
def test_feather_of_version_1_is_read_into_memory(tmp_path: Path) -> None:
    table = to_table(number_batches()).select(["n", "t"]).combine_chunks()
    path = tmp_path / "x.feather"
    feather.write_feather(table, str(path), version=1)
    dataset = open_dataset(path)
    assert (dataset.kind, dataset.rows) == ("feather v1 file", 300)
    assert dataset.nbytes == path.stat().st_size
    assert read_dataset(dataset).table == table
    result = read_dataset(dataset, columns=("t",), limit=10, compression="lz4")
    assert result.table == table.select(["t"]).slice(0, 10)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match="as a Feather file of version 1"):
        open_dataset(path)


@pytest.mark.parametrize(
    "content",
    [b"hello, world", b"\x1f\x8b\x08\x00", b"\0" * 100, b"\x08\0\0\0" + b"\xff" * 8, b"x"],
)
def test_a_file_of_an_unknown_type_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"x\.arrow begins with b'.*; expected an Arrow IPC"):
        open_dataset(path)


def test_the_error_for_a_bad_path_states_the_problem(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot read .*nowhere: No such file or directory$"):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    with pytest.raises(DatasetError, match="empty is empty; expected an Arrow IPC file"):
        open_dataset(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DatasetError, match=r"pipe is neither a file nor a directory$"):
        open_dataset(tmp_path / "pipe")
    with pytest.raises(DatasetError, match="cannot read"):
        open_dataset("a\0b")
    write_file(tmp_path / "x", number_batches())
    with pytest.raises(DatasetError, match=r"Not a directory$"):
        open_dataset(tmp_path / "x" / "y")


def test_the_error_for_an_unreadable_file_states_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path / "x", number_batches())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DatasetError, match=r"cannot read .*x: Permission denied$"):
        open_dataset(path)
