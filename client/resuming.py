"""One endpoint, read to its end even if connections break on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    InvalidDataError,
    NotAPeerError,
    RemoteError,
    SplitArrowError,
    StallError,
    UnavailableError,
    remote_error,
)
from .described import DatasetInfo, Endpoint
from .reaching import Part, Way, reach

_BROKEN = (ConnectionLostError, StallError)
_PASSING = (*_BROKEN, ConnectError, NotAPeerError, UnavailableError)
"""What may be over after a while, such as a server that starts again. One that ends before it
has said anything looks like something else than a server."""
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0

Ask = Callable[[dict[str, Any]], DatasetInfo]
"""Asks the control plane for the same dataset, with further fields of the request."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A server that has the part, and how the part is asked for there."""

    way: Way
    """How to reach it."""
    endpoint: Endpoint | None
    """Where the part was when the reading began; None: the control plane is asked first."""
    version: str
    """The dataset's version there; if it is empty nothing is resumed."""
    shard: int | None
    """Which part of the dataset it is there; None: all of it."""
    ask: Ask
    """Asks there for a new ticket."""


class ResumingPart:
    """An endpoint being read: an iterator of record batches that outlives its connections.

    Where several servers have the same rows, it goes on at the next one, after the rows that
    were handed out.

    Parameters
    ----------
    origins : sequence of Origin
        The servers that have it, the one to ask first in front; at least one.
    name : str
        The dataset.
    limit : int or None
        How many rows were asked for.
    attempts : int
        How often in a row to try each server again without a row in between; 0: never.
    ordinal : int, optional
        The place of the part in a dataset that lies on several servers, for errors.
    away : set of str, optional
        The servers that did not answer another part of the same read; they are asked last.
    """

    def __init__(
        self,
        origins: Sequence[Origin],
        name: str,
        limit: int | None,
        attempts: int,
        ordinal: int | None = None,
        away: set[str] | None = None,
    ) -> None:
        self._away: set[str] = set() if away is None else away
        self._origins = list(origins)
        self._at = 0
        self._name = name
        self._limit = limit
        self._attempts = attempts
        self._ordinal = ordinal
        self._reasons: dict[str, str] = {}
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
        self._origins.sort(key=lambda each: each.way.caller.where in self._away)
        origin, several = self._origin, len(self._origins) > 1
        try:
            self._take(reach(origin.way, origin.endpoint or self._renewed(), self._name))
        except _PASSING as error:
            absent = first and not several and not isinstance(error, _BROKEN)
            if absent or not self._may_resume:
                raise self._told(error) from None
            self._again(error, most=2 * len(self._origins) if first else None)
        except RemoteError as error:
            # A ticket may have waited too long for its turn, or be used up by a lost connection.
            if self._may_resume and origin.endpoint and error.code == "UNAUTHENTICATED":
                self._again(error, most=None if several else 1, same=True)
            elif self._may_resume and self._left(error):
                self._again(error)
            else:
                raise self._told(error) from None

    @property
    def _origin(self) -> Origin:
        return self._origins[self._at]

    @property
    def _may_resume(self) -> bool:
        return bool(self._origin.version and self._attempts)

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
            except (*_BROKEN, RemoteError) as error:
                if self._closed.is_set():
                    raise ClosedError("the stream was cancelled", stream=self._name) from None
                refused = isinstance(error, RemoteError)
                if not self._may_resume or (refused and not self._left(error)):
                    raise self._told(error) from None
                self._again(error)
                continue
            if batch is not None:
                self._fruitless = 0
                self.rows += batch.num_rows
            return batch

    def _take(self, part: Part) -> None:
        with self._lock:
            self._part = part
        self._away.discard(self._origin.way.caller.where)
        if self._closed.is_set():
            part.close()
            raise ClosedError("the stream was cancelled", stream=self._name)

    def _again(
        self, error: SplitArrowError, most: int | None = None, *, same: bool = False
    ) -> None:
        """Go on over a new connection, after the rows that were handed out.

        Parameters
        ----------
        error : SplitArrowError
            Why the last connection is of no use.
        most : int, optional
            How often to try.
        same : bool
            Whether to begin with the same server.
        """
        before, schema = self._part, None
        if before is not None:
            schema = before.schema
            self._earlier_bytes += before.bytes_received
            before.close()
            with self._lock:
                self._part = None
        self._noted(error)
        while self._fruitless < (self._attempts * len(self._origins) if most is None else most):
            rounds, begun = divmod(self._fruitless, len(self._origins))
            if rounds and not begun:
                self._closed.wait(min(_FIRST_WAIT * 2**rounds, _LONGEST_WAIT))
            self._fruitless += 1
            if self._closed.is_set():
                raise ClosedError("the stream was cancelled", stream=self._name)
            if not same:
                self._at = (self._at + 1) % len(self._origins)
            same = False
            try:
                endpoint = self._renewed()
                part = reach(self._origin.way, endpoint, self._name)
            except _PASSING as failed:
                error = failed
                self._noted(error)
                continue
            except RemoteError as refused:
                error = self._changed() if refused.code == "FAILED_PRECONDITION" else refused
                if not self._left(error):
                    break
                continue
            if schema is not None and not part.schema.equals(schema):
                part.close()
                raise InvalidDataError("the schema has changed on the way", stream=self._name)
            self._take(part)
            self.resumed += 1
            return
        raise self._told(error) from None

    def _noted(self, error: SplitArrowError) -> None:
        where = self._origin.way.caller.where
        self._reasons[where] = error.message
        if isinstance(error, _PASSING):
            self._away.add(where)

    def _left(self, error: SplitArrowError) -> bool:
        """Ask this server no more, since it refuses; return whether there are others."""
        self._noted(error)
        if len(self._origins) == 1:
            return False
        del self._origins[self._at]
        self._at = (self._at or len(self._origins)) - 1  # the next one is the one after it
        return True

    def _told(self, error: SplitArrowError) -> SplitArrowError:
        """Return the error that names who was asked, where several servers share a dataset."""
        if self._ordinal is None:
            return error
        self._noted(error)
        reasons = "; ".join(f"{where}: {why}" for where, why in self._reasons.items())
        message = (
            f"shard {self._ordinal} of {self._name!r} cannot be read any more, after {self.rows} "
            f"of its rows; asked were {reasons}"
        )
        if isinstance(error, RemoteError):
            return remote_error(error.code, message, stream=self._name)
        return type(error)(message, stream=self._name)

    def _renewed(self) -> Endpoint:
        origin = self._origin
        asked: dict[str, Any] = {"version": origin.version} if origin.version else {}
        if self.rows:
            asked["offset"] = self.rows
        if origin.shard is not None:
            asked["shard"] = origin.shard
        if self._limit is not None:
            asked["limit"] = self._limit - self.rows
        info = origin.ask(asked)
        if info.version != origin.version or len(info.endpoints) != 1:
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
