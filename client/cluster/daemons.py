"""The daemons of a cluster: connections on demand, and calls to all of them at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from ...errors import ClosedError, NotFoundError, SplitArrowError, UsageError
from ...protocol.uri import DataUri
from ...transport.tls_options import TlsOptions
from ..dataset.client import Client

_MAX_THREADS = 32
_RECONNECT_TIMEOUT = 2.0
"""The longest time limit to connect to a daemon after the first attempt, in seconds."""
T = TypeVar("T")


class DaemonConnection:
    """A connection to one daemon, which is made when it is needed.

    The parameters are those of `Client`.
    """

    def __init__(
        self,
        uri: DataUri,
        token: str | None,
        *,
        tls: TlsOptions | None,
        connect_timeout: float,
        timeout: float,
    ) -> None:
        self.address = uri.address
        """The control plane, as scheme, host and port."""
        self.is_local = _is_local(uri.host)
        """Whether the daemon runs on this host."""
        self._uri = uri
        self._token = token
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._closed = False

    def client(self) -> Client:
        """Return the client of the daemon; connect if there is none yet.

        Raises
        ------
        ConnectError
            If the daemon does not respond.
        """
        with self._lock:
            if self._closed:
                raise ClosedError(f"the client of {self.address} is closed")
            if self._client is None:
                connect_timeout = self._connect_timeout
                self._connect_timeout = min(connect_timeout, _RECONNECT_TIMEOUT)
                self._client = Client(
                    self._uri,
                    self._token,
                    tls=self._tls,
                    connect_timeout=connect_timeout,
                    timeout=self._timeout,
                )
            return self._client

    def close(self) -> None:
        """Close the connection, if there is one. Idempotent."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()


class DaemonPool:
    """Calls all daemons of a cluster at once. Safe to use from several threads.

    Parameters
    ----------
    connections : sequence of DaemonConnection
        The daemons. The pool closes them.
    """

    def __init__(self, connections: Sequence[DaemonConnection]) -> None:
        self.connections = {connection.address: connection for connection in connections}
        """The daemons by their addresses."""
        self.failures: dict[str, SplitArrowError] = {}
        """The daemons that failed in the last call, and their errors. One that does not have
        what the call names has not failed."""
        self._executor = ThreadPoolExecutor(
            min(len(connections), _MAX_THREADS), thread_name_prefix="splitarrow-cluster"
        )
        self._closed = False

    def call_all(self, function: Callable[[Client], T]) -> dict[str, T | SplitArrowError]:
        """Call a function with the client of each daemon; return the results or the errors.

        Raises
        ------
        UsageError
            If the function raises it: the arguments are then invalid at every daemon.
        ClosedError
            If the pool is closed.
        """
        if self._closed:
            raise self._closed_error()

        def call(connection: DaemonConnection) -> T | SplitArrowError:
            try:
                return function(connection.client())
            except UsageError:
                raise
            except SplitArrowError as error:
                return error

        try:
            futures = {
                address: self._executor.submit(copy_context().run, call, connection)
                for address, connection in self.connections.items()
            }
        except RuntimeError as error:
            # Another thread closed the pool meanwhile.
            raise self._closed_error() from error
        results = {address: future.result() for address, future in futures.items()}
        errors = select_errors(results)
        self.failures = {
            address: error
            for address, error in errors.items()
            if not isinstance(error, NotFoundError)
        }
        return results

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the client of {','.join(self.connections)} is closed")

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        self._executor.shutdown(wait=False)
        for connection in self.connections.values():
            connection.close()


def select_errors(results: Mapping[str, object]) -> dict[str, SplitArrowError]:
    """Return the errors among the results of `DaemonPool.call_all`."""
    return {
        address: result
        for address, result in results.items()
        if isinstance(result, SplitArrowError)
    }


def _is_local(host: str) -> bool:
    """Return whether a host name denotes this host, without a DNS query."""
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
