"""A `Daemon` starts ready, reports its addresses, and leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.waiting import wait_until
from splitarrow.errors import SplitArrowError, UsageError
from splitarrow.testing import Daemon

TABLE = pa.table({"n": [1, 2, 3]})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Arrow IPC file with `TABLE`."""
    path = tmp_path_factory.mktemp("data") / "numbers.arrow"
    with pa.ipc.new_file(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE)
    return path


@pytest.fixture
def daemon(path: Path) -> Iterator[Daemon]:
    """A running daemon that serves `TABLE` as ``numbers``."""
    with Daemon({"numbers": path}, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def test_a_started_daemon_serves_its_datasets(daemon: Daemon) -> None:
    assert daemon.is_running
    assert daemon.ready["pid"] == daemon.pid
    assert [uri.partition(":")[0] for uri in daemon.listen] == ["tcp"]
    with splitarrow.open(daemon.uri("numbers")) as stream:
        assert stream.read_all() == TABLE
    with splitarrow.connect(daemon.control_uri) as client:
        assert client.read("numbers").read_all() == TABLE


def test_stop_drains_and_returns_the_exit_status(daemon: Daemon) -> None:
    assert daemon.stop() == 0
    assert not daemon.is_running
    assert not daemon.ready_file.exists()


def test_kill_leaves_no_process(daemon: Daemon) -> None:
    daemon.kill()
    assert daemon.wait() == -signal.SIGKILL


def test_a_restarted_daemon_has_the_same_addresses(daemon: Daemon) -> None:
    uri, control, pid = daemon.uri("numbers"), daemon.control_uri, daemon.pid
    daemon.kill()
    daemon.start()
    assert (daemon.uri("numbers"), daemon.control_uri) == (uri, control)
    assert daemon.pid != pid
    with splitarrow.open(uri) as stream:
        assert stream.read_all() == TABLE


def test_settings_arguments_and_environment_reach_the_process(path: Path) -> None:
    with Daemon(
        listen=["tcp://127.0.0.1:0", "tcp://127.0.0.1:0?stream=body"],
        arguments=[f"n={path}"],
        environment={"SPLITARROW_LOG_FORMAT": "json"},
        batch_rows=1,
        insecure=True,
        shm_trust=False,
        writable=None,
    ) as daemon:
        assert len(daemon.listen) == 2
        with splitarrow.open(daemon.uri("n", "tcp")) as stream:
            assert [batch.num_rows for batch in stream] == [1, 1, 1]
        wait_until(lambda: '"event": "serving"' in daemon.log())  # it follows the ready file


def test_a_daemon_that_cannot_start_raises_with_its_log() -> None:
    daemon = Daemon({"x": "nowhere.arrow"})
    with pytest.raises(SplitArrowError, match=r"exited with status 1; .*\n.*nowhere\.arrow"):
        daemon.start()
    daemon.close()


def test_a_daemon_that_is_not_ready_in_time_is_killed(path: Path) -> None:
    with (
        pytest.raises(SplitArrowError, match=r"was not ready after 0\.001 s"),
        Daemon({"x": path}, timeout=0.001),
    ):
        pass


def test_an_error_inside_the_context_gets_the_log_as_a_note(path: Path) -> None:
    def fail_with_a_daemon() -> None:
        with Daemon({"x": path}, log_format="json") as daemon:
            wait_until(lambda: "serving" in daemon.log())  # it follows the ready file
            raise RuntimeError

    with pytest.raises(RuntimeError) as caught:
        fail_with_a_daemon()
    assert "serving" in caught.value.__notes__[0]


def test_the_temporary_folder_is_removed_and_a_given_one_is_kept(
    path: Path, tmp_path: Path
) -> None:
    with Daemon({"x": path}) as daemon:
        folder = daemon.log_file.parent
    assert not folder.exists()
    with Daemon({"x": path}, folder=tmp_path) as daemon:
        pass
    assert "serving" in daemon.log()


def test_misuse_is_explained(path: Path) -> None:
    daemon = Daemon({"x": path})
    with pytest.raises(UsageError, match="call start"):
        print(daemon.pid)
    with pytest.raises(UsageError, match="not ready"):
        daemon.uri("x")
    with daemon:
        with pytest.raises(UsageError, match="already running"):
            daemon.start()
        with pytest.raises(UsageError, match="no URI for 'y' over any transport"):
            daemon.uri("y")
        with pytest.raises(UsageError, match="no URI for 'x' over shm"):
            daemon.uri("x", "shm")
        with pytest.raises(UsageError, match="no control plane"):
            print(daemon.control_uri)
    daemon.close()
