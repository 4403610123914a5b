"""Imports the product on top of the simulated clock, network and disk.

Whoever imports this module can no longer use the real ones.
"""

# ruff: noqa: E402
from __future__ import annotations

# Libraries that make subclasses of what is replaced come first.
import concurrent.futures.thread
import gc
import http.client
import http.server
import importlib
import logging.handlers
import multiprocessing.connection
import os
import queue
import random
import secrets
import shutil
import socketserver
import ssl
import tempfile
import urllib.request
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio.from_thread
import grpc
import h2.connection
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pydantic_settings

from . import clock, disk, network

clock.install()
network.install()
disk.install()

import splitarrow
from splitarrow.client.rpc import channel as client_channel
from splitarrow.client.rpc import errors
from splitarrow.client.stream import format_choice, remote_bodies
from splitarrow.filters import encode_filter
from splitarrow.protocol.messages import FrameRun
from splitarrow.publication import version_store
from splitarrow.server import control, daemon, listeners, report, session, usage
from splitarrow.server.bodies import FrameWriter
from splitarrow.server.catalog import published
from splitarrow.server.shares import MemoryShare
from splitarrow.server.uploads import publication
from splitarrow.transport import grpc_usage, sockets, tcp
from splitarrow.transport.memory import files

from .clock import World
from .cluster import grant_memory
from .grpc_client import Channel
from .processes import PerProcess

IMPORTED = (
    *(concurrent.futures.thread, http.client, http.server, logging.handlers, ssl, shutil),
    *(multiprocessing.connection, queue, socketserver, tempfile, urllib.request, anyio.from_thread),
    *(grpc, h2.connection, pc, ds, pydantic_settings, control, sockets),
)


class _Datetime(datetime):
    """The clock of `datetime`."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.fromtimestamp(clock._wall_time(), tz or UTC)


_send = FrameWriter.send


async def _send_mangled(writer: Any, frames: Any) -> None:
    """Send the frames of a stream in another order, and some twice, as UCX may deliver them."""
    network_now, choose = network.Network.current, World.current.random
    is_shared = writer._channel.capabilities.offset_bodies  # its regions are announced in order
    if network_now.mangle_share and not is_shared and not isinstance(frames, FrameRun):
        frames = list(frames)
        if len(frames) > 1 and choose.random() < network_now.mangle_share:
            if choose.random() < 0.5:
                frames.insert(choose.randrange(len(frames)), choose.choice(frames))
            else:
                choose.shuffle(frames)
    await _send(writer, frames)


def _draw_bytes(count: int | None = None) -> bytes:
    return World.current.random.randbytes(32 if count is None else count)


def _open_channel(uri: Any, tls: Any, connect_timeout: float) -> Channel:
    return Channel(uri.host, uri.port, connect_timeout)


async def _wait_for_stop(_watcher: Any, _folders: Any, stop: anyio.Event) -> None:
    await stop.wait()


def _make_idle_sockets() -> tcp.IdleSockets:
    return tcp.IdleSockets("splitarrow-tcp-idle", 30.0, most=16, most_alike=8)


def prepare() -> None:
    """Replace what the product takes from the machine, and what it keeps for each process."""
    # A run that compiled a module would differ from those that find it compiled.
    for name in (*_list_modules(), "splitarrow.transport.shm", "encodings.ascii"):
        importlib.import_module(name)
    encode_filter("n < 1", pa.schema({"n": pa.int64()}))  # it imports the dialect
    secrets.token_bytes = _draw_bytes  # pyright: ignore[reportAttributeAccessIssue]
    secrets.token_hex = lambda count=None: _draw_bytes(count).hex()
    os.urandom = _draw_bytes  # pyright: ignore[reportAttributeAccessIssue]
    uuid.uuid4 = lambda: uuid.UUID(bytes=_draw_bytes(16), version=4)
    random.uniform = lambda a, b: World.current.random.uniform(a, b)
    os.sched_getaffinity = lambda _=0: {0, 1}
    patches: list[tuple[Any, str, Any]] = [
        (client_channel, "_open_channel", _open_channel),
        (
            client_channel,
            "GRPC_USAGE",
            PerProcess("grpc", lambda: grpc_usage.GrpcUsage(frozenset, True)),
        ),
        (tcp, "IDLE_SOCKETS", PerProcess("idle sockets", _make_idle_sockets)),
        (sockets, "_early", PerProcess("early", dict)),
        (format_choice, "CHOOSER", PerProcess("chooser", format_choice.FormatChooser)),
        (errors, "_speaks_tls", lambda uri: False),
        (FrameWriter, "send", _send_mangled),
        (remote_bodies, "_SENDER", PerProcess("lease returns", remote_bodies._Sender)),
        (version_store, "datetime", _Datetime),
        (publication, "datetime", _Datetime),
        (MemoryShare, "grant", grant_memory),
        # The kernel reports no changes here. The watcher polls as well.
        (published.VersionWatcher, "_watch_folders", _wait_for_stop),
        # Their values would depend on the machine.
        (session, "read_resident_bytes", lambda: 0),
        (report, "read_resident_bytes", lambda: 0),
        (session, "return_memory", lambda: None),
        (daemon, "measure_host_memory", lambda: 8 << 30),
        (usage, "measure_host_memory", lambda: 8 << 30),
        (listeners.Descriptors, "capacity", property(lambda self: 1000)),
        # Nothing waits to write to a served file: looking for it would only take time.
        (session, "_WRITER_POLL_SECONDS", 60.0),
        # Leases of files would be those of this process.
        (files, "take_file_lease", lambda descriptor: None),
        (files, "drop_file_lease", lambda descriptor: None),
        (files, "holds_file_lease", lambda descriptor: True),
    ]
    for module, name, value in patches:
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)
    logger = logging.getLogger("splitarrow")
    logger.handlers[:] = [_Recorder()]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    _number_futures()
    concurrent.futures.thread._global_shutdown_lock = clock.Lock()  # pyright: ignore
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    gc.disable()


def _list_modules() -> list[str]:
    """Return the modules that the product imports when it needs them."""
    root = Path(splitarrow.__file__).parent
    found = [
        "splitarrow." + ".".join(path.relative_to(root).with_suffix("").parts)
        for folder in ("client", "publication", "relay", "server", "formats", "filters", "protocol")
        for path in sorted((root / folder).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    left_out = ("vortex", "openapi", "device", "http", "polars", "otel", "delta", "spans", "geo")
    return [name for name in found if not any(part in name for part in left_out)]


def _number_futures() -> None:
    """Order futures by a number, because their addresses differ from run to run."""
    Future, first = concurrent.futures.Future, concurrent.futures.Future.__init__

    def begin(self: Any) -> None:
        first(self)
        self._number = World.current.next_id()

    Future.__init__ = begin
    Future.__hash__ = lambda self: self._number  # pyright: ignore
    # `as_completed` takes the locks of its futures in the order of their identities.
    concurrent.futures._base.id = lambda future: future._number  # pyright: ignore


_KNOWN_FIELDS = frozenset(vars(logging.makeLogRecord({})))


class _Recorder(logging.Handler):
    """Adds what the product logs to the story. A traceback lets the run fail."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: text for name, text in vars(record).items() if name not in _KNOWN_FIELDS}
        details = " ".join(f"{name}={text}" for name, text in fields.items())
        World.current.record(f"{record.levelname.lower()}: {record.msg} {details}")
        if record.exc_info and record.exc_info[1] is not None:
            World.current.fail(record.exc_info[1])
