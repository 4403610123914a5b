"""The catalog: datasets by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from ...errors import ConfigError, NotFoundError, UsageError
from .base import Dataset
from .directory import DirectoryDataset
from .kinds import open_file
from .names import nearest
from .object_cache import ObjectCache
from .places import VERSIONS
from .published import PublishedDataset
from .storage import is_url
from .table import ReaderDataset, TableDataset


def open_dataset(source: Any, cache: ObjectCache | None = None) -> Dataset:
    """Return the dataset that `source` stands for.

    Parameters
    ----------
    source : path-like, Arrow data, or object with ``__arrow_c_stream__``
        - A path of an Arrow IPC file or stream, a Feather or a Parquet file; what it is is told
          by its contents. Or of a directory of such files.
        - A path or URL of a published dataset, see `PublishedDataset`.
        - A ``pyarrow.Table``, a ``pyarrow.RecordBatch``, or a list of these.
        - A data frame of pandas or polars, or anything else with ``__arrow_c_stream__``: it is
          taken into memory now.
        - A ``pyarrow.RecordBatchReader``: it can be read once, see `ReaderDataset`.
    cache : ObjectCache, optional
        Where what lies in an object store is kept; by default in the user's cache folder.

    Raises
    ------
    DatasetError
        If a path is missing, unreadable, or leads to nothing that is served.
    UsageError
        If `source` is something else.

    Examples
    --------
    >>> open_dataset(pa.table({"delay": [60, 75]})).rows
    2
    """
    if isinstance(source, (str, os.PathLike)):
        place = cast("str | os.PathLike[str]", source)
        if isinstance(source, str) and is_url(source):
            return PublishedDataset(source, cache)
        path = Path(place)
        if (path / VERSIONS).is_dir():
            return PublishedDataset(path, cache)
        return DirectoryDataset(path) if path.is_dir() else open_file(path)
    if isinstance(source, (pa.Table, pa.RecordBatch)):
        return TableDataset(source)
    if isinstance(source, pa.RecordBatchReader):
        return ReaderDataset(source)
    if isinstance(source, (list, tuple)):
        batches = cast("list[Any]", source)
        if all(isinstance(batch, pa.RecordBatch) for batch in batches):
            return TableDataset(batches)
    elif hasattr(source, "__arrow_c_stream__"):
        return TableDataset(pa.table(source))
    elif hasattr(source, "__arrow_c_array__"):
        return TableDataset(pa.record_batch(source))
    raise UsageError(
        f"a dataset is a path, an Arrow table, record batches or a data frame, "
        f"not {type(source).__name__}"
    )


class Catalog:
    """Datasets by name. A name is a key, and never a path. Safe to use from several threads.

    Parameters
    ----------
    sources : mapping, or iterable of pairs
        Names, and what they stand for; see `open_dataset`.
    cache : ObjectCache, optional
        Where what lies in object stores is kept.

    Raises
    ------
    ConfigError
        If a name is empty or is given twice.
    DatasetError
        If a source cannot be read.
    UsageError
        If a source is no dataset.

    Examples
    --------
    >>> with Catalog({"flights": pa.table({"delay": [60, 75]})}) as catalog:
    ...     catalog.lookup("flights").schema.names
    ['delay']
    """

    def __init__(
        self,
        sources: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        cache: ObjectCache | None = None,
    ) -> None:
        self._cache = cache
        self._datasets: dict[str, Dataset] = {}
        self._lock = threading.Lock()
        pairs = cast("Iterable[tuple[str, Any]]", getattr(sources, "items", lambda: sources)())
        try:
            for name, source in pairs:
                self.add(name, source)
        except BaseException:
            self.close()
            raise

    def add(self, name: str, source: Any) -> None:
        """Add a dataset.

        Raises
        ------
        ConfigError
            If the name is empty, no text, or taken.
        DatasetError
            If the source cannot be read.
        UsageError
            If the source is no dataset.
        """
        if not isinstance(name, str) or not name.strip() or "\0" in name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name!r} is no name for a dataset")
        self._refuse_taken(name)
        dataset = open_dataset(source, self._cache)
        try:
            with self._lock:
                self._refuse_taken(name)
                self._datasets = {**self._datasets, name: dataset}
        except ConfigError:
            dataset.close()
            raise

    def replace(self, name: str, source: Any) -> None:
        """Let another source stand for a name, from the next reader on; or add it.

        Raises
        ------
        DatasetError, UsageError
            As for `add`; what stood there before still does.
        """
        dataset = open_dataset(source, self._cache)
        with self._lock:
            before = self._datasets.get(name)
            self._datasets = {**self._datasets, name: dataset}
        if before is not None:
            before.close()

    def remove(self, name: str) -> None:
        """Take a dataset out. Streams of it that run go on.

        Raises
        ------
        NotFoundError
            If there is none of that name.
        """
        with self._lock:
            dataset = self.lookup(name)
            self._datasets = {key: kept for key, kept in self._datasets.items() if key != name}
        dataset.close()

    def lookup(self, name: str) -> Dataset:
        """Return a dataset.

        Raises
        ------
        NotFoundError
            If there is none of that name; the error tells the nearest names.
        """
        datasets = self._datasets
        try:
            return datasets[name]
        except KeyError:
            raise NotFoundError(f"no dataset {name!r}{nearest(name, datasets)}") from None

    def names(self) -> list[str]:
        """Return the names, in the order in which they were added."""
        return list(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)

    def __contains__(self, name: object) -> bool:
        return name in self._datasets

    def close(self) -> None:
        """Let go of all datasets. Streams that run go on."""
        with self._lock:
            datasets, self._datasets = self._datasets, {}
        for dataset in datasets.values():
            dataset.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _refuse_taken(self, name: str) -> None:
        if name in self._datasets:
            raise ConfigError(f"the dataset name {name!r} is given twice")
