"""Looking for new versions of published datasets, and removing old ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from ...errors import NotFoundError, SplitArrowError
from ..logs import get_logger
from .base import Dataset
from .places import VERSIONS
from .published import PublishedDataset

_FOLDERS_SECONDS = 1.0
_STEP_MS = 50
_DEBOUNCE_MS = 400


class Datasets(Protocol):
    """Where the datasets come from."""

    def names(self) -> list[str]:
        """Return their names."""
        ...

    def lookup(self, name: str) -> Dataset:
        """Return one; raise `NotFoundError`."""
        ...


class Watcher:
    """Watches the published datasets of a catalog.

    The kernel tells of a new manifest in a folder; object stores are asked now and then.

    Parameters
    ----------
    datasets : Datasets
        The catalog. It may change.
    seconds : float
        How often object stores are asked, and old versions are looked for.
    keep : int or None
        How many versions are kept at least; None: nothing is removed.
    """

    def __init__(self, datasets: Datasets, seconds: float, keep: int | None) -> None:
        self._datasets = datasets
        self._seconds = seconds
        self._keep = keep
        self._failed: dict[str, str] = {}
        self._log = get_logger("published")

    async def run(self) -> None:
        """Watch until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._poll)
            tasks.start_soon(self._watch)

    async def _poll(self) -> None:
        while True:
            for dataset in self._published():
                await self._update(dataset)
            await anyio.sleep(self._seconds)

    async def _watch(self) -> None:
        while True:
            folders = await self._folders()
            if not folders:
                await anyio.sleep(_FOLDERS_SECONDS)
                continue
            stop = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_when_others, folders, stop)
                try:
                    await self._watch_folders(folders, stop)
                except OSError as error:
                    self._log.warning("cannot watch folders", reason=str(error))
                    await anyio.sleep(self._seconds)
                tasks.cancel_scope.cancel()

    async def _watch_folders(self, folders: frozenset[Path], stop: anyio.Event) -> None:
        from watchfiles import awatch

        changes = awatch(
            *folders, stop_event=stop, recursive=False, debounce=_DEBOUNCE_MS, step=_STEP_MS
        )
        async for changed in changes:
            touched = {Path(path).parent for _, path in changed}
            for dataset in self._published():
                if _folder(dataset) in touched:
                    await self._update(dataset)

    async def _stop_when_others(self, folders: frozenset[Path], stop: anyio.Event) -> None:
        """Set `stop` when other folders are to be watched, or when this is cancelled."""
        try:
            while True:
                await anyio.sleep(_FOLDERS_SECONDS)
                if await self._folders() != folders:
                    return
        finally:
            stop.set()

    async def _update(self, dataset: PublishedDataset) -> None:
        await self._try(dataset, "look for versions of", dataset.refresh)
        keep = self._keep
        if keep is not None:
            await self._try(dataset, "remove versions of", lambda: dataset.prune(keep))

    async def _try(self, dataset: PublishedDataset, what: str, call: Callable[[], object]) -> None:
        """Call something on a worker thread; log an error once, until it works again."""
        key = f"{what} {dataset.location}"
        try:
            await to_thread.run_sync(call)
            self._failed.pop(key, None)
        except SplitArrowError as error:
            if self._failed.get(key) != error.message:
                self._failed[key] = error.message
                self._log.warning(f"cannot {key}", reason=error.message)

    def _published(self) -> list[PublishedDataset]:
        found: list[PublishedDataset] = []
        for name in self._datasets.names():
            try:
                dataset = self._datasets.lookup(name)
            except NotFoundError:
                continue  # removed meanwhile
            if isinstance(dataset, PublishedDataset):
                found.append(dataset)
        return found

    async def _folders(self) -> frozenset[Path]:
        folders = {folder for folder in map(_folder, self._published()) if folder is not None}
        if not folders:
            return frozenset()
        return await to_thread.run_sync(lambda: frozenset(f for f in folders if f.is_dir()))


def _folder(dataset: PublishedDataset) -> Path | None:
    """Return the folder of the manifests of a dataset; None if it is in an object store."""
    folder = dataset.store.storage.folder
    return None if folder is None else folder / VERSIONS
