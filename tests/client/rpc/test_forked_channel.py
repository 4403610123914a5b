"""Clients of a process that was forked while its parent used gRPC."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORK = """
import os, sys
import pyarrow as pa
import splitarrow
from splitarrow.client.rpc import forked_channel

table = pa.table({"n": [1, 2, 3], "lists": [[1], [1, 2], []]})
server = splitarrow.serve({"n": table}, control="grpc://127.0.0.1:0")
old = splitarrow.connect(server.control_uri)

def show(function):
    try:
        print(function(), flush=True)
    except splitarrow.errors.SplitArrowError as error:
        print(type(error).__name__, str(error).partition(":")[0], flush=True)

pid = os.fork()
if not pid:
    client = splitarrow.connect(server.control_uri)
    show(lambda: client.info("n").rows)
    show(lambda: client["n"].to_arrow().num_rows)
    show(lambda: list(client))
    show(lambda: client.list_lengths("n", "lists")[0].to_pylist())
    show(lambda: client.info("m"))
    show(lambda: client.put("m", pa.table({"n": [1]})))
    show(lambda: client.read("n", transport="flight"))
    show(lambda: old.info("n"))
    other = splitarrow.connect(server.control_uri)
    client.close()
    show(lambda: client.info("n"))
    show(lambda: other.info("n").rows)
    END
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(status, old.info("n").rows)
"""
REFUSED = (
    "UsageError this process was forked while its parent used gRPC, which can wait forever in such "
    "a process"
)
MISSING = "NotFoundError no dataset 'm'; there is only 'n'"
SHOWN = ["3", "3", "['n']", "[1, 2, 0]", MISSING, *3 * [REFUSED]]


def run(end: str) -> list[str]:
    """Return what the forked process and its parent print; `end` is how the former ends."""
    command = [sys.executable, "-W", "ignore", "-c", FORK.replace("END", end)]
    # The output ends only when the process that makes the calls has ended as well.
    output = subprocess.check_output(command, text=True, timeout=60).splitlines()
    assert output[:8] == SHOWN
    assert output[8].startswith("ClosedError the client of grpc")
    return output[9:]


@pytest.mark.slow
@pytest.mark.parametrize(("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_a_forked_process_calls_and_reads(end: str, status: int) -> None:
    assert run(end) == ["3", f"{status} 3"]


@pytest.mark.slow
def test_the_loss_of_the_process_that_makes_the_calls_is_an_error() -> None:
    end = """
    process = forked_channel._running[2]
    process.kill()
    process.wait()
    show(lambda: other.info("n"))
    show(lambda: splitarrow.connect(server.control_uri).info("n").rows)
    os._exit(0)
"""
    lost, again, parent = run(end.strip())[1:]
    assert lost.startswith("ConnectionLostError the process that calls grpc")
    assert (again, parent) == ("3", "0 3")
