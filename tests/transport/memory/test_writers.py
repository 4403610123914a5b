"""The search for the processes that have a file open for writing."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitarrow.transport.memory.writers import Writer, WriterSearch

SCRIPT = """
import sys
file = open(sys.argv[1], "ab")
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(10_000))
    return path


def test_readers_and_their_mappings_are_no_writers(path: Path) -> None:
    with path.open("rb") as file:
        search = WriterSearch(file.fileno())
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            assert search.find() == ()


def test_a_private_mapping_changes_no_file(path: Path) -> None:
    with path.open("r+b") as file:
        search = WriterSearch(file.fileno())
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY):
            assert search.find() == (Writer(os.getpid(), maps_file=False),)


def test_a_process_that_maps_the_file_comes_first_even_without_a_descriptor(path: Path) -> None:
    with path.open("rb") as file:
        search = WriterSearch(file.fileno())
        with path.open("r+b") as ours:
            descriptor = os.dup(ours.fileno())
            memory = mmap.mmap(descriptor, 0)
            os.close(descriptor)
        with memory:
            (writer,) = search.find()
        assert writer == Writer(os.getpid(), maps_file=True)
        assert str(writer) == "in this process"


def test_a_writer_is_named_by_its_script_without_other_arguments(path: Path) -> None:
    script = path.with_name("prepare\n.py")
    script.write_text(SCRIPT)
    pipe = subprocess.PIPE
    command = [sys.executable, str(script), str(path), "--password", "secret"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        with path.open("rb") as file:
            (writer,) = WriterSearch(file.fileno()).find()
        program = os.path.basename(sys.executable)
        assert str(writer) == f"by process {process.pid} ({program} prepare?.py)"
        process.stdin.close()
    assert str(writer) == f"by process {process.pid}"
