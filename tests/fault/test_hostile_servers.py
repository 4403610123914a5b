"""Hostile servers in processes of their own: a reader ends with an error, within bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
MEBIBYTE = 1 << 20
READER = """
import json, sys
import splitarrow
uri, mode, limit = sys.argv[1:]
options = {"max_decoded_bytes": int(limit), "stall_timeout": 10}
outcome, rows = "complete", 0
try:
    with splitarrow.open(uri, **options) as stream:
        if mode == "table":
            rows = stream.read_all().num_rows
        else:
            rows = sum(batch.num_rows for batch in stream)
except splitarrow.errors.SplitArrowError as error:
    outcome = f"{type(error).__name__}: {error}"
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps([outcome, rows, peak]))
"""
CALLER = """
import json, sys
import splitarrow
uri, method, _ = sys.argv[1:]
outcome = "complete"
try:
    with splitarrow.connect(uri) as client:
        client.act("status") if method == "act" else list(client)
except splitarrow.errors.SplitArrowError as error:
    outcome = f"{type(error).__name__}: {error}"
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps([outcome, 0, peak]))
"""


class Outcome(NamedTuple):
    """How a reader ended."""

    text: str
    rows: int
    mebibytes: float
    """Its largest resident memory."""
    seconds: float
    """The processor time that it used."""


@contextmanager
def serving(*arguments: str) -> Generator[str]:
    """Run a hostile server, a module of `helpers`; return its URI."""
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def run(script: str, uri: str, mode: str, limit: int = 0) -> Outcome:
    """Run a script in a process of its own, whose memory and time the kernel measures."""
    command = [sys.executable, "-c", script, uri, mode, str(limit)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    outcome, rows, peak = json.loads(text)
    return Outcome(outcome, rows, peak / 1024, usage.ru_utime + usage.ru_stime)


LIMIT = 16 * MEBIBYTE
DICTIONARIES = "bytes of dictionaries arrived without a record batch"


@pytest.mark.parametrize(
    ("attack", "mode", "outcome", "mebibytes"),
    [
        ("deltas", "batches", "LimitError: the dictionaries of the stream decode to", 300),
        ("small_deltas", "batches", DICTIONARIES, 200),
        ("dictionaries", "batches", DICTIONARIES, 200),
        ("deep_schema", "batches", "LimitError: a column nests more than 64 levels", 200),
        ("shared_schema", "batches", "LimitError: 2768 bytes of metadata take more than", 200),
        ("wide_schema", "table", "InvalidDataError: the message has 1 field nodes", 300),
        ("schemas", "table", "ProtocolError: received a second schema", 200),
    ],
)
def test_a_reader_ends_with_an_error_within_bounds(
    attack: str, mode: str, outcome: str, mebibytes: float
) -> None:
    with serving("helpers.hostile_server", attack) as uri:
        ended = run(READER, uri, mode, LIMIT)
    assert outcome in ended.text
    assert ended.mebibytes < mebibytes
    assert ended.seconds < 20


@pytest.mark.long
def test_a_million_empty_batches_take_no_memory() -> None:
    with serving("helpers.hostile_server", "empty_batches") as uri:
        ended = run(READER, uri, "table", LIMIT)
    assert ended.text == "complete"
    assert ended.mebibytes < 200


@pytest.mark.parametrize(("method", "call"), [("act", "DoAction"), ("list", "ListFlights")])
def test_answers_of_a_control_plane_that_do_not_end_are_an_error(method: str, call: str) -> None:
    with serving("helpers.hostile_control_plane") as uri:
        ended = run(CALLER, uri, method)
    assert f"LimitError: {uri} answers {call} with more than 268435456 bytes" in ended.text
    assert ended.mebibytes < 800
    assert ended.seconds < 20
