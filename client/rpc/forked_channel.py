"""The control plane for a process that was forked while its parent used gRPC.

gRPC can wait forever in such a process. One process beside it makes the calls of all its channels,
and returns their responses. Data streams do not use gRPC, and are read by the forked process.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.managers import BaseManager
from typing import Any

from ...errors import ConnectError, ConnectionLostError
from ...formats.arrow.numpy_arrays import prevent_pandas_import
from .channel import DatasetHold, FlightChannel

_PROGRAM = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from splitarrow.client.rpc.forked_channel import run_calls
run_calls()
"""
_READY = b"\n"


class _CallingChannel(FlightChannel):
    """A channel in the process that makes the calls."""

    def collect(self, *arguments: Any) -> list[bytes]:
        """Return the responses of `send_stream`."""
        return list(self.send_stream(*arguments))


class _Calls(BaseManager):
    """The process that makes the calls, for both processes."""


_Calls.register(
    "open_channel",
    _CallingChannel,
    exposed=["send_unary", "collect", "send_hold", "close"],
    method_to_typeid={"send_hold": "hold"},
)
_Calls.register("hold", DatasetHold, exposed=["release"], create_method=False)

_lock = threading.Lock()
_running: tuple[int, Any, Any] | None = None
"""The process that uses the calls, the `_Calls`, and the process that makes them."""


def _find_calls() -> Any:
    """Return the `_Calls` of this process, and start them if there are none."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid() or _running[2].poll() is not None:
            address, key = f"\0splitarrow-{secrets.token_hex(16)}", secrets.token_bytes(32)
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(pickle.dumps(sys.path) + pickle.dumps((address, key)))
                process.stdin.flush()
            if process.stdout.read(1) != _READY:
                raise ConnectError(
                    "the process that calls the control plane ended with status "
                    f"{process.wait()}; its standard error names the reason"
                )
            calls = _Calls(address, key)
            calls.connect()
            _running = os.getpid(), calls, process
        return _running[1]


def run_calls() -> None:
    """Make the calls of the process that standard input belongs to, until that process ends."""
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prevent_pandas_import()
    address, key = pickle.load(sys.stdin.buffer)
    server = _Calls(address, key).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(output, _READY)
    sys.stdin.buffer.read()
    os._exit(0)


class ForkedChannel(FlightChannel):
    """A `FlightChannel` whose calls are made by another process. It has no DoGet and no DoPut."""

    def _open(self) -> None:
        self.plans_by_do_get = False
        calls = _find_calls()
        # Each call has its token: the source may not work in another process.
        options = None, self.tls, self._timeout, self._connect_timeout
        self._calls = self._run(calls.open_channel, self.uri, *options)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (EOFError, OSError) as error:
            raise ConnectionLostError(
                f"the process that calls {self.address} has ended: {error}"
            ) from None

    def send_unary(
        self,
        token: str | None,
        method: str,
        message: bytes,
        dataset: str | None,
        timeout: float | None,
        repeats: int,
    ) -> bytes:
        """Call a method that has one response; see `FlightChannel.call_unary`."""
        self._check_open()
        limit = self.call_limit(timeout)
        return self._run(self._calls.send_unary, token, method, message, dataset, limit, repeats)

    def send_stream(
        self,
        token: str | None,
        method: str,
        message: bytes,
        dataset: str | None,
        timeout: float | None,
        repeats: int,
        wait: bool,
        max_bytes: int,
    ) -> Iterator[bytes]:
        """Call a method that streams its responses; see `FlightChannel.call_stream`."""
        self._check_open()
        limits = self.call_limit(timeout), repeats, wait, max_bytes
        yield from self._run(self._calls.collect, token, method, message, dataset, *limits)

    def send_hold(self, token: str | None, name: str) -> Any:
        """Hold a dataset; see `FlightChannel.hold_dataset`."""
        self._check_open()
        return self._run(self._calls.send_hold, token, name)

    def close(self) -> None:
        """Close the channel. Idempotent."""
        if not self._closed:
            self._closed = True
            with suppress(ConnectionLostError):
                self._run(self._calls.close)
