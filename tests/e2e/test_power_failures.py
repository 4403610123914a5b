"""What was acknowledged survives a power failure, and nothing is left in parts.

Each case lists what a reader finds after each step of a writer. The system calls of the writer are
recorded, and a power failure is replayed at each of them: a new reader finds the last acknowledged
state or the one after it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from helpers.catalog import read_dataset
from helpers.disk import Disk, State, read_state, record, write_state
from helpers.publication import numbers, read_version
from splitarrow.publication.shard_files import hash_file
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.auth.token_file import read_tokens
from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.uploads.store import UploadStore

pytestmark = pytest.mark.slow

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
PRELUDE = """if True:
    import os, sys
    from pathlib import Path
    import pyarrow as pa
    from splitarrow.errors import SplitArrowError

    folder = Path(sys.argv[1])

    def table(begin):
        n = range(begin, begin + 10)
        texts = pa.array([f"row {i}" for i in n])
        return pa.table({"n": pa.array(n, pa.int64()), "text": texts})

    def acknowledge():
        os.write(1, b"acknowledged")
"""
PUBLISH = """
    from splitarrow.publication.version_store import VersionStore

    store = VersionStore(folder / "new" / "dataset")
    for job, begins, append in [("a", [0, 10], False), ("b", [20], True), ("c", [30], False)]:
        shards = [
            store.write_shard(job, f"{n}.arrow", table(n).schema, table(n).to_batches())
            for n in begins
        ]
        store.commit(job, table(0).schema, shards, append=append)
        acknowledge()
    store.prune(1)
"""
UPLOAD = """
    import splitarrow

    control = "grpc://127.0.0.1:0"
    with (
        splitarrow.serve({}, control=control, writable=folder / "uploads") as server,
        splitarrow.connect(server.control_uri) as client,
    ):
        for begin in (0, 10):
            client.put("put", table(begin), if_exists="replace")
            acknowledge()
        for begin in (20, 30):
            client.put_shard("published", table(begin), job=f"job-{begin}", ordinal=0)
            client.publish("published", job=f"job-{begin}", ordinals=[0])
            acknowledge()
        for name in ("put", "published"):
            client.drop(name)
            acknowledge()
"""
WRITE = """
    from splitarrow.cli.app import run

    inputs = Path(sys.argv[2])
    os.chdir(folder)
    for begin in (0, 10):
        for suffix in ("arrow", "parquet", "csv"):
            assert run(["convert", str(inputs / f"{begin}.arrow"), f"out.{suffix}"]) == 0
            acknowledge()
"""
GRANT = """
    from splitarrow.server.auth.token_file import add_token

    for name in ("anna", "berta"):
        add_token(folder / "tokens.toml", name, ["*"], [])
        acknowledge()
"""


def find_version(folder: Path) -> pa.Table | None:
    """Return the rows of the current version, once all versions have been checked."""
    store = VersionStore(folder / "new" / "dataset")
    found: pa.Table | None = None
    for version in store.list_versions():
        manifest = store.load(version)
        found = read_version(store, manifest)
        for shard in manifest.shards if manifest else ():
            assert hash_file(folder / "new" / "dataset" / shard.path) == shard.sha256
    return found


def find_uploads(folder: Path) -> dict[str, pa.Table]:
    """Return the tables that the next server serves."""
    (folder / "uploads").mkdir(exist_ok=True)
    with Catalog() as catalog:
        store = UploadStore(folder / "uploads", catalog)
        store.close()
        return {name: read_dataset(catalog.lookup(name)).table for name in catalog.names()}


def find_outputs(folder: Path) -> dict[str, pa.Table]:
    """Return the files that a command has written, by their suffix."""
    readers: dict[str, Callable[[Any], pa.Table]] = {
        ".arrow": lambda data: pa.ipc.open_file(data).read_all(),
        ".parquet": parquet.read_table,
        ".csv": csv.read_csv,
    }
    files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    return {path.suffix: readers[path.suffix](io.BytesIO(path.read_bytes())) for path in files}


def find_tokens(folder: Path) -> list[str]:
    """Return the names in a token file."""
    path = folder / "tokens.toml"
    return [entry.principal.name for entry in read_tokens(path)] if path.exists() else []


@dataclass(frozen=True)
class Case:
    """A writer, and what a reader finds after each of its steps."""

    program: str
    find: Callable[[Path], Any]
    states: list[Any]


FIRST, SECOND = numbers(0), numbers(10)
CASES = {
    "versions": Case(
        PUBLISH, find_version, [None, numbers(0, 20), numbers(0, 30), numbers(30), numbers(30)]
    ),
    "uploads": Case(
        UPLOAD,
        find_uploads,
        [
            {},
            {"put": FIRST},
            {"put": SECOND},
            {"put": SECOND, "published": numbers(20)},
            {"put": SECOND, "published": numbers(30)},
            {"published": numbers(30)},
            {},
            {},
        ],
    ),
    "outputs": Case(
        WRITE,
        find_outputs,
        [
            {},
            {".arrow": FIRST},
            {".arrow": FIRST, ".parquet": FIRST},
            {".arrow": FIRST, ".parquet": FIRST, ".csv": FIRST},
            {".arrow": SECOND, ".parquet": FIRST, ".csv": FIRST},
            {".arrow": SECOND, ".parquet": SECOND, ".csv": FIRST},
            {".arrow": SECOND, ".parquet": SECOND, ".csv": SECOND},
            {},
        ],
    ),
    "tokens": Case(GRANT, find_tokens, [[], ["anna"], ["anna", "berta"], []]),
}


@contextmanager
def note(text: str) -> Generator[None]:
    """Add a note to an error."""
    try:
        yield
    except Exception as error:
        error.add_note(text)
        raise


@pytest.mark.parametrize("name", CASES)
def test_a_power_failure_leaves_the_acknowledged_state_or_the_next(
    name: str, tmp_path: Path
) -> None:
    case, written, inputs = CASES[name], tmp_path / "written", tmp_path / "inputs"
    for folder in (written, inputs):
        folder.mkdir()
    for begin in (0, 10):
        with pa.ipc.new_file(str(inputs / f"{begin}.arrow"), FIRST.schema) as writer:
            writer.write_table(numbers(begin))
    disk, acknowledged = Disk(written), 0
    found: dict[State, Any] = {}
    for call in record(PRELUDE + case.program, written, inputs):
        if call.name == "write" and call.texts == [b"acknowledged"]:
            acknowledged += 1
        elif not disk.apply(call):
            continue
        for state in disk.list_failures():
            names = sorted(each for each, _ in state)
            where = f"power failure after {acknowledged} steps and {call.name}; left: {names}"
            if state not in found:
                with TemporaryDirectory(dir=MEMORY) as left, note(where):
                    write_state(state, Path(left))
                    found[state] = case.find(Path(left))
            assert found[state] in case.states[acknowledged : acknowledged + 2], where
    assert disk.current() == read_state(written)
    assert acknowledged == len(case.states) - 2
