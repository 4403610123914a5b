"""The loaders that the benchmark compares, each set up as its documentation advises for numbers.

Formats that store one sample after the other store a whole batch as one sample. With a row as a
sample they are a hundred times slower, as each row passes through Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ..pytorch.tensors import torch
from .loader_rows import BATCH_ROWS, KINDS, SHARDS, batches_of, make_shards, write_arrow
from .loader_rows import write_parquet as write_parquet_files

_DataLoader: Any = torch.utils.data.DataLoader


@dataclass(frozen=True, slots=True)
class Peer:
    """A loader. Its functions can be found by its name in another process."""

    package: str
    """The package to import, which may be missing."""
    format: str
    """The name of the folder with its files. Peers with the same format share it."""
    write: Callable[[Path, int], None]
    """Writes the files: receives a folder to create, and the number of rows."""
    open: Callable[[Path, int], Any]
    """Returns what the training loop iterates over: receives the folder and the workers."""

    def unavailable_reason(self) -> str | None:
        """Return why it cannot run here, or None."""
        try:
            is_missing = find_spec(self.package) is None
        except (ImportError, ValueError) as error:
            return str(error)
        return f"the package {self.package} is not installed" if is_missing else None


def open_splitarrow(uri: str, transport: str, workers: int) -> Any:
    """Return a loader of splitarrow. With workers, it reads at one position for each."""
    from ..pytorch import StreamDataset

    dataset = StreamDataset(
        uri, "rows", batch_rows=BATCH_ROWS, interleave=max(1, workers), transport=transport
    )
    return _load(dataset, workers)


def _load(dataset: Any, workers: int, **options: Any) -> Any:
    """Return a loader of a dataset that yields batches. Its workers stay for all epochs."""
    return _DataLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0, **options
    )


class _ScannedFiles(torch.utils.data.IterableDataset):
    """The batches of a ``pyarrow.dataset``; workers divide its files."""

    def __init__(self, folder: Path, format: Literal["ipc", "parquet"]) -> None:
        self._folder = folder
        self._format: Literal["ipc", "parquet"] = format

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from pyarrow import dataset, fs

        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        files = [str(path) for path in sorted(self._folder.iterdir())][first::step]
        mapped = fs.LocalFileSystem(use_mmap=True)
        found = dataset.dataset(files, format=self._format, filesystem=mapped)
        for batch in found.to_batches(batch_size=BATCH_ROWS):
            yield {
                name: torch.from_dlpack(column)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }


def _open_arrow(folder: Path, workers: int) -> Any:
    return _load(_ScannedFiles(folder, "ipc"), workers)


def _open_parquet(folder: Path, workers: int) -> Any:
    return _load(_ScannedFiles(folder, "parquet"), workers)


def _write_hf(folder: Path, rows: int) -> None:
    import pyarrow as pa

    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    table = pa.concat_tables([pa.table(columns) for columns in make_shards(rows)])
    datasets.Dataset(table).save_to_disk(str(folder), num_shards=SHARDS)


def _open_hf(folder: Path, workers: int) -> Any:
    datasets = import_module("datasets")
    rows = datasets.load_from_disk(str(folder)).with_format("torch")
    return _load(rows.to_iterable_dataset(num_shards=SHARDS).batch(BATCH_ROWS), workers)


def _import_streaming() -> Any:
    """Import Mosaic Streaming without its modules for pictures and texts.

    They need further packages, such as torchvision, which numbers do not.
    """
    for name in ("multimodal", "text", "vision"):
        sys.modules.setdefault(f"streaming.{name}", ModuleType(f"streaming.{name}"))
    return import_module("streaming")


def _write_mosaic(folder: Path, rows: int) -> None:
    columns = {name: f"ndarray:{kind}:{BATCH_ROWS}" for name, kind in KINDS.items()}
    with _import_streaming().MDSWriter(out=str(folder), columns=columns) as writer:
        for shard in make_shards(rows):
            for batch in batches_of(shard):
                writer.write(batch)


def _open_mosaic(folder: Path, workers: int) -> Any:
    streaming = _import_streaming()
    dataset = streaming.StreamingDataset(local=str(folder), batch_size=1, shuffle=False)
    return _load(dataset, workers)


def _write_webdataset(folder: Path, rows: int) -> None:
    webdataset = import_module("webdataset")
    folder.mkdir()
    for index, shard in enumerate(make_shards(rows)):
        with webdataset.TarWriter(str(folder / f"{index:05}.tar")) as writer:
            for number, batch in enumerate(batches_of(shard)):
                tensors = {name: torch.from_numpy(v.copy()) for name, v in batch.items()}
                writer.write({"__key__": f"{number:06}", "pth": tensors})


def _take_tensors(sample: dict[str, Any]) -> Any:
    return sample["pth"]


def _open_webdataset(folder: Path, workers: int) -> Any:
    webdataset = import_module("webdataset")
    files = [str(path) for path in sorted(folder.iterdir())]
    samples = webdataset.WebDataset(files, shardshuffle=False).decode().map(_take_tensors)
    return webdataset.WebLoader(
        samples, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )


PEERS = {
    "pyarrow.dataset, Arrow": Peer("pyarrow", "arrow", write_arrow, _open_arrow),
    "pyarrow.dataset, Parquet": Peer("pyarrow", "parquet", write_parquet_files, _open_parquet),
    "HF datasets": Peer("datasets", "hf", _write_hf, _open_hf),
    "Mosaic Streaming": Peer("streaming", "mosaic", _write_mosaic, _open_mosaic),
    "WebDataset": Peer("webdataset", "webdataset", _write_webdataset, _open_webdataset),
}
"""The peers by their names in the table."""
