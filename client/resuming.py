"""One endpoint, read to its end even if connections break on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ..errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    DeniedError,
    InvalidDataError,
    RemoteError,
    SplitArrowError,
    StallError,
    UnavailableError,
    remote_error,
)
from .described import DatasetInfo, Endpoint
from .reaching import Part, Way, reach

_BROKEN = (ConnectionLostError, StallError)
_PASSING = (*_BROKEN, ConnectError, UnavailableError)
"""What may be over after a while, such as a server that starts again."""
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0

Ask = Callable[[dict[str, Any]], DatasetInfo]
"""Asks the control plane for the same dataset, with further fields of the request."""


class ResumingPart:
    """An endpoint being read: an iterator of record batches that outlives its connections.

    Parameters
    ----------
    way : Way
        How to reach it.
    endpoint : Endpoint
        Where it was when the reading began.
    name : str
        The dataset.
    version : str
        The dataset's version; if it is empty nothing is resumed.
    shard : int or None
        Which part of the dataset it is; None: all of it.
    limit : int or None
        How many rows were asked for.
    ask : callable
        Asks for a new ticket.
    attempts : int
        How often in a row to try again without a row in between; 0: never.
    """

    def __init__(
        self,
        way: Way,
        endpoint: Endpoint,
        name: str,
        version: str,
        shard: int | None,
        limit: int | None,
        ask: Ask,
        attempts: int,
    ) -> None:
        self._way = way
        self._endpoint = endpoint
        self._name = name
        self._version = version
        self._shard = shard
        self._limit = limit
        self._ask = ask
        self._attempts = attempts
        self._fruitless = 0
        self._part: Part | None = None
        self._earlier_bytes = 0
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self.rows = 0
        """How many rows were handed out."""
        self.resumed = 0
        """How many times the reading went on over a new connection."""

    def open(self, *, first: bool = False) -> None:
        """Connect; raises as `reach` does.

        Parameters
        ----------
        first : bool
            Whether nothing of the dataset was read yet: then nobody waits for a server that is
            not there.
        """
        if self._closed.is_set():
            raise ClosedError("the stream was cancelled", stream=self._name)
        if self._part is not None:
            return
        try:
            self._take(reach(self._way, self._endpoint, self._name))
        except DeniedError as error:
            # A ticket may have waited too long for its turn, or be used up by a lost connection.
            if not self._may_resume or error.code != "UNAUTHENTICATED":
                raise
            self._again(error, most=1)
        except _PASSING as error:
            if not self._may_resume or (first and not isinstance(error, _BROKEN)):
                raise
            self._again(error, most=2 if first else None)

    @property
    def _may_resume(self) -> bool:
        return bool(self._version and self._attempts)

    @property
    def schema(self) -> pa.Schema:
        """The schema, once it is open."""
        assert self._part is not None
        return self._part.schema

    @property
    def transport(self) -> str:
        """How it comes."""
        return "" if self._part is None else self._part.transport

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived over all connections."""
        part = self._part
        return self._earlier_bytes + (0 if part is None else part.bytes_received)

    def next(self) -> pa.RecordBatch | None:
        """Return the next record batch, None at the end; raises as `Stream` does."""
        self.open()
        while True:
            assert self._part is not None
            try:
                batch = next(self._part, None)
            except _BROKEN as error:
                if self._closed.is_set():
                    raise ClosedError("the stream was cancelled", stream=self._name) from None
                if not self._may_resume:
                    raise
                self._again(error)
                continue
            if batch is not None:
                self._fruitless = 0
                self.rows += batch.num_rows
            return batch

    def _take(self, part: Part) -> None:
        with self._lock:
            self._part = part
        if self._closed.is_set():
            part.close()
            raise ClosedError("the stream was cancelled", stream=self._name)

    def _again(self, error: SplitArrowError, most: int | None = None) -> None:
        """Go on over a new connection, after the rows that were handed out."""
        before, schema = self._part, None
        if before is not None:
            schema = before.schema
            self._earlier_bytes += before.bytes_received
            before.close()
            with self._lock:
                self._part = None
        most = self._attempts if most is None else most
        while self._fruitless < most:
            if self._fruitless:
                self._closed.wait(min(_FIRST_WAIT * 2**self._fruitless, _LONGEST_WAIT))
            self._fruitless += 1
            if self._closed.is_set():
                raise ClosedError("the stream was cancelled", stream=self._name)
            try:
                part = reach(self._way, self._renewed(), self._name)
            except _PASSING as failed:
                error = failed
                continue
            except RemoteError as refused:
                if refused.code == "FAILED_PRECONDITION":
                    raise self._changed() from None
                raise
            if schema is not None and not part.schema.equals(schema):
                part.close()
                raise InvalidDataError("the schema has changed on the way", stream=self._name)
            self._take(part)
            self.resumed += 1
            return
        raise error

    def _renewed(self) -> Endpoint:
        asked: dict[str, Any] = {"version": self._version}
        if self.rows:
            asked["offset"] = self.rows
        if self._shard is not None:
            asked["shard"] = self._shard
        if self._limit is not None:
            asked["limit"] = self._limit - self.rows
        info = self._ask(asked)
        if info.version != self._version or len(info.endpoints) != 1:
            raise self._changed()
        return info.endpoints[0]

    def _changed(self) -> RemoteError:
        return remote_error(
            "FAILED_PRECONDITION",
            f"the dataset {self._name!r} changed while it was read: the connection broke after "
            f"{self.rows} rows, and the rest of that version is gone; read it again",
            stream=self._name,
        )

    def cancel(self) -> None:
        """Stop a read that another thread waits in: it raises `ClosedError`."""
        self._closed.set()
        with self._lock:
            if self._part is not None:
                self._part.cancel()

    def close(self) -> None:
        """Let go of the connection; no other thread may be reading. Idempotent."""
        self._closed.set()
        if self._part is not None:
            self._part.close()
