"""Tables with a log are found by the names of their files, in a folder and above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitarrow.errors import DatasetError
from splitarrow.publication.table_formats import check_folders, find_tables

LOGS = {
    "_delta_log/00000000000000000000.json": "a Delta table",
    "metadata/00000-1f.metadata.json": "an Apache Iceberg table",
    "metadata/00001-2e.gz.metadata.json": "an Apache Iceberg table",
    ".hoodie/hoodie.properties": "an Apache Hudi table",
    "_splitarrow/versions/00000001.json": "a published dataset",
}
OTHERS = [
    "metadata/a.parquet",
    "my_delta_log/0.json",
    "x.hoodie/a",
    "a/metadata.json",
    "_delta_log",
]


@pytest.mark.parametrize("log", LOGS)
def test_a_log_makes_its_folder_a_table(log: str) -> None:
    for root in ("", "trips", "lake/trips"):
        assert list(find_tables(["x/a.parquet", f"{root}/{log}".lstrip("/")])) == [root]


def test_other_names_make_no_table() -> None:
    assert find_tables(OTHERS) == {}


@pytest.mark.parametrize("log", LOGS)
def test_a_local_folder_is_refused_at_any_depth(tmp_path: Path, log: str) -> None:
    table = tmp_path / "lake" / "trips"
    (table / "data" / "day=1").mkdir(parents=True)
    (tmp_path / "lake" / "plain").mkdir()
    (tmp_path / "link").symlink_to(table / "data")
    parts = [table, table / "data", table / "data" / "day=1", tmp_path / "link"]
    check_folders(map(str, parts))
    (table / log).parent.mkdir(parents=True)
    (table / log).touch()
    for part in parts:
        with pytest.raises(DatasetError) as caught:
            check_folders([str(part)])
        assert str(caught.value).startswith(f"{table} is {LOGS[log]}, and its files also have rows")
    check_folders(map(str, (tmp_path, tmp_path / "lake", tmp_path / "lake" / "plain")))


def test_other_files_refuse_no_folder(tmp_path: Path) -> None:
    for name in OTHERS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    check_folders([str(tmp_path)])
