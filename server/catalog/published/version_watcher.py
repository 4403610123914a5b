"""Watching published datasets for new versions, and pruning old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import anyio
from anyio import to_thread

from ....errors import SplitArrowError
from ....publication.layout import VERSIONS
from ...logs import get_logger
from ..dataset import Dataset
from .dataset import PublishedDataset

_FOLDERS_SECONDS = 1.0
_STEP_MS = 50
_DEBOUNCE_MS = 400


class VersionWatcher:
    """Keeps the published datasets of a catalog at their current versions.

    The kernel reports new manifests in local folders. Object stores are polled. Polling covers
    folders too, because some network file systems report no changes.

    Parameters
    ----------
    datasets : callable
        Returns the datasets of the catalog, which may change.
    seconds : float
        The polling interval in seconds. Old versions are pruned at the same interval.
    keep : int or None
        The number of newest versions to keep. None disables pruning.
    """

    def __init__(
        self, datasets: Callable[[], Iterable[Dataset]], seconds: float, keep: int | None
    ) -> None:
        self._datasets = datasets
        self._seconds = seconds
        self._keep = keep
        self._failures: dict[str, str] = {}
        self._log = get_logger("published")

    async def run(self) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._poll)
            tasks.start_soon(self._watch)

    async def _poll(self) -> None:
        while True:
            for dataset in self._list_published():
                await self._update(dataset)
            await anyio.sleep(self._seconds)

    async def _watch(self) -> None:
        """Update the datasets in local folders when the kernel reports a change."""
        while True:
            folders = await self._list_existing_folders()
            if not folders:
                await anyio.sleep(_FOLDERS_SECONDS)
                continue
            stop = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_on_other_folders, folders, stop)
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
            for dataset in self._list_published():
                if _manifest_folder(dataset) in touched:
                    await self._update(dataset)

    async def _stop_on_other_folders(self, folders: frozenset[Path], stop: anyio.Event) -> None:
        """Set `stop` when the set of folders to watch changes, or on cancellation."""
        try:
            while True:
                await anyio.sleep(_FOLDERS_SECONDS)
                if await self._list_existing_folders() != folders:
                    return
        finally:
            stop.set()

    async def _update(self, dataset: PublishedDataset) -> None:
        await self._run_logged(dataset, "look for versions of", dataset.refresh)
        keep = self._keep
        if keep is not None:
            await self._run_logged(dataset, "prune versions of", lambda: dataset.prune(keep))

    async def _run_logged(
        self, dataset: PublishedDataset, action: str, call: Callable[[], object]
    ) -> None:
        """Run a call on a worker thread. Log an error once, until the call succeeds."""
        key = f"{action} {dataset.location}"
        try:
            await to_thread.run_sync(call)
            self._failures.pop(key, None)
        except SplitArrowError as error:
            if self._failures.get(key) != error.message:
                self._failures[key] = error.message
                self._log.warning(f"cannot {key}", reason=error.message)

    def _list_published(self) -> list[PublishedDataset]:
        return [dataset for dataset in self._datasets() if isinstance(dataset, PublishedDataset)]

    async def _list_existing_folders(self) -> frozenset[Path]:
        folders = {
            folder for folder in map(_manifest_folder, self._list_published()) if folder is not None
        }
        if not folders:
            return frozenset()
        return await to_thread.run_sync(lambda: frozenset(f for f in folders if f.is_dir()))


def _manifest_folder(dataset: PublishedDataset) -> Path | None:
    """Return the folder of a dataset's manifests; None if it is in an object store."""
    folder = dataset.store.storage.folder
    return None if folder is None else folder / VERSIONS
