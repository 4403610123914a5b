"""``splitarrow fetch`` that fails: one clear line, the right status, nothing half-written."""

from __future__ import annotations

import http.server
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.cli import COMMAND, PATIENCE, Run, Served, Start, open_listener
from helpers.waiting import wait_until

URI = "tcp://127.0.0.1:{}?want_data=0x10000000001&ticket=table"
HALF = 3 << 20


def assert_fails(done: subprocess.CompletedProcess[str], status: int, *said: str) -> None:
    """Check the status, and that one line says what is expected."""
    assert done.stdout == ""
    assert done.stderr.startswith("splitarrow: error: ")
    assert done.stderr.count("\n") == 1
    for words in said:
        assert words in done.stderr
    assert done.returncode == status


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A file that is there before; every test checks that it stays, alone and as it was."""
    path = tmp_path / "out.arrow"
    path.write_text("before")
    return path


@pytest.fixture
def fails(run: Run, before: Path) -> Callable[..., None]:
    """Run a fetch that is to fail, into a file that is there already."""

    def fails(status: int, said: tuple[str, ...], *arguments: object, **options: Any) -> None:
        assert_fails(run("fetch", *arguments, "-o", before, **options), status, *said)
        assert os.listdir(before.parent) == [before.name]
        assert before.read_text() == "before"

    return fails


Fails = Callable[..., None]


def test_unknown_dataset(fails: Fails, served: Served) -> None:
    uri = served.uri("table").replace("ticket=table", "ticket=tabel")
    fails(1, ("NOT_FOUND", "'tabel'", "'table'"), uri)


def test_unknown_column(fails: Fails, served: Served) -> None:
    fails(1, ("NOT_FOUND", "'numbr'", "'number'"), served.uri("table"), "--columns", "numbr")


class Impatient(http.server.BaseHTTPRequestHandler):
    """Hangs up on a client that completes no request line."""

    timeout = 0.3

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to standard error."""


def test_an_http_server(fails: Fails) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Impatient) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            fails(1, ("without an answer",), URI.format(server.server_port))
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_speaks_first(fails: Fails) -> None:
    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"220 mail.example\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Greeter) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        try:
            uri = URI.format(server.server_address[1])
            fails(1, ("does not speak splitarrow: it answered b'220 mail",), uri)
        finally:
            thread.join()


def test_refused(fails: Fails) -> None:
    with open_listener() as listener:
        port = listener.getsockname()[1]
    fails(1, (f"cannot connect to tcp://127.0.0.1:{port}: Connection refused",), URI.format(port))


def test_unknown_host(fails: Fails) -> None:
    fails(
        1,
        ("cannot connect to tcp://host.invalid:1",),
        URI.replace("127.0.0.1", "host.invalid").format(1),
    )


def test_no_answer_to_the_call(fails: Fails) -> None:
    with open_listener(backlog=0) as listener, ExitStack() as stack:
        # The queue is full: the kernel ignores who calls next.
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        uri = URI.format(listener.getsockname()[1])
        fails(1, ("cannot connect", "no answer within 0.5 s"), uri, "--connect-timeout", "0.5")


def test_a_silent_server(fails: Fails) -> None:
    with open_listener() as listener:
        uri = URI.format(listener.getsockname()[1])
        fails(1, ("has been silent for 0.5 s",), uri, "--stall-timeout", "0.5")


def test_a_server_that_goes_silent(fails: Fails, served: Served, relay: Any) -> None:
    uri = served.uri("table", relay(HALF, cut=False))
    fails(1, ("has been silent for 0.5 s",), uri, "--stall-timeout", "0.5")


@pytest.mark.parametrize("limit", [8, 500, HALF])
def test_a_connection_that_breaks(fails: Fails, served: Served, relay: Any, limit: int) -> None:
    # The connection is closed, or reset because the request was not read.
    fails(1, ("; missing: ",), served.uri("table", relay(limit, cut=True)))


