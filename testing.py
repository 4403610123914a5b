"""Start a ``splitarrow serve`` process for a test, signal it and stop it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from .errors import SplitArrowError, UsageError

__all__ = ["Daemon"]

_POLL_SECONDS = 0.01
_LOG_TAIL = 2000
_COMMAND = (sys.executable, "-P", "-m", "splitarrow")
_FREE_PORT = re.compile(r":0(?=[/?]|$)")


class Daemon:
    """A daemon in its own process, as a user starts it.

    `splitarrow.serve` runs the same daemon in this process. Use this class for a test that needs
    a process: one that kills the server, measures its memory or reads from it under another
    event loop.

    Entering the context starts the daemon and waits until it is ready; leaving it stops the
    daemon. If the block raises, the end of the daemon's log becomes a note of the exception. A
    daemon that was stopped or killed can be started again, at the same ports.

    Parameters
    ----------
    datasets : mapping of str to path, optional
        The names of the datasets and the paths or URLs of their data.
    listen : sequence of str
        The URIs to listen on; port 0 selects a free port. Empty: whatever `arguments`,
        `environment` and the configuration file select.
    control : str, optional
        The URI of the control plane, as in ``grpc://127.0.0.1:0``. None disables it.
    upstream : str, optional
        The control plane that the daemon relays. It then runs ``splitarrow relay``.
    arguments : sequence of str
        More arguments of ``splitarrow serve``.
    environment : mapping, optional
        Variables to add to the environment of this process.
    folder : path, optional
        The folder for the ready file and the log. By default a temporary folder, which `close`
        removes.
    timeout : float
        The longest time to wait for the daemon to become ready or to exit, in seconds.
    **settings
        Fields of `Settings`, as in ``compression="zstd"``, or ``writable=folder``.

    Examples
    --------
    >>> import splitarrow
    >>> from splitarrow.testing import Daemon
    >>> with Daemon({"trips": "trips.arrow"}) as daemon:  # doctest: +SKIP
    ...     with splitarrow.open(daemon.uri("trips")) as stream:
    ...         daemon.kill()
    ...         stream.read_all()
    Traceback (most recent call last):
    splitarrow.errors.ConnectionLostError: the connection ended before the stream did
    """

    def __init__(
        self,
        datasets: Mapping[str, str | os.PathLike[str]] | None = None,
        *,
        listen: Sequence[str] = ("tcp://127.0.0.1:0",),
        control: str | None = None,
        upstream: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        **settings: Any,
    ) -> None:
        self.timeout = timeout
        self._listen = list(listen)
        self._control = control
        self._arguments = [
            *(["serve"] if upstream is None else ["relay", upstream]),
            *(f"{name}={os.fspath(path)}" for name, path in (datasets or {}).items()),
            *_list_options(settings),
            *arguments,
        ]
        self._environment = {**os.environ, **(environment or {})}
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="splitarrow-daemon-")
            folder = self._temporary.name
        self._folder = Path(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: dict[str, Any] | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start the process.

        Started again, the daemon binds the ports that it had before.

        Parameters
        ----------
        wait : bool
            Whether to wait until the daemon is ready. If not, call `wait_ready` later.

        Raises
        ------
        UsageError
            If the daemon is running.
        SplitArrowError
            If the daemon exits before it is ready, or is not ready within `timeout` seconds. The
            message ends with the daemon's log.
        """
        if self.is_running:
            raise UsageError(f"the daemon is already running, as process {self.pid}")
        self._ready = None
        self.ready_file.unlink(missing_ok=True)
        command = [*_COMMAND, *self._arguments, *_list_options({"listen": self._listen})]
        command += _list_options({"control": self._control, "ready_file": self.ready_file})
        with self.log_file.open("ab") as log:
            # In its own session, the daemon gets no Ctrl-C from the terminal: this process
            # decides when it ends.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise

    def wait_ready(self) -> None:
        """Wait until every listener is bound; see `start` for the errors."""
        process = self._require_process()
        deadline = time.monotonic() + self.timeout
        while not self.ready_file.exists():
            if process.poll() is not None:
                raise self._make_error(f"exited with status {process.returncode}")
            if time.monotonic() > deadline:
                raise self._make_error(f"was not ready after {self.timeout:g} s")
            time.sleep(_POLL_SECONDS)
        ready: dict[str, Any] = json.loads(self.ready_file.read_text())
        self._ready = ready
        # Held for a restart. Several listeners may share a scheme, so they pair up by position.
        if len(ready["listen"]) == len(self._listen):
            self._listen = [*map(_insert_bound_port, self._listen, ready["listen"])]
        if self._control is not None and ready["control"] is not None:
            self._control = _insert_bound_port(self._control, ready["control"])

    def send_signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the process, unless it has exited."""
        self._require_process().send_signal(number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process exits, and return its exit status; -N means signal N.

        Raises
        ------
        SplitArrowError
            If it does not exit within `timeout` seconds, by default those of the constructor.
        """
        seconds = self.timeout if timeout is None else timeout
        try:
            return self._require_process().wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._make_error(f"did not exit within {seconds:g} s") from None

    def stop(self, timeout: float | None = None) -> int:
        """Drain the daemon with SIGTERM, wait until it exits, and return its exit status."""
        self.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        process = self._require_process()
        process.kill()
        process.wait()

    def close(self) -> None:
        """Stop the daemon if it is running, and remove its temporary folder. Idempotent.

        A daemon that does not exit within `timeout` seconds is killed.
        """
        try:
            if self.is_running:
                self.stop()
        finally:
            if self.is_running:
                self.kill()
            if self._temporary is not None:
                self._temporary.cleanup()

    def __enter__(self) -> Daemon:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and (tail := self._read_log_tail()):
            error.add_note(f"the daemon's log ends with:\n{tail}")
        self.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._require_process().pid

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not exited."""
        return self._process is not None and self._process.poll() is None

    @property
    def ready_file(self) -> Path:
        """The ready file. It exists while the daemon serves."""
        return self._folder / "ready.json"

    @property
    def log_file(self) -> Path:
        """The file that standard output and standard error of every start are appended to."""
        return self._folder / "log.txt"

    @property
    def ready(self) -> dict[str, Any]:
        """The ready file: ``pid``, ``control``, ``http``, ``listen`` and ``datasets``.

        Raises
        ------
        UsageError
            If the daemon has not become ready yet.
        """
        if self._ready is None:
            raise UsageError("the daemon is not ready: call start() or wait_ready()")
        return self._ready

    @property
    def listen(self) -> list[str]:
        """The URIs that are bound."""
        return self.ready["listen"]

    @property
    def control_uri(self) -> str:
        """The URI of the control plane.

        Raises
        ------
        UsageError
            If the daemon has no control plane.
        """
        uri = self.ready["control"]
        if uri is None:
            raise UsageError("the daemon has no control plane: pass control='grpc://127.0.0.1:0'")
        return uri

    @property
    def http_uri(self) -> str:
        """The URI of the HTTP listener.

        Raises
        ------
        UsageError
            If the daemon has no HTTP listener.
        """
        uri = self.ready["http"]
        if uri is None:
            raise UsageError("the daemon has no HTTP listener: pass http='http://127.0.0.1:0'")
        return uri

    def uri(self, name: str, scheme: str | None = None) -> str:
        """Return the URI of a dataset.

        Parameters
        ----------
        name : str
            The dataset.
        scheme : str, optional
            The transport; by default that of the first listener.

        Raises
        ------
        UsageError
            If the ready file lists no such dataset, or the daemon has no listener of the scheme.
        """
        uris: dict[str, str] = self.ready["datasets"].get(name, {})
        for found, uri in uris.items():
            if scheme in (None, found):
                return uri
        raise UsageError(f"the daemon has no URI for {name!r} over {scheme or 'any transport'}")

    def log(self) -> str:
        """Return the standard output and standard error of the process so far."""
        try:
            return self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _require_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise UsageError("the daemon has not been started: call start()")
        return self._process

    def _make_error(self, problem: str) -> SplitArrowError:
        tail = self._read_log_tail() or "(empty)"
        return SplitArrowError(f"the daemon {problem}; its log ends with:\n{tail}")

    def _read_log_tail(self) -> str:
        return self.log()[-_LOG_TAIL:].strip()


def _list_options(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command line options for settings."""
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif isinstance(value, (list, tuple)):
            for each in cast(Sequence[Any], value):
                yield from (option, str(each))
        elif value is not None and value is not False:
            yield from (option, str(value))


def _insert_bound_port(uri: str, bound: str) -> str:
    """Return a listener's URI with the port that it is bound to, in place of port 0."""
    port = re.search(r":(\d+)(?=[/?]|$)", bound)
    return uri if port is None else _FREE_PORT.sub(port.group(), uri, count=1)
