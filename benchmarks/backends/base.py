"""The interface of a backend: a server of one file, and a client that reads it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from ..consumer import Consumer
from ..dataset import Dataset


class Backend(Protocol):
    """One way that batches can come from a server to a client.

    The object exists in the processes of the runner, the server and the client alike; making it
    imports nothing heavy. What goes wrong may raise any exception.
    """

    name: str
    """What it is called in the report."""
    summary: str
    """What it is, in one line."""
    in_process: bool
    """Whether server and client are one process: the client's."""

    def unavailable(self) -> str | None:
        """Return why it cannot run here, or None if it can."""
        ...

    def serve(self, dataset: Dataset) -> AbstractContextManager[str]:
        """Serve a file from this process, on threads of its own, while the context lasts.

        The context's value is the address for `read`.
        """
        ...

    def read(self, address: str, consumer: Consumer, *, validate: str | None = None) -> None:
        """Connect, read the whole file once, hand it to `consumer`, and disconnect.

        Parameters
        ----------
        address : str
            What `serve` said.
        consumer : Consumer
            Takes the batches; or the table, where its `whole` is set.
        validate : {"full", "cheap", "off"}, optional
            How batches are checked, where the backend can do that.
        """
        ...
