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
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import splitarrow
from helpers.shm import make_number_batches, make_table, read_table
from helpers.waiting import wait_until
from splitarrow.errors import ConfigError, ConnectError, DeniedError, TransportError, UriError
from splitarrow.protocol.frames import TaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.tags import BodyType
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import shm
from splitarrow.transport.base import ConnectOptions, Diagnosis
from splitarrow.transport.framing import PREFACE, encode_frames
from splitarrow.transport.registry import find_transport
from splitarrow.transport.shm import ShmListener

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


@pytest.mark.parametrize(
    ("user", "name"), [(2_000_000_000, "2000000000"), (NOBODY, rf"'\w+' \({NOBODY}\)")]
)
def test_readers_of_other_users_are_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, name: str
) -> None:
    """Without root, the test cannot connect as another user: the listener sees another one."""
    monkeypatch.setattr(shm, "get_peer_credentials", lambda _: (1, user))
    with serving(tmp_path / "data.sock", control="grpc://127.0.0.1:0") as server:
        reason = f"the server's setting shm_users does not list the user {name}; add the id"
        for _ in range(20):  # more than the connections that are kept to refuse requests
            with pytest.raises(DeniedError, match=reason):
                splitarrow.open(server.uri("data", scheme="shm"))
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            with client.read("data") as stream:
                assert (stream.read_all(), stream.transport) == (make_table(SENT), "flight")
            with pytest.raises(DeniedError, match=reason):
                client.read("data", transport="shm")
        wait_until(lambda: server.stats()["connections"] == 0)


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
        sock.sendall(bytes.fromhex(sys.argv[2]))
        received = b""
        while len(received) < 100:
            received += sock.recv(4096) or bytes(100)
        print(b"shm_users" in received)
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
    ("users", "outcome"),
    [
        ((), "PermissionError"),
        ((12345,), "True"),
        ((NOBODY,), "False"),
    ],
)
def test_peers_of_other_users_are_refused(
    open_folder: Path, users: tuple[int, ...], outcome: str
) -> None:
    path = open_folder / "data.sock"
    with serving(path, shm_users=users) as server:
        assert mode_of(path) == (0o666 if users else 0o600)
        uri = DataUri.parse(server.uri("data"))
        assert uri.want_data is not None
        request = encode_frames([TaggedFrame(uri.want_data, len(uri.ticket or b""), [uri.ticket])])
        sent = b"".join([PREFACE, *map(bytes, request)]).hex()
        found = subprocess.run(
            [any_python(), "-I", "-c", CONNECT, str(path), sent],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
            timeout=20,
            check=True,
        )
        assert found.stdout.strip() == outcome
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


# Paths.


def test_sockets_without_a_path_are_in_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = Path(f"/tmp/splitarrow-{os.getuid()}")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert shm.find_runtime_folder() == default
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert shm.find_runtime_folder() == default
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert shm.find_runtime_folder() == default
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert shm.find_runtime_folder() == tmp_path / "splitarrow"
    first, second = shm.create_socket_path(), shm.create_socket_path()
    assert first.parent == tmp_path / "splitarrow"
    process, _, number = first.stem.partition("-")
    assert (process, first.suffix) == (str(os.getpid()), ".sock")
    assert second.name == f"{process}-{int(number) + 1}.sock"


