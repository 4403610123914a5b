"""gRPC in processes that are forked: it works, or is refused at once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.daemons import StartDaemon
from helpers.files import write_file
from splitarrow.errors import UsageError
from splitarrow.transport.grpc_usage import GrpcUsage


class User:
    pass


class Threads:
    """The threads of a process."""

    def __init__(self, *ids: int) -> None:
        self.ids = frozenset(ids)
        self.ends: list[int] = []
        """The threads that end, one whenever the threads are listed."""

    def __call__(self) -> frozenset[int]:
        listed = self.ids
        if self.ends:
            self.ids -= {self.ends.pop()}
        return listed


def fork(usage: GrpcUsage) -> bool:
    """Return whether gRPC is refused after a fork."""
    usage.before_fork()
    usage.after_fork()
    return usage.is_blocked


def test_a_fork_without_grpc_is_safe() -> None:
    assert not fork(GrpcUsage(Threads(1, 2), has_fork_support=False))


def test_a_fork_beside_a_user_is_refused_and_keeps_it() -> None:
    usage, user = GrpcUsage(Threads(), has_fork_support=False), User()
    usage.add(user)
    assert fork(usage)
    with pytest.raises(UsageError, match="multiprocessing_context='forkserver' or 'spawn'"):
        usage.add(User())
    kept = weakref.ref(user)
    del user
    gc.collect()
    assert kept() is not None


def test_a_fork_waits_for_the_threads_of_users_that_ended() -> None:
    threads = Threads()
    usage, user = GrpcUsage(threads, has_fork_support=False), User()
    usage.add(user)
    threads.ids, threads.ends = frozenset({7, 8, 9}), [7, 8, 9]
    usage.discard(user)
    assert not fork(usage)
    assert not threads.ids


def test_threads_of_other_libraries_do_not_matter() -> None:
    usage, user = GrpcUsage(Threads(1, 2), has_fork_support=False), User()
    usage.add(user)
    usage.discard(user)
    assert not fork(usage)


def test_support_for_forks_needs_no_refusal() -> None:
    usage, user = GrpcUsage(Threads(), has_fork_support=True), User()
    usage.add(user)
    assert not fork(usage)


FORK = """
import os, sys
import splitarrow

def fork(read):
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    try:
        print(read(), flush=True)
    except splitarrow.errors.UsageError as error:
        print(str(error).partition(",")[0], flush=True)
    os._exit(0)

def read():
    with splitarrow.connect(sys.argv[1]) as client:
        return client.info("n").rows

fork(read)
with splitarrow.connect(sys.argv[1]) as client:
    fork(lambda: client.info("n").rows)
    fork(read)
    fork(client.close)
    assert client.info("n").rows == 3
fork(read)
"""
REFUSED = "this process was forked while its parent used gRPC"


def test_a_forked_process_reads_or_raises(tmp_path: Path, daemon: StartDaemon) -> None:
    path = write_file(tmp_path / "n.arrow", pa.table({"n": [1, 2, 3]}))
    server = daemon({"n": path}, control="grpc://127.0.0.1:0")
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(server.control_uri)]
    output = subprocess.check_output(command, text=True, timeout=60)
    assert output.splitlines() == ["3", REFUSED, "3", "None", "3"]


QUIET = """
import os
import pyarrow as pa
import splitarrow

server = splitarrow.serve({"n": pa.table({"n": [1, 2, 3]})}, control="grpc://127.0.0.1:0")
with splitarrow.connect(server.control_uri) as client:
    client["n"].to_arrow()
    if not os.fork():
        os._exit(0)
    os.wait()
    server.close()
assert "GRPC_VERBOSITY" not in os.environ
"""


def test_a_fork_and_a_server_that_closes_first_print_nothing() -> None:
    command = [sys.executable, "-W", "ignore", "-c", QUIET]
    environment = {name: os.environ[name] for name in os.environ if name != "GRPC_VERBOSITY"}
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert (process.stdout, process.stderr) == ("", "")
