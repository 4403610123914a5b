"""Files and links change while readers read them: no result is ever wrong."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.batteries import Battery, checksum_of, descriptors, numbered_batches
from helpers.files import write_file, write_parquet, write_stream
from helpers.reader_process import Checksum
from helpers.readers import ReaderPool, run_together, source
from helpers.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

TRANSPORTS = ["tcp", "shm", "ucx", "flight"]
BATCHES, ROWS = 256, 1024


def write(path: Path, version: int) -> str:
    """Replace a file by a version of its rows, and return the checksum of that."""
    batches = numbered_batches(version, BATCHES, ROWS)
    if path.suffix == ".parquet":
        write_parquet(path.with_suffix(".new"), pa.Table.from_batches(batches))
        path.with_suffix(".new").rename(path)
    else:
        (write_stream if path.suffix == ".arrows" else write_file)(path, batches)
    return checksum_of(batches)


def checksum_of_file(path: Path) -> str | None:
    """Return the checksum of what pyarrow reads from a file; None if it cannot."""
    opened: dict[str, Callable[..., Any]] = {
        ".arrow": pa.ipc.open_file,
        ".arrows": pa.ipc.open_stream,
    }
    checksum = Checksum()
    try:
        with opened[path.suffix](pa.BufferReader(path.read_bytes())) as reader:
            for batch in reader.read_all().to_batches():
                checksum.add(batch)
    except (KeyError, OSError, pa.ArrowException, AssertionError):
        return None
    return str(checksum)


class Changer:
    """Changes files at random, and knows every result that is right."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._draw = random.Random(5)
        self._versions = count(1)
        self.right: set[str] = {write(path, next(self._versions)) for path in paths}
        self.changes = Counter[str]()

    def change(self) -> None:
        path = self._draw.choice(self._paths)
        change = self._draw.choice([self._replace, self._truncate, self._delete, self._corrupt])
        change(path)
        self.changes[change.__name__.strip("_")] += 1

    def _pause(self) -> None:
        time.sleep(self._draw.uniform(0, 0.1))

    def _replace(self, path: Path) -> None:
        # Beforehand, because a reader may finish first.
        version = next(self._versions)
        self.right.add(write(path, version))
        self._pause()

    def _truncate(self, path: Path) -> None:
        os.truncate(path, self._draw.randrange(path.stat().st_size))
        self._pause()
        self._replace(path)

    def _delete(self, path: Path) -> None:
        path.unlink()
        self._pause()
        self._replace(path)

    def _corrupt(self, path: Path) -> None:
        """Overwrite a part of the file. Who reads it afterwards gets what it then contains."""
        with path.open("r+b") as file:
            file.seek(self._draw.randrange(path.stat().st_size))
            file.write(self._draw.randbytes(self._draw.randrange(1, 4096)))
        if (checksum := checksum_of_file(path)) is not None:
            self.right.add(checksum)
        self._pause()
        self._replace(path)


def test_changing_files(battery: Battery, server, readers: ReaderPool, tmp_path: Path) -> None:
    """Each read is that of one state of the file, or raises; the server survives."""
    paths = [tmp_path / f"data.{suffix}" for suffix in ("arrow", "arrows", "parquet")]
    changer = Changer(paths)
    running = server({path.suffix[1:]: path for path in paths}, shm_cache="64MiB")
    until = tmp_path / "until"
    before = descriptors(running.pid)
    loops = {
        (path.suffix, transport, pause): readers.start(
            "repeat",
            **source(running, path.suffix[1:], transport, stall_timeout=60),
            until=str(until),
            pause=pause,
            pause_every=16,
        )
        for path in paths
        for transport in TRANSPORTS
        for pause in (0, 0.01)
    }
    changes = battery.count(1000, 10)
    for _ in range(changes):
        changer.change()
    until.touch()
    run_together(loops.values(), 120)
    outcomes = Counter[str]()
    wrong = Counter[str]()
    for (suffix, transport, pause), reader in loops.items():
        result = reader.result()
        outcomes.update(result["outcomes"])
        for checksum, times in result["checksums"].items():
            if checksum not in changer.right:
                wrong[f"{transport} {suffix} pause {pause}"] += times
    battery.record(changes=changer.changes, outcomes=outcomes, wrong=wrong)
    assert not wrong
    assert outcomes["complete"] > len(loops)
    # 64 MiB hold 16 copies of a state of a file.
    wait_until(lambda: descriptors(running.pid) <= before + 24, "the end of all files", 30)


def test_changing_links(battery: Battery, server, readers: ReaderPool, tmp_path: Path) -> None:
    """Folders of links, and a folder that is a link: each read has one state of the folder."""
    versions = count(1)
    parts = 4
    right: set[str] = set()

    def write_version() -> Path:
        """Write a version of the data: a folder with a link to each of its files."""
        version = next(versions)
        batches = numbered_batches(version, BATCHES, ROWS)
        right.add(checksum_of(batches))
        stored, folder = tmp_path / "stored" / str(version), tmp_path / "linked" / str(version)
        folder.mkdir(parents=True)
        size = BATCHES // parts
        for part in range(parts):
            file = write_file(stored / f"{part}.arrow", batches[part * size : (part + 1) * size])
            (folder / f"{part}.arrow").symlink_to(file)
        return folder

    def point(link: Path, target: Path) -> None:
        new = link.with_name(f".{link.name}.new")
        new.symlink_to(target)
        new.rename(link)

    current = tmp_path / "current"
    kept = [write_version()]
    point(current, kept[0])
    running = server({"current": current}, follow_symlinks=True)
    until = tmp_path / "until"
    loops = [
        readers.start(
            "repeat",
            **source(running, "current", transport, stall_timeout=60),
            until=str(until),
            pause=pause,
            pause_every=16,
        )
        for transport in TRANSPORTS
        for pause in (0, 0.01)
    ]
    changes = battery.count(500, 8)
    draw = random.Random(6)
    for number in range(changes):
        match number % 4:
            case 0:  # a link into nowhere
                (current / "lost.arrow").symlink_to(tmp_path / "nowhere.arrow")
            case 1:  # a loop
                (current / "loop").symlink_to(current)
            case 2:  # a link to a file that another link names, too: its rows come twice
                (current / "_ignored.arrow").symlink_to(current / "0.arrow")
            case _:
                pass
        time.sleep(draw.uniform(0, 0.1))
        kept.append(write_version())
        point(current, kept[-1])
        if len(kept) > 3:
            remove_version(tmp_path, kept.pop(0))
        time.sleep(draw.uniform(0, 0.1))
    until.touch()
    outcomes, wrong = Counter[str](), Counter[str]()
    for result in run_together(loops, 120):
        outcomes.update(result["outcomes"])
        wrong.update({c: n for c, n in result["checksums"].items() if c not in right})
    battery.record(changes=changes, outcomes=outcomes, wrong=sum(wrong.values()))
    assert not wrong
    assert outcomes["complete"] > changes // 2


def remove_version(root: Path, folder: Path) -> None:
    for directory in (folder, root / "stored" / folder.name):
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