@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGINT,
        *(pytest.param(sent, marks=pytest.mark.slow) for sent in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_signal_ends_it_quietly(
    start: Start, served: Served, relay: Any, before: Path, sent: signal.Signals
) -> None:
    uri = served.uri("table", relay(HALF, cut=False))
    process = start("fetch", uri, "-o", before)
    wait_until(lambda: len(os.listdir(before.parent)) > 1, "the file to be begun")
    process.send_signal(sent)
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 128 + sent
    assert os.listdir(before.parent) == [before.name]
    assert before.read_text() == "before"


def test_a_stream_on_standard_output_that_breaks_cannot_pass_for_whole(
    served: Served, relay: Any
) -> None:
    # Relayed up to the end of a message: only then could the stream pass for one that ended.
    done = subprocess.run(
        [*COMMAND, "fetch", served.uri("table", relay(HALF, cut=True)), "-o", "-"],
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"splitarrow: error: ")
    with pa.ipc.open_stream(done.stdout) as reader:
        assert reader.read_next_batch().num_rows > 0
        with pytest.raises((pa.ArrowInvalid, OSError)):
            reader.read_all()


@pytest.mark.slow
def test_a_file_that_may_not_grow(run_process: Run, served: Served, before: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, HALF))

    done = run_process("fetch", served.uri("table"), "-o", before, preexec_fn=small_files)
    assert_fails(done, 1, "out.arrow: File too large")
    assert os.listdir(before.parent) == [before.name]
    assert before.read_text() == "before"


@pytest.mark.parametrize(
    "suffix",
    ["arrow", *(pytest.param(suffix, marks=pytest.mark.slow) for suffix in ("arrows", "parquet"))],
)
def test_a_full_disk(served: Served, tmp_path: Path, suffix: str) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*probe, "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("no mounts in user namespaces here")
    command = f"{shlex.join(COMMAND)} fetch '{served.uri('table')}' -o \"$PWD\"/out.{suffix}"
    script = f'mount -t tmpfs -o size=300k none "$1" && cd "$1" && {command}; echo $?; ls -A'
    done = subprocess.run(
        [*probe, script, "sh", str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "1\n"
    assert done.stderr == f"splitarrow: error: {tmp_path}/out.{suffix}: No space left on device\n"


@pytest.mark.parametrize(
    "more",
    [
        ["-o", "-"],
        *(
            pytest.param(more, marks=pytest.mark.slow)
            for more in (["--json", "--quiet"], ["--quiet"])
        ),
    ],
)
def test_a_full_standard_output(served: Served, more: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "fetch", served.uri("table"), *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    if more == ["--quiet"]:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        expected = "splitarrow: error: standard output: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, expected)


def test_a_folder_that_is_missing_or_forbidden(run: Run, served: Served, tmp_path: Path) -> None:
    done = run("fetch", served.uri("table"), "-o", "missing/out.arrow")
    assert_fails(done, 1, "missing/out.arrow: the folder missing does not exist")
    (tmp_path / "out.arrow").mkdir()
    done = run("fetch", served.uri("table"), "-o", "out.arrow")
    assert_fails(done, 1, "out.arrow: it exists and is not a file")
    done = run("fetch", served.uri("table"), "-o", "/proc/out.arrow")
    assert_fails(done, 1, "/proc/out.arrow: ")


def test_what_a_server_says_cannot_steer_the_terminal(run: Run, served: Served) -> None:
    uri = served.uri("table").replace("ticket=table", "ticket=%1b%5b31mred%0a")
    done = run("fetch", uri)
    assert_fails(done, 1, "NOT_FOUND")
    assert "\x1b" not in done.stderr


def test_debug_shows_where(run: Run) -> None:
    done = run("--debug", "fetch", URI.format(1))
    assert "Traceback" in done.stderr
    assert re.search(r"^splitarrow: error: cannot connect", done.stderr, re.MULTILINE)
    done = run("fetch", URI.format(1), env={**os.environ, "SPLITARROW_DEBUG": "1"})
    assert "Traceback" in done.stderr
