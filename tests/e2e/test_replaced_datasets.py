"""A dataset that is replaced, removed and made anew between any two steps of a reader."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import orc

import splitarrow
from helpers.catalog import read_source
from helpers.files import write_file, write_parquet, write_stream
from helpers.publication import publish
from helpers.vortex_messages import make_file
from splitarrow.client.rpc.info import DatasetInfo
from splitarrow.errors import SplitArrowError
from splitarrow.protocol.request import Request
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog.dataset import Encoding

ACCESSES = ("source", "tcp", "shm", "flight")
NAMES = ("part-10", "part-2", "part/x", "part-3/x")
"""The files of a folder, whose order is that of their names, folder by folder."""
_numbers = itertools.count()


def make_table(number: int) -> pa.Table:
    """Return the data of a version. Every third one has other types than the one before."""
    first, rows = 1000 * number, 8 + 4 * (number % 7)
    kind = pa.float64() if number % 3 == 2 else pa.int64()
    return pa.table({"n": pa.array(range(first, first + rows)).cast(kind), "t": ["x"] * rows})


def split(table: pa.Table) -> list[pa.Table]:
    rows = table.num_rows // len(NAMES)
    return [table.slice(part * rows, rows) for part in range(len(NAMES))]


@dataclass
class World:
    """A dataset that a server serves, and the versions that it has had."""

    path: Path
    server: splitarrow.Server
    client: splitarrow.Client
    tables: list[pa.Table] = field(default_factory=list[pa.Table])
    """The versions. The last one is current, unless the dataset was removed."""
    named: dict[str, pa.Table] = field(default_factory=dict[str, pa.Table])
    """The versions by the texts that name them."""
    is_removed: bool = False

    def check_info(self, info: DatasetInfo) -> None:
        """Check that a description is that of the current version, under a name of its own."""
        table = self.tables[-1]
        assert info.schema == table.schema
        assert info.rows in (None, table.num_rows)
        assert self.named.setdefault(info.version, table) == table


@dataclass(frozen=True)
class Kind:
    """One kind of dataset."""

    write: Callable[[World, pa.Table], object]
    """Replaces the data, or makes it anew."""
    suffix: str | None = ""
    """What follows the path of the data; None if the server gets no path."""
    remove: Callable[[World], object] = lambda world: remove(world.path)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replacing(write: Callable[[Path, pa.Table], object]) -> Kind:
    """Return the kind of a file, which is replaced by another one."""

    def replace(world: World, table: pa.Table) -> None:
        beside = world.path.with_name("beside")
        write(beside, table)
        os.replace(beside, world.path)

    return Kind(replace)


def in_parts(write: Callable[[Path, pa.Table], object], suffix: str, pattern: str = "") -> Kind:
    """Return the kind of a folder, whose files are replaced one by one."""

    def replace(world: World, table: pa.Table) -> None:
        names = sorted(NAMES, key=lambda name: name.split("/"))
        for name, part in zip(names, split(table), strict=True):
            write(world.path / f"{name}{suffix}", part)

    return Kind(replace, pattern)


def publish_next(world: World, table: pa.Table) -> None:
    publish(VersionStore(world.path), f"job-{next(_numbers)}", *split(table))


def publish_anew(world: World, table: pa.Table) -> None:
    """Remove the dataset, and publish it as version 1."""
    remove(world.path)
    publish(VersionStore(world.path), "job", *split(table))


def create_delta_table(world: World, table: pa.Table) -> None:
    """Remove the table, and create it as version 0."""
    remove(world.path)
    write_deltalake(world.path, table)


KINDS = {
    "arrow": replacing(lambda path, table: write_file(path, table, batch_rows=4)),
    "stream": replacing(lambda path, table: write_stream(path, table.to_batches(4))),
    "parquet": replacing(lambda path, table: write_parquet(path, table, row_group_size=4)),
    "orc": replacing(lambda path, table: orc.write_table(table, path)),
    "vortex": replacing(lambda path, table: path.write_bytes(make_file(table))),
    "folder": in_parts(write_file, ".arrow"),
    "glob": in_parts(write_file, ".arrow", "/**/*.arrow"),
    "parquet folder": in_parts(write_parquet, ".parquet"),
    "published": Kind(publish_next),
    "published anew": Kind(publish_anew),
    "delta": Kind(
        lambda world, table: write_deltalake(
            world.path, table, mode="overwrite", schema_mode="overwrite"
        )
    ),
    "delta anew": Kind(create_delta_table),
    "table": Kind(
        lambda world, table: world.server._daemon.catalog.replace("d", table),
        None,
        lambda world: world.server._daemon.catalog.remove("d"),
    ),
    "upload": Kind(
        lambda world, table: world.client.put("d", table, if_exists="replace"),
        None,
        lambda world: world.client.drop("d"),
    ),
}


def read(world: World, access: str, pause: Callable[[], None]) -> None:
    """Read the dataset, with a pause after each step: the result is one version."""
    first = len(world.tables) - 1
    if access == "source":
        source = world.server._daemon.catalog.lookup("d").open(Request("d"), Encoding())
        pause()
        found = read_source(source, pause).table
    else:
        with world.client.read("d", transport=access, parallel=1) as stream:
            pause()
            batches = [next(stream)]
            pause()
            found = pa.Table.from_batches([*batches, *stream], stream.schema)
    assert found in world.tables[first:]


def list_steps(world: World, access: str, pause: Callable[[], None]) -> list[Callable[[], None]]:
    """Return the steps of a reader. Reads over the first transport have all of them."""
    client, described = world.client, ""

    def describe() -> None:
        nonlocal described
        for info in (client.info("d"), *client.datasets()):
            described = info.version
            if world.is_removed:
                assert world.named[described] == world.tables[-1]
            else:
                world.check_info(info)

    def count() -> None:
        counts = client.count_rows("d", version=described)
        assert sum(map(sum, counts.values())) == world.named[described].num_rows

    def filter_rows() -> None:
        table = world.tables[-1]
        with client.read("d", filter=f"n > {table['n'][5]}", transport="tcp") as stream:
            assert stream.read_all() == table.slice(6)

    steps = [partial(read, world, access, pause)]
    return [describe, *steps, count, filter_rows] if access == "tcp" else steps


def run_steps(world: World, access: str, pause: Callable[[], None]) -> None:
    """Take the steps of a reader. One may fail once the dataset has changed."""
    begin = len(world.tables)
    for step in list_steps(world, access, pause):
        try:
            step()
        except SplitArrowError:
            if not world.is_removed and len(world.tables) == begin:
                raise
        pause()


QUICK = ("arrow", "stream", "table", "parquet")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in KINDS]
)
def test_a_reader_gets_one_version_or_an_error(name: str, tmp_path: Path) -> None:
    kind, path = KINDS[name], tmp_path / "data"
    world = World(path, None, None)  # pyright: ignore[reportArgumentType]
    datasets: dict[str, Any] = {}
    if kind.suffix is not None:
        world.tables.append(make_table(next(_numbers)))
        kind.write(world, world.tables[-1])
        datasets["d"] = f"{path}{kind.suffix}"
    with (
        splitarrow.serve(
            datasets,
            listen=["tcp://127.0.0.1:0", f"shm://{tmp_path}/socket"],
            control="grpc://127.0.0.1:0",
            writable=tmp_path / "uploads",
        ) as world.server,
        splitarrow.connect(world.server.control_uri or "") as world.client,
    ):

        def replace() -> None:
            world.tables.append(make_table(next(_numbers)))
            kind.write(world, world.tables[-1])
            world.is_removed = False

        def remove() -> None:
            kind.remove(world)
            world.is_removed = True

        if kind.suffix is None:
            replace()
        for access, change in itertools.product(ACCESSES, (replace, remove)):
            for gap in itertools.count():
                paused = itertools.count()

                def pause(paused=paused, gap=gap, change=change) -> None:
                    if next(paused) == gap:
                        change()

                run_steps(world, access, pause)
                if world.is_removed:
                    with pytest.raises(SplitArrowError):
                        world.client.read("d", transport="tcp").read_all()
                    replace()
                world.check_info(world.client.info("d"))
                transport = "tcp" if access == "source" else access
                with world.client.read("d", transport=transport) as stream:
                    assert stream.read_all() == world.tables[-1]
                if next(paused) <= gap:
                    break
