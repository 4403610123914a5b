"""Forked processes: a child reads inherited batches, and the leases stay with the parent."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import splitarrow
from helpers.files import write_file
from helpers.shm import has_no_leases, make_filled_batches
from helpers.shm_servers import Program, Serve
from helpers.waiting import wait_until

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
SENT = make_filled_batches(40, 4096)


@pytest.fixture(params=["table", "file"])
def server(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> splitarrow.Server:
    path = write_file(tmp_path / "data.arrow", SENT)
    return serve({"data": SENT if request.param == "table" else path})


Start = Callable[..., Program]


def started(program: Start, server: splitarrow.Server, source: str) -> Program:
    return program(COMMON + textwrap.dedent(source), server.uri("data"))


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "batches.clear(); sys.exit(0)"])
def test_a_forked_child_frees_no_leases(
    server: splitarrow.Server, program: Start, ending: str
) -> None:
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
    assert running.read_line() == "0"
    assert server.stats()["leases"] == 40
    running.send_line()
    assert running.read_line() == "whole 40"
    assert server.stats()["leases"] == 40
    running.send_line()
    assert running.read_line() == "freed"
    wait_until(has_no_leases(server))
    running.send_line()
    assert running.wait() == 0


def test_a_child_outlives_the_parents_batches(server: splitarrow.Server, program: Start) -> None:
    """The batches of the child stay valid, whatever the parent frees."""
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
    assert running.read_line() == "freed"
    running.send_line()
    assert running.read_line() == "0"
    running.send_line()
    assert running.wait() == 0
    wait_until(has_no_leases(server))


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
    assert running.read_line() == "child"
    wait_until(lambda: server.stats()["leases"] == 41)
    running.send_line()
    assert running.read_line() == "dropped"
    wait_until(lambda: server.stats()["leases"] == 40)  # the child's own thread frees its leases
    wait_until(lambda: server.stats()["connections"] == 1)
    running.send_line()
    assert running.read_line() == "0"
    assert server.stats()["leases"] == 40
    running.send_line()
    assert running.wait() == 0
    wait_until(has_no_leases(server))


def test_multiprocessing_workers_read_inherited_batches(
    server: splitarrow.Server, program: Start
) -> None:
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
    assert running.read_line() == str(40 * 512)
    wait_until(lambda: server.stats()["connections"] == 1)
    assert server.stats()["leases"] == 40
    running.send_line()
    assert running.wait() == 0


def test_parent_and_child_release_a_file_that_changes(
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
    assert running.read_line() == "child"
    path.write_bytes(b"\xff" * path.stat().st_size)
    running.send_line()
    assert running.read_line() == "0"
    running.send_line()
    assert running.wait() == 0
