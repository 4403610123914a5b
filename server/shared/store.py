"""What was written into memory for one reader, for the others to map as well."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from ...errors import ClosedError
from ..catalog.base import Dataset, Source
from .producer import Chunk, Producer


class SharedStream:
    """The chunks of one stream, made once for all who read it.

    Parameters
    ----------
    store : RegionStore
        Where it counts.
    open_source : callable
        Opens the source that the chunks are made of.
    label : str
        The dataset, for errors.

    Attributes
    ----------
    readers : int
        How many read it, or hold leases on it; the store counts them.
    nbytes : int
        How much memory is counted for it, in bytes.
    is_kept : bool
        Whether new readers may join.
    """

    def __init__(self, store: RegionStore, open_source: Callable[[], Source], label: str) -> None:
        self._store = store
        self._open_source = open_source
        self._label = label
        self._turn = threading.Lock()
        self._producer: Producer | None = None
        self._chunks: list[Chunk] = []
        self._made = 0
        self._ended = False
        self._error: BaseException | None = None
        self.readers = 0
        self.nbytes = 0
        self.is_kept = True

    def chunk(self, index: int, start: int) -> Chunk | Producer | None:
        """Return a chunk, and make it first if need be; None behind the last one.

        If the stream has grown too large to be kept, what comes next is made for each reader
        alone: a `Producer` is returned that goes on behind chunk `index` - 1, or one that
        begins anew (`Producer.made` tells).

        Parameters
        ----------
        index : int
            Which, from 0.
        start : int
            Where the chunk before it ends.

        Raises
        ------
        DatasetError, ExhaustedError
            As the source or the memory fail: for all readers alike.
        ClosedError
            If the store was closed.
        """
        with self._turn:
            if self._error is not None:
                raise self._error
            if index < len(self._chunks):
                return self._chunks[index]
            if len(self._chunks) < self._made:
                return self._handed_over(index, start)
            if self._ended:
                return None
            try:
                if self._producer is None:
                    self._producer = Producer(self._open_source(), self._label)
                chunk = self._producer.next_chunk()
            except BaseException as error:
                self._stop(error)
                self._store.forget(self)
                raise
            if chunk is None:
                self._ended = True
                self._close_producer()
                return None
            self._made += 1
            self._chunks.append(chunk)
            if not self._store.count(self, chunk.nbytes):
                self._chunks.clear()
                self._store.forget(self)
            return chunk

    def _handed_over(self, index: int, start: int) -> Producer:
        producer = self._producer
        if producer is not None and producer.made == index:
            self._producer = None
            return producer
        return Producer(self._open_source(), self._label, start)

    def _close_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _stop(self, error: BaseException) -> None:
        self._error = error
        self._chunks.clear()
        self._close_producer()

    def close(self) -> None:
        """Let go of the chunks; who still asks for one is told so."""
        with self._turn:
            self._stop(ClosedError("the server no longer shares the dataset"))


class RegionStore:
    """Keeps streams that were written into memory: while they are read, and some after that.

    Parameters
    ----------
    capacity : int
        How many bytes may be kept. What was read longest ago goes first; a stream that does
        not fit is not kept at all.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._streams: OrderedDict[tuple[int, Hashable], SharedStream] = OrderedDict()
        self._nbytes = 0
        self._datasets: set[int] = set()
        self._gone: deque[int] = deque()  # filled by finalizers, which may take no lock

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        with self._lock:
            self._sweep()
            return self._nbytes

    def acquire(
        self, dataset: Dataset, key: Hashable, open_source: Callable[[], Source], label: str
    ) -> SharedStream:
        """Return the stream of a key, and count a reader of it; `release` takes that back.

        Parameters
        ----------
        dataset : Dataset
            What is read. When it is gone, so is what is kept of it.
        key : hashable
            What is read of it, and in which state it is.
        open_source : callable
            Opens it.
        label : str
            Its name, for errors.
        """
        with self._lock:
            self._sweep()
            whole = (id(dataset), key)
            stream = self._streams.get(whole)
            if stream is None:
                stream = self._streams[whole] = SharedStream(self, open_source, label)
                if id(dataset) not in self._datasets:
                    self._datasets.add(id(dataset))
                    weakref.finalize(dataset, self._gone.append, id(dataset)).atexit = False
            self._streams.move_to_end(whole)
            stream.readers += 1
            return stream

    def release(self, stream: SharedStream) -> None:
        """Take back what `acquire` counted."""
        with self._lock:
            stream.readers -= 1
            if not stream.readers and not stream.is_kept:
                stream.close()
            self._sweep()
            self._evict()

    def count(self, stream: SharedStream, nbytes: int) -> bool:
        """Count memory for a stream; tell whether there is room for it, or could be made."""
        with self._lock:
            if not stream.is_kept:
                return False
            self._nbytes += nbytes
            stream.nbytes += nbytes
            self._sweep()
            self._evict()
            return self._nbytes <= self._capacity

    def forget(self, stream: SharedStream) -> None:
        """Let no new readers join a stream, and count nothing for it any more."""
        with self._lock:
            for key, other in self._streams.items():
                if other is stream:
                    self._forget(key)
                    break

    def close(self) -> None:
        """Let go of everything that nobody reads."""
        with self._lock:
            for key in list(self._streams):
                self._forget(key)

    def _evict(self) -> None:
        for key in list(self._streams):
            if self._nbytes <= self._capacity:
                return
            if not self._streams[key].readers:
                self._forget(key)

    def _sweep(self) -> None:
        while self._gone:
            gone = self._gone.popleft()
            self._datasets.discard(gone)
            for key in [key for key in self._streams if key[0] == gone]:
                self._forget(key)

    def _forget(self, key: tuple[int, Hashable]) -> None:
        stream = self._streams.pop(key)
        self._nbytes -= stream.nbytes
        stream.nbytes = 0
        stream.is_kept = False
        if not stream.readers:
            stream.close()
