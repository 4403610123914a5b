"""A server in this process: the daemon on its own thread, for tests and notebooks."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, cast

import anyio

from ..errors import UsageError
from ..formats.arguments import check_path, check_text, list_items
from ..formats.text import describe_lines, format_count, html_list
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..publication.patterns import name_location
from .catalog.catalog import open_catalog
from .config import EMBEDDED_LISTEN, load_settings
from .config.settings import ServeArguments
from .daemon import Daemon, open_http_listener

if TYPE_CHECKING:
    from .http.listener import HttpListener

_MAX_NAMES = 5
"""The number of datasets that the representation of a server names."""
_EXIT_SECONDS = 2.0
"""How long the end of the process waits for the server, in seconds."""


class _Readiness(Future[None]):
    """Completes when the daemon is ready. It is an `anyio.abc.TaskStatus`."""

    def started(self, value: object = None) -> None:
        del value
        self.set_result(None)


class Server:
    """A running server, as `serve` returns it.

    It is a context manager. Leaving the context drains the server; leaving it with an exception
    cuts the running streams. So does the end of the process, which never waits for readers. In
    a forked process, `close` leaves the server of the parent alone.
    """

    def __init__(self, daemon: Daemon, http: HttpListener | None = None) -> None:
        self._daemon = daemon
        self._http = http
        self._pid = os.getpid()
        self._ended: Future[None] = Future()
        self._stack = ExitStack()
        self._stack.callback(daemon.catalog.close)
        if http is not None:
            self._stack.enter_context(http)
            daemon.http_uri = http.uri.address
        ready = _Readiness()
        try:
            threading.Thread(
                target=self._run, args=(ready,), name="splitarrow-server", daemon=True
            ).start()
            wait((ready, self._ended), return_when=FIRST_COMPLETED)
            if self._ended.done():
                self._ended.result()
            # It runs before gRPC and UCX are shut down, which were imported earlier.
            atexit.register(self._stop_at_exit)
            if http is not None:
                http.attach(daemon.context)
        except BaseException:
            self._stack.close()
            raise
        self._closed = False

    @property
    def listen(self) -> list[str]:
        """The URIs that the server listens on."""
        return [str(uri) for uri in self._daemon.uris]

    @property
    def control_uri(self) -> str | None:
        """The URI of the control plane, or None if the server has none."""
        return self._daemon.control_uri

    @property
    def http_uri(self) -> str | None:
        """The URI of the HTTP listener, or None if the server has none."""
        return self._daemon.http_uri

    def uri(self, name: str, scheme: str | None = None, stream: str | None = None) -> str:
        """Return the URI of a dataset, with a ticket.

        Parameters
        ----------
        name : str
            The dataset.
        scheme : str, optional
            The transport; by default that of the first listener.
        stream : {"both", "metadata", "body"}, optional
            The streams that the listener carries. By default, both are preferred.

        Raises
        ------
        NotFoundError
            If the dataset does not exist.
        UsageError
            If the server has no such listener.
        """
        return self._daemon.uri(check_text("name", name), scheme, stream)

    def stats(self) -> dict[str, int]:
        """Return current values and totals since the start, by name.

        ``streams`` and ``leases`` are open now; ``bytes_sent`` and ``rows`` are totals.
        """
        return self._daemon.stats()

    def add(self, name: str, source: Any) -> None:
        """Add a dataset; see `serve` for the sources.

        Raises
        ------
        ConfigError
            If the name is invalid or taken.
        DatasetError
            If the dataset cannot be read.
        UsageError
            If the source has an unsupported type.
        """
        self._daemon.catalog.add(name, source)

    def remove(self, name: str) -> None:
        """Remove a dataset. Its running streams continue.

        Raises
        ------
        NotFoundError
            If the dataset does not exist.
        """
        self._daemon.catalog.remove(check_text("name", name))

    def close(self, *, drain: bool = True) -> None:
        """Stop the server. Idempotent.

        Parameters
        ----------
        drain : bool
            Whether running streams may finish, for up to ``drain_seconds``. If not, they are cut.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with self._stack:
            self._stop(drain=drain)
        atexit.unregister(self._stop_at_exit)

    def _run(self, ready: _Readiness) -> None:
        try:
            anyio.run(partial(self._daemon.run, task_status=ready))
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _stop(self, *, drain: bool, timeout: float | None = None) -> None:
        """Wait for the end of the daemon, at most `timeout` seconds; raise what it has raised."""
        with suppress(RuntimeError):  # its event loop has ended
            self._daemon.loop.call_soon_threadsafe(
                self._daemon.drain if drain else self._daemon.cut
            )
        self._ended.result(timeout)

    def _stop_at_exit(self) -> None:
        """Cut the streams; an error no longer has a caller."""
        if os.getpid() == self._pid:
            with suppress(Exception), self._stack:
                self._stop(drain=False, timeout=_EXIT_SECONDS)

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
        return describe_lines("Server", self._facts(), ", ".join(self._addresses()))

    def _repr_html_(self) -> str:
        return html_list("Server", self._facts(), self._addresses())

    def _facts(self) -> list[str]:
        if self._closed:
            return ["closed"]
        names = self._daemon.catalog.names()
        shown = ", ".join(map(repr, names[:_MAX_NAMES]))
        hidden = f", … {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        datasets = format_count(len(names), "dataset")
        streams = format_count(self.stats()["streams"], "open stream")
        return [f"{datasets} ({shown}{hidden})", streams]

    def _addresses(self) -> list[str]:
        control = [] if self.control_uri is None else [self.control_uri]
        return [*control, *(uri.address for uri in self._daemon.uris)]


