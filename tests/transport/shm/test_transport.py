"""The socket of an shm listener: its path, its permissions and its removal."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import splitarrow
from helpers.shm import make_number_batches, make_table, read_table
from helpers.waiting import wait_until
from splitarrow.errors import ConfigError, ConnectError, TransportError, UriError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.base import Diagnosis
from splitarrow.transport.registry import find_transport
from splitarrow.transport.shm.transport import ShmListener

NOBODY = 65534
SENT = make_number_batches(3)


def serving(path: Path | str, **settings: Any) -> splitarrow.Server:
    return splitarrow.serve({"data": SENT}, listen=[f"shm://{path}"], **settings)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_socket_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "data.sock"
    before = os.umask(0)
    try:
        with serving(path) as server:
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert mode_of(path) == 0o600
            assert os.umask(0) == 0  # unchanged
            assert read_table(server.uri("data")) == make_table(SENT)
        assert not path.exists()
    finally:
        os.umask(before)


def test_the_folder_of_the_socket_is_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "data.sock"
    with serving(path) as server:
        assert mode_of(path.parent) == 0o700
        assert read_table(server.uri("data")) == make_table(SENT)


def test_a_listener_without_a_path_chooses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with serving("") as first, serving("") as second:
        paths = [Path(DataUri.parse(server.listen[0]).path) for server in (first, second)]
        assert paths[0] != paths[1]
        for path, server in zip(paths, (first, second), strict=True):
            assert path.parent == tmp_path / "splitarrow"
            assert mode_of(path) == 0o600
            assert read_table(server.uri("data")) == make_table(SENT)
    assert list((tmp_path / "splitarrow").iterdir()) == []


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (108 - len(os.fsencode(tmp_path)) - 1))
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        serving(path)
    path = path.with_name(path.name[:-1])
    with serving(path) as server:
        assert read_table(server.uri("data")) == make_table(SENT)


def test_a_path_may_contain_any_characters(tmp_path: Path) -> None:
    path = tmp_path / "Ärger & more?.sock"
    with splitarrow.serve({"data": SENT}, listen=[str(DataUri("shm", path=str(path)))]) as server:
        assert path.exists()
        assert read_table(server.uri("data")) == make_table(SENT)


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "data.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving(path) as server:
        assert read_table(server.uri("data")) == make_table(SENT)


def test_the_socket_of_a_live_server_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "data.sock"
    with serving(path) as server:
        with pytest.raises(ConfigError, match=r"cannot listen on shm://.*data\.sock"):
            serving(path)
        assert read_table(server.uri("data")) == make_table(SENT)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_other_files_are_not_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data.sock"
    if kind == "file":
        path.write_text("precious")
    else:
        path.mkdir()
    with pytest.raises(ConfigError, match="cannot listen"):
        serving(path)
    assert path.is_dir() if kind == "folder" else path.read_text() == "precious"


def test_the_socket_of_a_successor_stays(tmp_path: Path) -> None:
    path = tmp_path / "data.sock"
    with serving(path):
        path.unlink()
        second = serving(path)
    with second:
        assert read_table(second.uri("data")) == make_table(SENT)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot listen"):
        serving(tmp_path / "file" / "data.sock")


def test_a_uri_of_an_earlier_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.sock"
    with serving(path) as server:
        uri = server.uri("data")
    with serving(path), pytest.raises(TransportError, match="has restarted"):
        read_table(uri)
    with pytest.raises(ConnectError, match=r"data\.sock"):
        read_table(uri)


@pytest.mark.parametrize("address", ["shm://host/data.sock", "shm://host:1/data.sock"])
def test_an_address_has_no_host(address: str) -> None:
    with pytest.raises((UriError, ConfigError), match="has a host"):
        splitarrow.serve({"data": SENT}, listen=[address])
    with pytest.raises(UriError, match="has a host"):
        splitarrow.open(f"{address}?want_data=0x10000000001&ticket=data")


def test_a_reader_needs_a_path() -> None:
    with pytest.raises(UriError, match="has no path"):
        splitarrow.open("shm://?want_data=0x10000000001&ticket=data")


def test_the_remote_handle_can_be_chosen(tmp_path: Path) -> None:
    handle = bytes(range(16))
    uri = DataUri("shm", path=f"{tmp_path}/data.sock", remote_handle=handle)
    with splitarrow.serve({"data": SENT}, listen=[str(uri)]) as server:
        assert DataUri.parse(server.uri("data")).remote_handle == handle
        assert read_table(server.uri("data")) == make_table(SENT)


def test_peers_of_other_users_are_refused_simulated(tmp_path: Path) -> None:
    """Without root, the test cannot connect as another user. Here the listener accepts none."""
    listener = ShmListener(DataUri("shm", path=f"{tmp_path}/data.sock"), Limits(), frozenset())
    listener._users = frozenset[int]()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(f"{tmp_path}/data.sock")
            assert listener.accept() is None
            assert listener.refused == 1
            assert client.recv(1) == b""
    finally:
        listener.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(10)
    try:
        sock.connect(sys.argv[1])
        sock.sendall(b"SPLTARW\\x01")
        print(sock.recv(8))
    except OSError as error:
        print(type(error).__name__)
"""


def any_python() -> str:
    """Return a Python that other users can start; skip the test if there is none."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        folders = [Path(path), *Path(path).parents]
        if all(folder.exists() and folder.stat().st_mode & 0o001 for folder in folders):
            return path
    pytest.skip("this host has no Python that other users can start")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as another user")
@pytest.mark.parametrize(
    ("users", "answers"),
    [
        ((), ["PermissionError"]),
        ((12345,), ["b''", "ConnectionResetError", "BrokenPipeError"]),
        ((NOBODY,), [repr(b"SPLTARW\x01")]),
    ],
)
def test_peers_of_other_users_are_refused(
    open_folder: Path, users: tuple[int, ...], answers: list[str]
) -> None:
    path = open_folder / "data.sock"
    with serving(path, shm_users=users) as server:
        assert mode_of(path) == (0o666 if users else 0o600)
        found = subprocess.run(
            [any_python(), "-I", "-c", CONNECT, str(path)],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
            timeout=20,
            check=True,
        )
        assert found.stdout.strip() in answers
        assert read_table(server.uri("data")) == make_table(
            SENT
        )  # the server's own user may always connect
        wait_until(lambda: server.stats()["connections"] == 0)


def test_the_diagnosis_does_not_depend_on_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert find_transport(DataUri("shm")).diagnose() == Diagnosis()


def test_a_kernel_without_sealable_memory_is_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    problem = find_transport(DataUri("shm")).diagnose().problem
    assert problem == "the kernel supplies no sealable memory: Function not implemented"