class Probe(socket.socket):
    """A socket that connects to nothing, and fails with `error` if there is one."""

    error: OSError | None = None
    timeouts: ClassVar[list[float | None]] = []
    backlogs: ClassVar[list[int]] = []
    made: ClassVar[list[Probe]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.made.append(self)

    def settimeout(self, value: float | None) -> None:
        self.timeouts.append(value)

    def connect(self, address: Any) -> None:
        if self.error is not None:
            raise self.error

    def listen(self, backlog: int = 0) -> None:
        self.backlogs.append(backlog)
        super().listen(backlog)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> type[Probe]:
    """Sockets that record what is done with them, in place of real ones."""
    monkeypatch.setattr(socket, "socket", Probe)
    for records in (Probe.timeouts, Probe.backlogs, Probe.made):
        records.clear()
    return Probe


def all_closed() -> bool:
    return all(sock.fileno() == -1 for sock in Probe.made)


@pytest.mark.parametrize(
    ("user", "is_accepted"), [(0, True), (os.geteuid(), True), (os.geteuid() + 1, False)]
)
def test_the_default_folder_of_another_user_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    probes: type[Probe],
    user: int,
    is_accepted: bool,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "splitarrow"
    folder.mkdir()
    status = Path.stat

    def stat_of(path: Path, **options: Any) -> Any:
        found = status(path, **options)
        return SimpleNamespace(st_mode=found.st_mode, st_uid=user, st_ino=found.st_ino)

    def listen() -> None:
        uri = DataUri("shm", path=f"{folder}/data.sock")
        ShmListener(uri, Limits(), frozenset()).close()

    monkeypatch.setattr(Path, "stat", stat_of)
    if is_accepted:
        listen()
    else:
        with pytest.raises(ConfigError, match="which belongs to another user") as caught:
            listen()
        assert caught.value.__traceback__ is not None  # it keeps the socket alive
    assert len(probes.made) == 1
    assert all_closed()
    monkeypatch.setattr(shm, "find_runtime_folder", lambda: tmp_path / "other")
    listen()


def make_listener(folder: Path, **changes: Any) -> ShmListener:
    uri = DataUri("shm", path=f"{folder}/data.sock", want_data=7).replace(**changes)
    return ShmListener(uri, Limits(), frozenset())


def test_a_new_listener(tmp_path: Path) -> None:
    listener = make_listener(tmp_path)
    assert listener.uri.path == f"{tmp_path}/data.sock"
    assert listener.request_tags == {7: BodyType.OFFSETS}
    assert len(listener.uri.remote_handle or b"") == 16
    assert listener._users == {0, os.geteuid()}
    assert listener.fileno() == listener.socket.fileno()
    assert not listener.socket.getblocking()
    assert listener.accept() is None
    assert listener.reject() is False
    second = make_listener(tmp_path / "other")
    assert second.uri.remote_handle != listener.uri.remote_handle
    for each in (listener, second):
        each.close()
        each.close()
        assert each.fileno() == -1


def test_a_listener_accepts_or_rejects_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(shm, "ShmChannel", lambda sock, limits, **o: made.append(o) or sock)
    listener = make_listener(tmp_path)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for client in clients:
        client.connect(listener.uri.path)
    with clients[0], clients[1]:
        assert listener.reject() is True
        assert clients[0].recv(1) == b""
        accepted: Any = listener.accept()
        accepted.send(b"x")
        assert clients[1].recv(1) == b"x"
        accepted.close()
    peer = f"process {os.getpid()} of user {os.geteuid()}"
    handle = listener.uri.remote_handle
    expected = {"region_tag": 7, "handle": handle, "staging": 16 << 10}
    assert made == [{"server": True, "peer": peer, **expected}]
    assert listener.accept() is None
    listener.close()


def test_a_client_that_has_left_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[OSError] = [OSError(errno.ENOTCONN, "not connected")]
    sockets: list[socket.socket] = []

    def make(sock: socket.socket, limits: Limits, **options: Any) -> Any:
        sockets.append(sock)
        if failures:
            raise failures.pop()
        return "channel"

    monkeypatch.setattr(shm, "ShmChannel", make)
    listener = make_listener(tmp_path)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for client in clients:
        client.connect(listener.uri.path)
    assert listener.accept() == "channel"
    assert sockets[0].fileno() == -1
    for each in (*clients, sockets[1]):
        each.close()
    listener.close()


@pytest.mark.parametrize("error", [BlockingIOError(), ConnectionAbortedError()])
def test_a_client_that_is_gone_before_it_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def accept() -> Any:
        raise error

    listener = make_listener(tmp_path)
    real = listener.socket
    monkeypatch.setattr(listener, "socket", SimpleNamespace(accept=accept))
    assert listener.accept() is None
    assert listener.reject() is False
    monkeypatch.setattr(listener, "socket", real)
    listener.close()


@pytest.mark.parametrize(
    ("error", "is_replaced"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError("timed out"), False),
        (PermissionError(), False),
        (None, False),
    ],
)
def test_only_a_socket_without_a_listener_is_replaced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    probes: type[Probe],
    error: OSError | None,
    is_replaced: bool,
) -> None:
    first = make_listener(tmp_path)
    monkeypatch.setattr(probes, "error", error)
    probes.made.clear()
    if is_replaced:
        make_listener(tmp_path).close()
        assert probes.backlogs == [1024] * 2
    else:
        with pytest.raises(ConfigError, match="Address already in use") as caught:
            make_listener(tmp_path)
        assert caught.value.__traceback__ is not None  # it keeps the sockets alive
    assert len(probes.made) == 2
    assert all_closed()
    assert probes.timeouts == [1]
    first.close()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeoutError("timed out"), "no answer within 2.5 s"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (OSError("AF_UNIX path too long"), "AF_UNIX path too long"),
    ],
)
def test_a_server_that_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, probes: type[Probe], error: OSError, why: str
) -> None:
    monkeypatch.setattr(probes, "error", error)
    uri = DataUri("shm", path="/run/data.sock")
    with pytest.raises(ConnectError, match=f"cannot connect to shm:///run/data.sock: {why}") as c:
        find_transport(uri).connect(uri, ConnectOptions(timeout=2.5))
    assert c.value.__traceback__ is not None  # it keeps the socket alive
    assert len(probes.made) == 1
    assert all_closed()
    assert probes.timeouts == [2.5]


def test_a_reader_expects_what_its_uri_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(shm, "ShmChannel", lambda sock, limits, **o: sock.close() or made.append(o))
    listener = make_listener(tmp_path)
    find_transport(listener.uri).connect(listener.uri, ConnectOptions())
    path, handle = listener.uri.path, listener.uri.remote_handle
    expected = {"server": False, "peer": path, "region_tag": 7, "handle": handle, "device": None}
    assert made == [expected]
    listener.close()


def test_the_traits_of_the_scheme() -> None:
    traits = find_transport(DataUri("shm")).traits
    assert (traits.local_only, traits.leases_memory, traits.location_rank) == (True, True, 10)
    assert (traits.default_port, traits.encrypted) == (None, False)


def test_the_diagnosis_frees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", lambda name, flags: calls.append(flags) or 1000)
        patch.setattr(os, "close", calls.append)
        assert find_transport(DataUri("shm")).diagnose() == Diagnosis()
    assert calls == [os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING, 1000]
