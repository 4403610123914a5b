"""Opening a dataset for a reader that maps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ..catalog.base import Dataset, Encoding, Source
from ..logs import get_logger
from .guards import lease_refusal
from .producer import Producer
from .store import RegionStore, SharedStream

_GROUP_MESSAGES = 64


class PlacedSource:
    """The messages of a dataset, each body being one region of a file or of memory."""

    def __init__(
        self,
        groups: Iterator[list[SourceMessage]],
        *,
        blocking: bool,
        close: Callable[[], None],
        let_go: Callable[[], None],
    ) -> None:
        self.blocking = blocking
        self.placed: Sequence[Path] = ()
        self._groups = groups
        self._close = close
        self._let_go: Callable[[], None] | None = let_go

    def __iter__(self) -> Iterator[list[SourceMessage]]:
        return self._groups

    def close(self) -> None:
        """Stop reading."""
        self._close()

    def let_go(self) -> None:
        """Note that the reader holds nothing of it any more. Idempotent."""
        if self._let_go is not None:
            self._let_go, let_go = None, self._let_go
            let_go()


def open_placed(
    store: RegionStore, dataset: Dataset, request: Request, *, copy: bool, trust: bool = False
) -> PlacedSource:
    """Open a dataset for a reader that maps it; errors as those of `Dataset.open`.

    Bodies lie uncompressed, whatever the server's default is, unless the reader asks for more:
    what is mapped need not be small.

    Parameters
    ----------
    store : RegionStore
        Keeps what has to be written into memory.
    dataset : Dataset
        What to read.
    request : Request
        What of it.
    copy : bool
        Whether files are written into memory, too, and never mapped themselves.
    trust : bool
        Whether files are mapped that cannot be guarded against changes.
    """
    request = replace(
        request,
        compression=request.compression or "none",
        version=request.version or dataset.version,
    )
    source = dataset.open(request, Encoding(regions=not copy))
    if source.placed and not copy and (trust or _can_guard(source.placed)):
        return PlacedSource(
            iter(source), blocking=source.blocking, close=source.close, let_go=_nothing
        )
    opened = [source]

    def open_source() -> Source:
        return opened.pop() if opened else dataset.open(request, Encoding())

    label = f"dataset {request.dataset!r}"
    stream = store.acquire(dataset, request, open_source, label)
    copied = _Copied(stream, opened)
    return PlacedSource(
        copied.groups(),
        blocking=True,
        close=copied.close,
        let_go=lambda: store.release(stream),
    )


def _can_guard(paths: Sequence[Path]) -> bool:
    for path in paths:
        refusal = lease_refusal(path)
        if refusal is not None:
            get_logger("sharing").warning(
                "readers map a copy: the file cannot be guarded against changes",
                path=str(path),
                reason=refusal,
            )
            return False
    return True


def _nothing() -> None:
    """Nothing is kept for a file that is mapped itself."""


class _Copied:
    """One reader's way through a stream that is written into memory."""

    def __init__(self, stream: SharedStream, opened: list[Source]) -> None:
        self._stream = stream
        self._opened = opened
        self._own: Producer | None = None

    def groups(self) -> Iterator[list[SourceMessage]]:
        index = taken = end = 0
        while True:
            if self._own is not None:
                chunk = self._own.next_chunk()
            else:
                chunk = self._stream.chunk(index, end)
                self._close_unused()  # what others have made needs no source
                if isinstance(chunk, Producer):
                    if chunk.made != index:
                        chunk.skip(taken)
                    self._own = chunk
                    continue
            if chunk is None:
                return
            messages = chunk.messages
            for begin in range(0, len(messages), _GROUP_MESSAGES):
                yield messages[begin : begin + _GROUP_MESSAGES]
            index += 1
            taken += len(messages)
            end = chunk.memory.size

    def _close_unused(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def close(self) -> None:
        self._close_unused()
        if self._own is not None:
            self._own.close()
