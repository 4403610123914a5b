"""A dataset behind a control plane, as the driver plans with it and the tasks read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...client.connect import AnyClient, connect
from ...client.rpc.info import DatasetInfo
from ...protocol.request import Request
from ...transport.tls.options import TlsOptions
from ..options import Options


@dataclass(frozen=True, slots=True)
class RemoteDataset:
    """A dataset, where it is served, and the settings for reading it. Every task gets a copy."""

    uri: str
    """The URI of the control plane, or several URIs separated by commas."""
    name: str
    """The name of the dataset."""
    token: str | None = field(default=None, repr=False)
    """The token that authenticates the reader; None sends no token."""
    tls: TlsOptions | None = None
    """The TLS settings; None takes them from the environment."""
    transport: str = "auto"
    """The transport of the data. ``auto`` prefers shared memory on the daemon's host."""
    connect_timeout: float = 10.0
    """The longest time to connect, in seconds."""
    stall_timeout: float = 30.0
    """The longest time without data from a daemon, in seconds."""
    window_bytes: int = 32 << 20
    """The number of bytes that each task prefetches; 0 disables prefetching."""

    @classmethod
    def from_options(cls, options: Options) -> RemoteDataset:
        """Return the dataset that the options of a reader name.

        Raises
        ------
        UsageError
            If an option is missing or has a wrong value.
        """
        settings: dict[str, Any] = {
            "token": options.token(),
            "tls": options.tls(),
            "transport": options.text("transport"),
            "connect_timeout": options.seconds("connect_timeout"),
            "stall_timeout": options.seconds("stall_timeout"),
            "window_bytes": options.nbytes("window_bytes"),
        }
        return cls(
            options.require("uri", "grpc://host:8815"),
            options.text("path") or options.require("dataset", "flights"),
            **{name: value for name, value in settings.items() if value is not None},
        )

    def connect(self) -> AnyClient:
        """Connect to the control plane. Raises the errors of `splitarrow.connect`."""
        return connect(self.uri, self.token, tls=self.tls, connect_timeout=self.connect_timeout)

    def info(self, version: str | None = None) -> DatasetInfo:
        """Return the control plane's description of the dataset.

        Parameters
        ----------
        version : str, optional
            The version to describe. The default is the current version.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the daemon no longer has the version.
        """
        with self.connect() as client:
            return client.describe(Request(self.name, version=version or None))
