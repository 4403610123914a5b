"""Disks that are full: fetches, uploads and publications fail cleanly."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.batteries import Battery, checksum_of, descriptors, numbered_batches
from helpers.cli import COMMAND, PATIENCE
from helpers.cluster import join_uris
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.reader_process import Checksum
from helpers.waiting import wait_until
from splitarrow import testing as daemon_module
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.errors import SplitArrowError
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MIB = 1 << 20
LARGE = numbered_batches(1, 1024, 1024)  # 16 MiB
SMALL = numbered_batches(2, 16, 1024)  # 256 KiB


@pytest.fixture(autouse=True)
def mounts() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    if subprocess.run([*NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("no mounts in user namespaces here")


@pytest.fixture
def small_disks(
    daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[Daemon]:
    """Two daemons whose folders for uploads are disks of 8 MiB."""
    started: list[Daemon] = []
    script = 'mount -t tmpfs -o size=8m none "$0" && exec "$@"'
    command = daemon_module._COMMAND
    for number in range(2):
        folder = tmp_path / f"disk-{number}"
        folder.mkdir()
        monkeypatch.setattr(daemon_module, "_COMMAND", (*NAMESPACE, script, str(folder), *command))
        started.append(daemon(control="grpc://127.0.0.1:0", writable=folder))
    return started


def files_of(running: Daemon) -> dict[str, int]:
    """The sizes of all files on a daemon's own disk."""
    arguments = Path(f"/proc/{running.pid}/cmdline").read_bytes().split(b"\0")
    folder = arguments[arguments.index(b"--writable") + 1].decode()
    root = Path(f"/proc/{running.pid}/root{folder}")
    return {
        str(path.relative_to(root)): path.stat().st_size
        for path in root.rglob("*")
        if path.is_file()
    }


def read_checksum(uri: str, name: str) -> str:
    checksum = Checksum()
    with splitarrow.connect(uri) as client, client.read(name) as stream:
        for batch in stream:
            checksum.add(batch)
    return str(checksum)


def test_fetches_to_full_disks(battery: Battery, server, tmp_path: Path) -> None:
    """A fetch says that the disk is full, and leaves no file."""
    running = server({"large": write_file(tmp_path / "large.arrow", LARGE)})
    draw, rounds = random.Random(1), battery.count(100, 3)
    folder = tmp_path / "disk"
    folder.mkdir()
    for number in range(rounds):
        suffix = ("arrow", "arrows", "parquet")[number % 3]
        size = draw.randrange(64 << 10, (2 if suffix == "parquet" else 15) * MIB)
        fetch = (
            f"{shlex.join(COMMAND)} fetch '{running.uri('large', 'tcp')}' -o \"$PWD\"/out.{suffix}"
        )
        script = f'mount -t tmpfs -o size={size} none "$1" && cd "$1" && {fetch}; echo $?; ls -A'
        done = subprocess.run(
            [*NAMESPACE, script, "sh", str(folder)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.stdout == "1\n"
        expected = f"splitarrow: error: {folder}/out.{suffix}: No space left on device\n"
        assert done.stderr == expected
    battery.record(fetches=rounds)


def test_uploads_to_full_disks(battery: Battery, small_disks: list[Daemon]) -> None:
    """An upload that does not fit is refused, and leaves nothing."""
    running = small_disks[0]
    rounds = battery.count(100, 3)
    schema = LARGE[0].schema
    with splitarrow.connect(running.control_uri) as client:
        client.put("kept", pa.Table.from_batches(SMALL))
        before, held = files_of(running), descriptors(running.pid)
        for number in range(rounds):
            name = ("kept", "new")[number % 2]
            table = pa.Table.from_batches(LARGE, schema)
            with pytest.raises(SplitArrowError, match="disk is full"):
                client.put(name, table, if_exists="replace")
            assert files_of(running) == before
        assert [info.name for info in client.datasets()] == ["kept"]
        client.put("new", pa.Table.from_batches(SMALL))
    for name in ("kept", "new"):
        assert read_checksum(running.control_uri, name) == checksum_of(SMALL)
    wait_until(lambda: descriptors(running.pid) <= held, "the end of the files", 10)
    battery.record(uploads=rounds)


def test_publications_on_full_disks(
    battery: Battery, small_disks: list[Daemon], tmp_path: Path
) -> None:
    """A publication that does not fit fails; the previous version stays, and space comes back."""
    rounds = battery.count(50, 2)
    both = join_uris(*small_disks)

    def shards(name: str, batches: list[pa.RecordBatch]) -> list[Path]:
        size = len(batches) // 4
        return [
            write_file(tmp_path / name / f"{n}.arrow", batches[n * size : (n + 1) * size])
            for n in range(4)
        ]

    small, large = shards("small", SMALL), shards("large", LARGE)
    publish_shards("data", small, both, replicas=2)
    before = [files_of(running) for running in small_disks]
    for number in range(rounds):
        job = f"job-{number}"
        with pytest.raises(SplitArrowError, match="disk is full"):
            publish_shards("data", large, both, replicas=2, job=job, attempts=1)
        assert read_checksum(both, "data") == checksum_of(SMALL)
        for running in small_disks:
            with splitarrow.connect(running.control_uri) as client:
                client.discard("data", job)
        assert [files_of(running) for running in small_disks] == before
    publish_shards("data", small, both, replicas=2)
    assert read_checksum(both, "data") == checksum_of(SMALL)
    battery.record(publications=rounds)
