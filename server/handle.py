"""A server inside this process, for tests and notebooks: the daemon on a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from anyio.from_thread import start_blocking_portal

from ..protocol.limits import DEFAULT_LIMITS, Limits
from .catalog.catalog import Catalog
from .config import load_settings
from .daemon import Daemon


class Server:
    """A running server. Made by `serve`; a context manager that drains when it is left."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stack = ExitStack()
        try:
            self._portal = self._stack.enter_context(
                start_blocking_portal(name="splitarrow-server")
            )
            self._done, _ = self._portal.start_task(daemon.run)
        except BaseException:
            self._stack.close()
            daemon.catalog.close()
            raise
        self._closed = False

    @property
    def listen(self) -> list[str]:
        """The addresses that are bound."""
        return [str(uri) for uri in self._daemon.uris]

    @property
    def control_uri(self) -> str | None:
        """The address of the control plane; None if it has none."""
        return self._daemon.control_uri

    def uri(self, name: str, scheme: str | None = None, stream: str | None = None) -> str:
        """Return the complete URI of a dataset; see `Daemon.uri`."""
        return self._daemon.uri(name, scheme, stream)

    def stats(self) -> dict[str, int]:
        """Return what is counted; see `Daemon.stats`."""
        return self._daemon.stats()

    def add(self, name: str, source: Any) -> None:
        """Add a dataset while the server runs."""
        self._daemon.catalog.add(name, source)

    def remove(self, name: str) -> None:
        """Take a dataset from the catalog; streams of it that run go on."""
        self._daemon.catalog.remove(name)

    def close(self, *, drain: bool = True) -> None:
        """Stop.

        Parameters
        ----------
        drain : bool
            Whether running streams may finish, up to ``drain_seconds``; otherwise they are cut.
        """
        if self._closed:
            return
        self._closed = True
        self._portal.call(self._daemon.drain if drain else self._daemon.cut)
        try:
            self._done.result()
        finally:
            self._stack.close()
            self._daemon.catalog.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(drain=error is None)

    def __repr__(self) -> str:
        state = "closed" if self._closed else ", ".join(uri.address for uri in self._daemon.uris)
        return f"<splitarrow.Server {state}>"


def serve(
    datasets: Mapping[str, Any],
    *,
    listen: Sequence[str] = ("tcp://127.0.0.1:0",),
    control: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    **settings: Any,
) -> Server:
    """Serve datasets from this process until the server is closed.

    Parameters
    ----------
    datasets : mapping
        Names, and what they stand for: the path of an Arrow IPC file or stream, a Parquet file,
        or a directory of those; a pyarrow table, record batch or list of batches; or anything
        with ``__arrow_c_stream__``.
    listen : sequence of str
        Where to listen; port 0 picks a free one.
    control : str, optional
        Where the control plane listens, as in ``grpc://127.0.0.1:0``; None: nowhere.
    limits : Limits
        Bounds on what readers may send.
    **settings
        Further fields of `ServerSettings`, such as ``compression="zstd"``.

    Returns
    -------
    Server
        It listens already.

    Raises
    ------
    ConfigError
        If a setting is wrong or an address cannot be bound.
    DatasetError
        If a dataset cannot be read.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> table = pyarrow.table({"n": [1, 2, 3]})
    >>> with splitarrow.serve({"numbers": table}) as server:
    ...     with splitarrow.open(server.uri("numbers")) as stream:
    ...         stream.read_all().num_rows
    3
    """
    chosen = load_settings(listen=tuple(listen), control=control, **settings)
    catalog = Catalog(datasets, chosen.open_object_cache())
    try:
        daemon = Daemon(catalog, chosen, limits)
        daemon.bind()
    except BaseException:
        catalog.close()
        raise
    return Server(daemon)
