"""The interface of a backend: a server of one file, and a client that reads it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from ..consumer import Consumer
from ..dataset import Dataset
from ..options import Validate


class Backend(Protocol):
    """One technique to transfer batches from a server to a client.

    The runner, the server and the client each have an instance in their process, so creating one
    must be cheap. All methods may raise any exception.
    """

    name: str
    """The name in the report."""
    summary: str
    """A description of one line."""
    in_process: bool
    """Whether the client's process also serves the file."""
    baseline: str | None
    """The name of the backend that the report compares it with; None for such a backend."""

    def unavailable_reason(self) -> str | None:
        """Return why the backend cannot run on this machine, or None if it can."""
        ...

    def serve(self, dataset: Dataset) -> AbstractContextManager[str]:
        """Serve a file from this process while the context lasts, on its own threads.

        The value of the context is the address for `read`.
        """
        ...

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Connect, read the whole file once, pass it to the consumer, and disconnect."""
        ...
