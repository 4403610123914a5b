"""What every transport is held to: a server on each scheme, and peers that follow a script."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest
import trustme

import splitarrow
from helpers.pki import TlsWithDefaults
from helpers.streams import source_messages
from splitarrow.protocol.frames import IncomingFrame, OutgoingFrame, ReceivedFrame
from splitarrow.protocol.splitter import SourceMessage, Splitter
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import blocking, registry
from splitarrow.transport.base import Channel, ListenOptions
from splitarrow.transport.registry import find_transport
from splitarrow.transport.tls_options import TlsOptions, TlsServerOptions

LISTEN = {
    "tcp": "tcp://127.0.0.1:0",
    "tcp+tls": "tcp+tls://127.0.0.1:0",
    "inproc": "inproc://",
    "shm": "shm://",
    "ucx": "ucx://127.0.0.1:0",
}
"""Where to listen for each scheme. A new transport is added here, and passes all that follows."""


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsWithDefaults:
    """TLS with a certificate for 127.0.0.1, of an authority that clients trust."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        folder / "server.pem"
    )
    return TlsWithDefaults(
        TlsOptions(ca_file=folder / "ca.pem"), TlsServerOptions(folder / "server.pem")
    )


@pytest.fixture(params=sorted(LISTEN))
def scheme(request: pytest.FixtureRequest) -> Iterator[str]:
    """The transport under test."""
    if request.param == "tcp+tls":
        with registry.override_transport(request.getfixturevalue("tls")):
            yield request.param
    else:
        yield request.param


@pytest.fixture
def address(scheme: str) -> str:
    """Where a server of that transport listens."""
    return LISTEN[scheme]


@pytest.fixture(scope="session")
def table() -> pa.Table:
    """A table of twelve batches: small ones, and some that are received straight into place."""
    sizes = [0, 1, 7, 100, 5_000, 1, 20_000, 3, 0, 64, 9_999, 2]
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("f", pa.float64())])
    batches: list[pa.RecordBatch] = []
    start = 0
    for size in sizes:
        numbers = range(start, start + size)
        columns = [
            pa.array(numbers, pa.int64()),
            pa.array([None if n % 5 == 0 else f"row {n}" for n in numbers], pa.string()),
            pa.array([n / 3 for n in numbers], pa.float64()),
        ]
        batches.append(pa.record_batch(columns, schema=schema))
        start += size
    return pa.Table.from_batches(batches, schema)


@pytest.fixture
def server(address: str, table: pa.Table) -> Iterator[splitarrow.Server]:
    """A server of that table on that transport, over one connection and over two."""
    listen = [address, f"{address}?stream=metadata", f"{address}?stream=body"]
    with splitarrow.serve({"data": table}, listen=listen) as running:
        yield running


Script = Callable[[Splitter, list[SourceMessage]], Sequence[OutgoingFrame]]
"""From a splitter and the messages of a table to the frames that a bad server sends."""


class ScriptedServer:
    """A server that accepts one reader, takes its request, sends what a script says, and stops."""

    def __init__(self, address: str, frames: Sequence[OutgoingFrame], *, leave: bool) -> None:
        uri = DataUri.parse(address).replace(want_data=1 << 40)
        self._listener = find_transport(uri).listen(uri, ListenOptions())
        self.uri = str(self._listener.uri.replace(ticket=b"data"))
        self._frames = frames
        self._leave = leave
        self._stop = threading.Event()
        self.request: list[IncomingFrame] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        channel: Channel | None = None
        poll = select.poll()
        poll.register(self._listener.fileno(), select.POLLIN)
        while channel is None and not self._stop.is_set():
            poll.poll(50)
            channel = self._listener.accept()
        if channel is None:
            return
        try:
            self.request = blocking.receive(channel, 10)
            assert isinstance(self.request[0], ReceivedFrame)
            blocking.send(channel, self._frames, 10)
            if not self._leave:
                self._stop.wait(30)
        except splitarrow.errors.TransportError:
            pass  # the reader has seen enough
        finally:
            channel.close()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self._stop.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def scripted(address: str, table: pa.Table) -> Callable[..., object]:
    """Make a context with the URI of a server that misbehaves as a script says."""

    @contextmanager
    def make(script: Script, *, leave: bool = True) -> Generator[str]:
        server = ScriptedServer(address, script(Splitter(), source_messages(table)), leave=leave)
        try:
            yield server.uri
        finally:
            server.close()

    return make
