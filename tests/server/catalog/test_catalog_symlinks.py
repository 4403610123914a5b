"""Symbolic links in served folders: none leads out of the folder unless the operator allows it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import splitarrow
from helpers.catalog import read_dataset
from helpers.daemons import StartDaemon
from helpers.files import write_file, write_parquet
from helpers.publication import publish
from splitarrow.errors import DatasetError, RemoteError
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.transport.memory.files import open_beneath

TABLE = pa.table({"n": pa.array(range(10), pa.int64())})


def move_out(path: Path) -> None:
    """Move a file or folder out of the served folder, and leave a link to it."""
    outside = path.parents[len(path.parts) - path.parts.index("served") - 1] / "outside"
    outside.mkdir(exist_ok=True)
    path.rename(outside / path.name)
    path.symlink_to(outside / path.name)


def write_files(folder: Path) -> None:
    write_parquet(folder / "a.parquet", TABLE)
    (folder / "sub").mkdir()
    write_parquet(folder / "sub" / "b.parquet", TABLE)


def write_vortex(folder: Path) -> None:
    import vortex

    for name in "ab":
        vortex.io.write(vortex.array(TABLE), str(folder / f"{name}.vortex"))


def write_version(folder: Path) -> None:
    publish(VersionStore(folder), "job", TABLE, TABLE)


def write_table(folder: Path) -> None:
    write_deltalake(folder, TABLE)
    write_deltalake(folder, TABLE, mode="append")


LAYOUTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "file": (write_files, "", "a.parquet"),
    "subfolder": (write_files, "", "sub"),
    "vortex": (write_vortex, "", "b.vortex"),
    "pattern": (write_files, "/*.parquet", "a.parquet"),
    "pattern below a link": (write_files, "/*/*.parquet", "sub"),
    "matching folder": (write_files, "/s*", "sub"),
    "shard": (write_version, "", "data/job/*.arrow"),
    "data of a version": (write_version, "", "data"),
    "manifest": (write_version, "", "_splitarrow/versions/*.json"),
    "manifests": (write_version, "", "_splitarrow/versions"),
    "data file of a table": (write_table, "", "*.parquet"),
    "entry of a log": (write_table, "", "_delta_log/*1.json"),
    "log": (write_table, "", "_delta_log"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_link_out_of_a_folder_is_followed_only_if_allowed(tmp_path: Path, layout: str) -> None:
    write, pattern, moved = LAYOUTS[layout]
    folder = tmp_path / "served"
    folder.mkdir()
    write(folder)
    source = f"{folder}{pattern}"
    rows = read_dataset(open_dataset(source)).rows
    move_out(next(folder.glob(moved)))
    with pytest.raises(DatasetError, match=r"leads out of the folder .*--follow-symlinks"):
        read_dataset(open_dataset(source))
    assert read_dataset(open_dataset(source, follow_symlinks=True)).rows == rows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_link_that_appears_later_is_not_followed(tmp_path: Path, layout: str) -> None:
    write, pattern, moved = LAYOUTS[layout]
    folder = tmp_path / "served"
    folder.mkdir()
    write(folder)
    dataset = open_dataset(f"{folder}{pattern}")
    move_out(next(folder.glob(moved)))
    if "manifest" in layout:
        assert read_dataset(dataset).rows == 20  # in the version that is known
    else:
        with pytest.raises(DatasetError, match="leads out of the folder"):
            read_dataset(dataset)


def test_links_within_a_folder_and_to_it_are_followed(tmp_path: Path) -> None:
    """As in a volume of Kubernetes, which replaces the link ``..data``."""
    folder = tmp_path / "volume"
    (folder / "..2026").mkdir(parents=True)
    write_file(folder / "..2026" / "a.arrow", TABLE)
    (folder / "..data").symlink_to("..2026")
    (folder / "a.arrow").symlink_to("..data/a.arrow")
    (folder / "b.arrow").symlink_to(folder / "..2026" / "a.arrow")
    (tmp_path / "link").symlink_to(folder)
    for source in (folder, tmp_path / "link", tmp_path / "link" / "*.arrow"):
        assert read_dataset(open_dataset(str(source))).rows == 20
    write_file(tmp_path / "other.arrow", TABLE)
    (tmp_path / "single").symlink_to("other.arrow")
    assert read_dataset(open_dataset(tmp_path / "single")).rows == 10


def test_the_opened_file_is_checked_and_not_its_name(tmp_path: Path) -> None:
    """A link that is exchanged all the time never leads out of the folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "in").write_text("in")
    (tmp_path / "out").write_text("out")
    name = folder / "name"
    name.symlink_to("in")
    ended = threading.Event()

    def exchange() -> None:
        while not ended.is_set():
            for target in ("../out", "in"):
                (folder / "new").symlink_to(target)
                (folder / "new").rename(name)

    thread = threading.Thread(target=exchange)
    thread.start()
    found = {"in": 0, "refused": 0}
    try:
        while min(found.values()) < 100:
            try:
                with open(open_beneath(name, folder)) as file:
                    found[file.read()] += 1
            except DatasetError:
                found["refused"] += 1
    finally:
        ended.set()
        thread.join()


def test_a_link_out_of_a_folder_opens_no_pipe(tmp_path: Path) -> None:
    """Opening it for reading would wait for a writer."""
    folder = tmp_path / "served"
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")
    (folder / "a.arrow").symlink_to("../pipe")
    with pytest.raises(DatasetError, match="leads out of the folder"):
        os.close(open_beneath(folder / "a.arrow", folder))


def test_a_server_names_the_setting_that_allows_the_link(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    write_files(folder)
    move_out(folder / "a.parquet")
    with pytest.raises(DatasetError, match="--follow-symlinks"):
        splitarrow.serve({"trips": folder})
    with (
        splitarrow.serve({"trips": folder}, follow_symlinks=True) as server,
        splitarrow.open(server.uri("trips")) as stream,
    ):
        assert stream.read_all().num_rows == 20


@pytest.mark.slow
def test_a_daemon_logs_why_a_dataset_cannot_be_read_any_more(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    write_files(folder)
    server = daemon({"trips": folder})
    move_out(folder / "a.parquet")
    with pytest.raises(RemoteError) as raised, splitarrow.open(server.uri("trips")) as stream:
        stream.read_all()
    assert str(tmp_path) not in str(raised.value)
    log = server.log()
    assert f"{folder / 'a.parquet'} leads out of the folder {folder}" in log
    assert "--follow-symlinks" in log
