"""Processes that fork: the child reads what it inherits, and the leases stay the parent's."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import splitarrow

from .conftest import Program, Serve
from .parts import filled, free_of_leases, wait_until, write_file

COMMON = """
import multiprocessing, os, sys, threading
import splitarrow

uri = sys.argv[1]
stream = splitarrow.open(uri)
batches = [next(stream) for _ in range(20)]

def check(batches, first=0):
    for number, batch in enumerate(batches, first):
        assert batch.column("n").unique().to_pylist() == [7000 + number], number

def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def say(*words):
    print(*words, flush=True)
    sys.stdin.readline()
"""
SENT = filled(40, 4096)


@pytest.fixture(params=["table", "file"])
def server(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> splitarrow.Server:
    path = write_file(tmp_path / "data.arrow", SENT)
    return serve({"data": SENT if request.param == "table" else path})


Start = Callable[..., Program]


def started(program: Start, server: splitarrow.Server, source: str) -> Program:
    return program(COMMON + textwrap.dedent(source), server.uri("data"))


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "batches.clear(); sys.exit(0)"])
def test_a_child_frees_nothing(server: splitarrow.Server, program: Start, ending: str) -> None:
    source = f"""
    child = os.fork()
    if not child:
        check(batches)
        {ending}
    say(end_of(child))
    check(batches)
    batches += stream
    check(batches)
    say("whole", len(batches))
    batches.clear()
    del stream
    say("freed")
    """
    running = started(program, server, source)
    assert running.line() == "0"
    assert server.stats()["leases"] == 40
    running.tell()
    assert running.line() == "whole 40"
    assert server.stats()["leases"] == 40
    running.tell()
    assert running.line() == "freed"
    wait_until(free_of_leases(server))
    running.tell()
    assert running.wait() == 0


def test_a_child_outlives_the_parents_batches(server: splitarrow.Server, program: Start) -> None:
    """What the child maps stays as it is, whatever the parent gives back."""
    source = """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.read(reading, 1)
        check(batches)
        os._exit(0)
    stream.close()
    batches.clear()
    say("freed")
    os.write(writing, b"x")
    say(end_of(child))
    """
    running = started(program, server, source)
    assert running.line() == "freed"
    running.tell()
    assert running.line() == "0"
    running.tell()
    assert running.wait() == 0
    wait_until(free_of_leases(server))


def test_a_child_opens_a_stream_of_its_own(server: splitarrow.Server, program: Start) -> None:
    source = """
    child = os.fork()
    if not child:
        with splitarrow.open(uri) as own:
            mine = list(own)
        check(mine)
        check(batches)
        del mine[1:]
        sys.stdout.write("child\\n"); sys.stdout.flush()
        sys.stdin.readline()
        mine.clear()
        sys.stdout.write("dropped\\n"); sys.stdout.flush()
        sys.stdin.readline()
        os._exit(0)
    code = end_of(child)
    check(batches)
    say(code)
    """
    running = started(program, server, source)
    assert running.line() == "child"
    wait_until(lambda: server.stats()["leases"] == 41)
    running.tell()
    assert running.line() == "dropped"
    wait_until(lambda: server.stats()["leases"] == 40)  # its thread gives back
    wait_until(lambda: server.stats()["connections"] == 1)
    running.tell()
    assert running.line() == "0"
    assert server.stats()["leases"] == 40
    running.tell()
    assert running.wait() == 0
    wait_until(free_of_leases(server))


def test_workers_of_multiprocessing(server: splitarrow.Server, program: Start) -> None:
    source = """
    def work(share):
        with splitarrow.open(uri) as own:
            mine = list(own)
        check(mine)
        check(batches)
        return sum(batch.num_rows for batch in mine[share::4])

    with multiprocessing.get_context("fork").Pool(4) as pool:
        total = sum(pool.map(work, range(4)))
    check(batches)
    say(total)
    """
    running = started(program, server, source)
    assert running.line() == str(40 * 512)
    wait_until(lambda: server.stats()["connections"] == 1)
    assert server.stats()["leases"] == 40
    running.tell()
    assert running.wait() == 0


def test_a_file_that_changes_is_let_go_by_parent_and_child(
    serve: Serve, program: Start, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    source = """
    child = os.fork()
    if not child:
        sys.stdout.write("child\\n"); sys.stdout.flush()
        sys.stdin.readline()
        check(batches)
        os._exit(0)
    code = end_of(child)
    check(batches)
    say(code)
    """
    running = started(program, server, source)
    assert running.line() == "child"
    path.write_bytes(b"\xff" * path.stat().st_size)
    running.tell()
    assert running.line() == "0"
    running.tell()
    assert running.wait() == 0
