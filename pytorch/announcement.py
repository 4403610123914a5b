"""Announcing the order in which loaders open shards, to servers that cache them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import NamedTuple

from ..client.connect import AnyClient
from ..client.dataset.client import Client
from ..client.rpc.channel import limit_calls
from ..errors import SplitArrowError
from .plan import DatasetPlan

_SECONDS = 10.0
_MAX_ANNOUNCED = 65536
"""The shards that a server uses of an announcement."""


class Announcement(NamedTuple):
    """The order in which a loader opens the shards of one dataset."""

    client: AnyClient
    """The client that the loader reads with."""
    plan: DatasetPlan
    """The blocks of the dataset."""
    reader: str
    """A name of the loader, which is unique among those of the server."""
    list_blocks: Callable[[], Iterable[int]]
    """Returns the indices of the blocks that the loader reads, in order."""

    def send(self) -> None:
        """Announce the order if the server uses one; raise `SplitArrowError` if that fails."""
        if not isinstance(self.client, Client):
            return
        selection = self.plan.selection
        name, version = selection.name, selection.version or None
        # The empty order is a question: does the server use one?
        if self.client.announce(name, [], reader=self.reader, version=version):
            shards = self.plan.list_shards(islice(self.list_blocks(), _MAX_ANNOUNCED))
            self.client.announce(name, shards, reader=self.reader, version=version)


@contextmanager
def announce(announcements: Sequence[Announcement]) -> Generator[None]:
    """Announce orders in a thread. A failure has no effect on reads."""

    def run() -> None:
        with limit_calls(_SECONDS):
            for each in announcements:
                with suppress(SplitArrowError):
                    each.send()

    thread = threading.Thread(target=run, name="splitarrow-announce")
    thread.start()
    try:
        yield
    finally:
        thread.join()