_NAME = "table"
"""The name of a dataset that is served alone, and is not a path."""


def serve(
    datasets: Any,
    *,
    listen: str | Sequence[str] = EMBEDDED_LISTEN,
    control: str | None = None,
    http: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    **settings: Unpack[ServeArguments],
) -> Server:
    """Serve datasets from this process until the server is closed or the process ends.

    Parameters
    ----------
    datasets : mapping, dataset, or sequence of paths
        The datasets by name. A dataset is the path of an Arrow IPC file or stream, a Parquet file
        or a folder of those; the location of a published dataset; a pyarrow table, record batch
        or list of batches; or an object with ``__arrow_c_stream__``. Without a mapping, a path
        names its dataset: that of ``flights.arrow`` is ``flights``. Other data is ``table``.
    listen : str or sequence of str
        The URI, or the URIs, to listen on for readers. Port 0 selects a free port. By default,
        readers on this host connect over TCP, or over shared memory if the host supports it.
    control : str, optional
        The URI of the control plane, as in ``grpc://127.0.0.1:0``. None disables it.
    http : str, optional
        The URI of the HTTP listener for metrics, health checks and the status page, as in
        ``http://127.0.0.1:0``. It needs the extra ``http``. None disables it.
    limits : Limits
        Bounds on what readers and clients may send.
    **settings
        More settings, as in ``compression="zstd"``; see the page Settings.

    Returns
    -------
    Server
        A server that is listening.

    Raises
    ------
    ConfigError
        If a setting is wrong or an address cannot be bound.
    DatasetError
        If a dataset cannot be read.
    MissingExtraError
        If a setting needs an extra that is not installed.
    UsageError
        If a dataset has an unsupported type, or two paths give the same name.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> table = pyarrow.table({"n": [1, 2, 3]})
    >>> with splitarrow.serve({"numbers": table}) as server:
    ...     with splitarrow.open(server.uri("numbers")) as stream:
    ...         stream.read_all().num_rows
    3
    """
    listeners = tuple(
        [listen] if isinstance(listen, str) else list_items("listen", listen, "a URI or several")
    )
    chosen = load_settings(listen=listeners, control=control, http=http, **settings)
    with ExitStack() as stack:
        listener = open_http_listener(chosen)
        if listener is not None:
            stack.callback(listener.close)
        catalog = open_catalog(_name_datasets(datasets), chosen)
        stack.callback(catalog.close)
        daemon = Daemon(catalog, chosen, limits)
        daemon.bind()
        stack.pop_all()  # the server closes them from now on
    return Server(daemon, listener)


def _name_datasets(datasets: Any) -> Mapping[str, Any]:
    """Return datasets by name."""
    if isinstance(datasets, Mapping):
        return cast("Mapping[str, Any]", datasets)
    several = isinstance(datasets, (list, tuple))
    paths = cast("Sequence[Any]", datasets) if several else [datasets]
    if not paths or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        return {_NAME: datasets}
    named: dict[str, Any] = {}
    for path in paths:
        name = name_location(check_path("a dataset", path))
        if named.setdefault(name, path) is not path:
            raise UsageError(
                f"two datasets are named {name!r}: {named[name]} and {path}; pass a dict from "
                f"names to paths, as in serve({{{name!r}: {str(named[name])!r}, …}})"
            )
    return named
