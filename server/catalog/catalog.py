"""The catalog: datasets by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from ...errors import ConfigError, NotFoundError, SplitArrowError, UsageError
from ...formats.arguments import import_stream
from ...formats.arrow.tensors import AnyTensor, convert_to_tensor
from ...memory.imports import find_staging, import_device_data
from ...publication.layout import VERSIONS
from ...publication.patterns import has_wildcards
from ...publication.storage import is_object_url, is_storage_url, open_storage
from ..config import Settings
from .dataset import ServedDataset
from .delta import LOG_FOLDER, DeltaDataset
from .device_table import DeviceTable
from .files.directory import (
    DirectoryDataset,
    FolderListing,
    Listing,
    ObjectListing,
    PatternListing,
)
from .files.file_types import open_file
from .object_cache import ObjectCache, open_object_cache
from .published import PublishedDataset
from .suggestions import suggest_names
from .tables import ReaderDataset, TableDataset
from .tensors import TensorDataset

_DELTA = "delta:"
"""What the location of a Delta table may begin with."""


def open_dataset(
    source: Any,
    cache: ObjectCache | None = None,
    *,
    refuse_writers: bool = True,
    follow_symlinks: bool = False,
    partition_text: bool = False,
) -> ServedDataset:
    """Return the dataset for a source.

    A path or URL names a file, a directory of files, a pattern such as ``trips/*.parquet``, a
    published dataset, a Delta table (perhaps after ``delta:``), or a prefix of an object store or a
    pattern for its objects. The contents decide the type of a file. Other sources are:

    - Arrow tables, record batches, and a ``pyarrow.RecordBatchReader``, which can be read once.
    - Tensors, and lists of them; see `convert_to_tensor`.
    - Data in the memory of a CUDA device, which stays there; see `import_device_data`.
    - A `ServedDataset`.
    - Other objects with ``__arrow_c_stream__`` or ``__arrow_c_array__``, which are read now.

    The default of `cache` is one in the user's cache folder. `refuse_writers` does not apply to
    published datasets, whose versions never change. Unless `follow_symlinks`, no symbolic link in a
    folder may lead out of it; the path may be a link itself. `partition_text` keeps the values of
    all partition keys as text. Raises `DatasetError` if a path does
    not exist, is open for writing, or has contents that cannot be read or are not supported, and
    `UsageError` if the source has another type.

    Examples
    --------
    >>> open_dataset(pa.table({"delay": [60, 75]})).rows
    2
    """
    if isinstance(source, ServedDataset):
        return source
    if isinstance(source, (str, os.PathLike)):
        location = cast("str | os.PathLike[str]", source)
        return _open_location(
            location,
            cache,
            refuse_writers=refuse_writers,
            follow_symlinks=follow_symlinks,
            partition_text=partition_text,
        )
    if isinstance(source, (pa.Table, pa.RecordBatch)):
        return TableDataset(source)
    if isinstance(source, pa.RecordBatchReader):
        return ReaderDataset(source)
    if isinstance(source, (list, tuple)):
        batches = cast("list[Any]", source)
        if all(isinstance(batch, pa.RecordBatch) for batch in batches):
            return TableDataset(batches)
    if (tensors := _convert_to_tensors(source)) is not None:
        return TensorDataset(tensors)
    if (parts := import_device_data(source)) is not None:
        return DeviceTable(parts, find_staging(parts[0]))
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return TableDataset(import_stream(source).read_all())
    raise UsageError(
        f"cannot serve an object of the type {type(source).__name__}; expected a path, an Arrow "
        "table, record batches, a data frame or an array of numbers"
    )


def _convert_to_tensors(source: Any) -> list[AnyTensor] | None:
    """Return the tensors of an array, or of a list of arrays; None for another object."""
    items = cast("Sequence[Any]", source) if isinstance(source, (list, tuple)) else [source]
    tensors = [convert_to_tensor(item) for item in items]
    found = [tensor for tensor in tensors if tensor is not None]
    return found if found and len(found) == len(tensors) else None


def _open_location(
    location: str | os.PathLike[str],
    cache: ObjectCache | None,
    *,
    refuse_writers: bool,
    follow_symlinks: bool,
    partition_text: bool,
) -> ServedDataset:
    directory = partial(
        DirectoryDataset, refuse_writers=refuse_writers, partition_text=partition_text
    )
    if isinstance(location, str) and location.startswith(_DELTA):
        return DeltaDataset(location.removeprefix(_DELTA), follow_symlinks=follow_symlinks)
    if isinstance(location, str) and is_object_url(location):
        return _open_objects(location, cache, directory)
    path = Path(location)
    if isinstance(location, str) and is_storage_url(location):
        path = open_storage(location).folder or path
    if (path / VERSIONS).is_dir():
        return PublishedDataset(path, cache, follow_symlinks=follow_symlinks)
    if (path / LOG_FOLDER).is_dir():
        return DeltaDataset(str(path), follow_symlinks=follow_symlinks)
    if path.is_dir():
        return directory(FolderListing(path, follow_symlinks=follow_symlinks))
    if has_wildcards(str(path)) and not path.exists():
        return directory(PatternListing(str(path), follow_symlinks=follow_symlinks))
    return open_file(path, refuse_writers=refuse_writers)


def _open_objects(
    location: str, cache: ObjectCache | None, directory: Callable[[Listing], ServedDataset]
) -> ServedDataset:
    if not has_wildcards(location):
        storage = open_storage(location)
        if storage.list_objects(VERSIONS):
            return PublishedDataset(location, cache)
        if storage.list_objects(LOG_FOLDER):
            return DeltaDataset(location)
    return directory(ObjectListing(location))


def open_catalog(
    sources: Mapping[str, Any] | Iterable[tuple[str, Any]], settings: Settings
) -> Catalog:
    """Return a catalog of sources, as the settings of a server require; errors as for `Catalog`."""
    return Catalog(
        sources,
        open_object_cache(settings),
        **source_options(settings),
    )


def source_options(settings: Settings) -> dict[str, bool]:
    """Return the options of `open_dataset` that the settings of a server require."""
    return {
        "refuse_writers": not settings.allow_writers,
        "follow_symlinks": settings.follow_symlinks,
        "partition_text": settings.partition_text,
    }


class Catalog:
    """Datasets by name. Safe to use from several threads.

    A name is a key and never a path. The options are those of `open_dataset`, and the errors
    those of `add`.

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
        **options: bool,
    ) -> None:
        self.cache = cache
        """The cache for shards that are downloaded. None means that of the user."""
        self._options = options
        self.replicate: Callable[[Mapping[str, Any], Sequence[str]], None] = lambda *_: None
        """Called with the sources that are about to be added or replaced, and the names that were
        removed, but not by `prepare_update`. If it raises, nothing is added or replaced."""
        # The mapping is replaced and never changed, so readers need no lock.
        self._datasets: dict[str, ServedDataset] = {}
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

        Raises `ConfigError` if the name is empty, not a text, or taken, and `DatasetError` or
        `UsageError` as `open_dataset` does.
        """
        if not isinstance(name, str) or not name.strip() or "\0" in name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"{name!r} is not a valid dataset name: expected a text that is not blank and has "
                "no NUL character"
            )
        self._check_free(name)
        self._put(name, source, is_new=True)

    def replace(self, name: str, source: Any) -> None:
        """Use another source for a name, or add the name. Running streams are not affected.

        Raises `DatasetError`, `UsageError` as for `add`. The previous dataset then stays.
        """
        self._put(name, source, is_new=False)

    def _put(self, name: str, source: Any, *, is_new: bool) -> None:
        dataset = self._open(name, source)
        try:
            with self._lock:
                if is_new:
                    self._check_free(name)
                previous = self._datasets.get(name)
                self.replicate({name: source}, ())
                self._datasets = {**self._datasets, name: dataset}
        except BaseException:
            dataset.close()
            raise
        if previous is not None:
            previous.close()

    @contextmanager
    def prepare_update(
        self, sources: Mapping[str, Any], removed: Iterable[str] = ()
    ) -> Generator[Callable[[], None]]:
        """Open new sources, and yield a function that changes the catalog, all at once.

        It uses the sources for their names, and removes other names if they exist. Running streams
        are not affected. Raises `DatasetError`, `UsageError` as for `add`; the attribute `stream`
        names the dataset. Nothing has changed then.
        """
        with ExitStack() as unused:
            opened: dict[str, ServedDataset] = {}
            for name, source in sources.items():
                opened[name] = self._open(name, source)
                unused.callback(opened[name].close)
            absent = set(removed) - opened.keys()

            def serve() -> None:
                unused.pop_all()
                with self._lock:
                    before = self._datasets
                    kept = {name: each for name, each in before.items() if name not in absent}
                    self._datasets = {**kept, **opened}
                for name, dataset in before.items():
                    if name in absent or name in opened:
                        dataset.close()

            yield serve

    def remove(self, name: str) -> None:
        """Remove a dataset. Running streams are not affected.

        Raises `NotFoundError` if there is no dataset of this name.
        """
        with self._lock:
            dataset = self.lookup(name)
            self._datasets = {key: kept for key, kept in self._datasets.items() if key != name}
            self.replicate({}, (name,))
        dataset.close()

    def lookup(self, name: str) -> ServedDataset:
        """Return a dataset; raise `NotFoundError`, which suggests similar names."""
        datasets = self._datasets
        try:
            return datasets[name]
        except KeyError:
            raise NotFoundError(f"no dataset {name!r}{suggest_names(name, datasets)}") from None

    def location(self, name: str) -> str | None:
        """Return the path or URL of a dataset; None if it has none or does not exist."""
        dataset = self._datasets.get(name)
        return None if dataset is None else dataset.location

    def names(self) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self._datasets)

    def list_versions(self) -> list[tuple[str, int]]:
        """Return the name and the number of the current version of each published dataset."""
        return [
            (name, dataset.current_number)
            for name, dataset in self._datasets.items()
            if isinstance(dataset, PublishedDataset)
        ]

    def datasets(self) -> list[ServedDataset]:
        """Return the datasets in the order in which they were added."""
        return list(self._datasets.values())

    def __len__(self) -> int:
        return len(self._datasets)

    def __contains__(self, name: object) -> bool:
        return name in self._datasets

    def close(self) -> None:
        """Remove and close all datasets. Running streams are not affected."""
        with self._lock:
            datasets, self._datasets = self._datasets, {}
        for dataset in datasets.values():
            dataset.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(self, name: str, source: Any) -> ServedDataset:
        """Open a dataset, and name it in the attribute `stream` of an error."""
        try:
            return open_dataset(source, self.cache, **self._options)
        except SplitArrowError as error:
            error.stream = error.stream or name
            raise

    def _check_free(self, name: str) -> None:
        if name in self._datasets:
            raise ConfigError(f"the dataset name {name!r} is given twice; names must be unique")
