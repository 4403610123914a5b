"""Readers in another network namespace of the server's host, as in another container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.testing import Daemon

READER = """
import sys, splitarrow
with splitarrow.open(sys.argv[1]) as stream:
    if len(sys.argv) > 2:
        print(next(stream).num_rows, flush=True)
        sys.stdin.read()
    print(stream.read_all().num_rows, stream.transport)
"""


class Namespace(NamedTuple):
    """A network namespace that is connected with this one."""

    name: str
    link: str
    """The interface that leads there."""
    address: str
    """The address of this namespace."""

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the reader in the namespace."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-c", READER, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    number = os.getpid() % 65536
    name, address = f"u{number}", f"10.{200 + number % 50}.{number // 256}"
    made = Namespace(name, f"{name}a", f"{address}.1")
    try:
        run(f"ip netns add {name}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine has no network namespaces: {error.stderr.decode().strip()}")
    try:
        run(f"ip link add {made.link} type veth peer name {name}b netns {name}")
        run(f"ip address add {made.address}/24 dev {made.link}")
        run(f"ip -n {name} address add {address}.2/24 dev {name}b")
        for link in (f"{made.link}", f"{name}b"):
            space = "" if link == made.link else f"-n {name}"
            run(f"ip {space} link set {link} up")
        yield made
    finally:
        run(f"ip netns delete {name}")


def serve(namespace: Namespace, daemon: StartDaemon, path: Path, batches: int) -> Daemon:
    table = pa.table({"n": pa.array(np.arange(batches << 17))})
    file = write_file(path / "numbers.arrow", table, batch_rows=1 << 17)
    options = {"listen": [f"ucx://{namespace.address}:0"], "insecure": True}
    return daemon({"numbers": file}, **options)


def test_a_reader_in_another_namespace_gets_no_shared_memory(
    namespace: Namespace, daemon: StartDaemon, tmp_path: Path
) -> None:
    served = serve(namespace, daemon, tmp_path, batches=4)
    with namespace.start(served.uri("numbers", scheme="ucx")) as reader:
        output, _ = reader.communicate(timeout=20)
    assert output.split() == [str(4 << 17), "ucx", f"(tcp/{namespace.name}b)"]


@pytest.mark.slow
@pytest.mark.long
def test_a_daemon_frees_the_stream_of_a_host_that_is_gone(
    namespace: Namespace, daemon: StartDaemon, tmp_path: Path
) -> None:
    served = serve(namespace, daemon, tmp_path, batches=200)

    def count_descriptors() -> int:
        return len(os.listdir(f"/proc/{served.pid}/fd"))

    with namespace.start(served.uri("numbers", scheme="ucx"), "pause") as reader:
        assert reader.stdout is not None
        assert int(reader.stdout.readline()) == 1 << 17
        connected = count_descriptors()
        run(f"ip -n {namespace.name} link set {namespace.name}b down")
        wait_until(lambda: count_descriptors() <= connected - 10, seconds=60)
        reader.kill()
