"""The loaders that the benchmark compares, and the rows that they load."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ...formats.arrow.file_writer import AlignedFileWriter
from ...pytorch.tensors import torch

BATCH_ROWS = 4096
"""The rows of each batch that a loader yields."""
SHARDS = 8
"""The files of each format."""
ROW = "row"
"""The column with the number of the row."""
KINDS = {
    ROW: "int64",
    **{f"f{index:02}": "float32" for index in range(10)},
    **{f"d{index:02}": "float64" for index in range(4)},
    **{f"l{index:02}": "int64" for index in range(3)},
    **{f"i{index:02}": "int32" for index in range(2)},
}
"""The NumPy type of each of the 20 columns; a row has 112 bytes."""

_RECORD_BATCH_ROWS = 1 << 16
_WEIGHTS = 1021
_VALUES = 1 << 20
_UNIT = 1024

Columns = dict[str, Any]
"""NumPy arrays by the names of their columns."""


def make_shards(rows: int) -> Iterator[Columns]:
    """Yield the columns of each shard. Equal numbers of rows give equal columns."""
    random = np.random.default_rng(1)
    count = rows // SHARDS
    for shard in range(SHARDS):
        columns: Columns = {ROW: np.arange(shard * count, (shard + 1) * count)}
        for name, kind in list(KINDS.items())[1:]:
            values = random.integers(0, _VALUES, count)
            columns[name] = (values / _UNIT if kind.startswith("f") else values // _UNIT).astype(
                kind
            )
        yield columns


def checksum(columns: Columns) -> dict[str, float]:
    """Return a sum of each column in which every row has a weight that follows from its number.

    A row that is missing, repeated or put together from two rows changes the sum.
    """
    weights = (np.asarray(columns[ROW]) % _WEIGHTS).astype(np.float64)
    return {name: float(np.asarray(columns[name], np.float64) @ weights) for name in KINDS}


def add_checksums(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Return the checksums of the rows of both."""
    return {name: first.get(name, 0.0) + value for name, value in second.items()}


def batches_of(columns: Columns) -> Iterator[Columns]:
    """Yield the rows of a shard in batches of `BATCH_ROWS`."""
    for begin in range(0, len(columns[ROW]), BATCH_ROWS):
        yield {name: values[begin : begin + BATCH_ROWS] for name, values in columns.items()}


def write_arrow(folder: Path, rows: int) -> None:
    """Write the rows as Arrow IPC files, which splitarrow and pyarrow read."""
    folder.mkdir()
    for index, columns in enumerate(make_shards(rows)):
        table = pa.table(columns)
        writer = AlignedFileWriter(table.schema)
        with (folder / f"{index:05}.arrow").open("wb") as file:
            file.writelines(writer.begin())
            for batch in table.to_batches(_RECORD_BATCH_ROWS):
                file.writelines(writer.add(batch))
            file.writelines(writer.end())


def write_parquet(folder: Path, rows: int) -> None:
    """Write the rows as Parquet files, with pyarrow's default compression."""
    from pyarrow import parquet

    folder.mkdir()
    for index, columns in enumerate(make_shards(rows)):
        path = folder / f"{index:05}.parquet"
        parquet.write_table(pa.table(columns), path, row_group_size=_RECORD_BATCH_ROWS)


def drop_from_page_cache(folder: Path) -> None:
    """Write the files of a folder to the disk, and drop their pages that no process maps."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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
    save: Callable[[Any, int], Any] | None = None
    """Returns the state of what `open` returned after a number of batches. Without it, resuming
    is reading these batches again."""
    load: Callable[[Any, Any], None] | None = None
    """Loads such a state into what `open` returned."""

    def unavailable_reason(self) -> str | None:
        """Return why it cannot run here, or None."""
        try:
            is_missing = find_spec(self.package) is None
        except (ImportError, ValueError) as error:
            return str(error)
        return f"the package {self.package} is not installed" if is_missing else None


def open_splitarrow(uri: str, transport: str, workers: int) -> Any:
    """Return a loader of splitarrow. With workers, it reads at one position for each."""
    from ...pytorch import StreamDataset

    dataset = StreamDataset(
        uri, "rows", batch_rows=BATCH_ROWS, interleave=max(1, workers), transport=transport
    )
    return _load(dataset, workers)


def _load(dataset: Any, workers: int, loader: Any = _DataLoader, **options: Any) -> Any:
    """Return a loader of a dataset that yields batches. Its workers stay for all epochs."""
    options = {"batch_size": None, "persistent_workers": workers > 0, **options}
    return loader(dataset, num_workers=workers, **options)


def save_dataset(loader: Any, steps: int) -> Any:
    """Return the state of splitarrow's dataset, for any loader."""
    return loader.dataset.state_dict(steps)


def load_dataset(loader: Any, state: Any) -> None:
    """Load a state into the dataset of a loader."""
    loader.dataset.load_state_dict(state)


def _save_loader(loader: Any, _steps: int) -> Any:
    return loader.state_dict()


def _load_loader(loader: Any, state: Any) -> None:
    loader.load_state_dict(state)


def _tensors_of(batch: pa.RecordBatch) -> Columns:
    return {
        name: torch.from_dlpack(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


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
        yield from map(_tensors_of, found.to_batches(batch_size=BATCH_ROWS))


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
    batches = rows.to_iterable_dataset(num_shards=SHARDS).batch(BATCH_ROWS)
    return _load(
        batches, workers, import_module("torchdata.stateful_dataloader").StatefulDataLoader
    )


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


def _save_mosaic(loader: Any, steps: int) -> Any:
    return loader.dataset.state_dict(steps, True)  # counted from the beginning of the epoch


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


def _write_lance(folder: Path, rows: int) -> None:
    lance = import_module("lance")
    for columns in make_shards(rows):
        lance.write_dataset(pa.table(columns), str(folder), mode="append")


def _open_lance(folder: Path, workers: int) -> Any:
    rows = import_module("lance.torch.data").LanceDataset(str(folder), batch_size=BATCH_ROWS)
    return _load(rows, workers, **_spawned(workers))


def _spawned(workers: int) -> dict[str, Any]:
    """Return options of a loader for packages whose threads do not survive a fork."""
    return {"multiprocessing_context": "forkserver"} if workers else {}


def _write_lancedb(folder: Path, rows: int) -> None:
    """Write a table in which each row is a batch, a list of fixed size in each column."""
    tables = [
        pa.table(
            {
                name: pa.FixedSizeListArray.from_arrays(pa.array(values), BATCH_ROWS)
                for name, values in columns.items()
            }
        )
        for columns in make_shards(rows)
    ]
    database = import_module("lancedb").connect(str(folder))
    database.create_table("rows", pa.concat_tables(tables))


def _split_lists(batch: Any) -> list[Columns]:
    """Return the tensors of each row of lists."""
    columns = {
        name: torch.from_dlpack(column.flatten()).reshape(-1, BATCH_ROWS)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return [{name: v[row] for name, v in columns.items()} for row in range(batch.num_rows)]


class _LanceDBLoader:
    """LanceDB's dataset, which delivers one epoch: the next one needs a new dataset."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._table = import_module("lancedb").connect(str(folder)).open_table("rows")
        self._workers = workers
        self._dataset: Any = None
        self._state: Any = None

    def __iter__(self) -> Any:
        streaming = import_module("lancedb.streaming")
        self._dataset = streaming.StreamingDataset(
            self._table,
            num_splits=max(1, self._workers),
            shuffle=False,
            read_batch_size=16,
            transform=_split_lists,
        )
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
        options = {"persistent_workers": False, **_spawned(self._workers)}
        return iter(_load(self._dataset, self._workers, streaming.StreamingDataLoader, **options))

    def state_dict(self) -> Any:
        return self._dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._state = state


def _write_grain(folder: Path, rows: int) -> None:
    """Write files of ArrayRecord; a record is a batch as an Arrow stream."""
    array_record = import_module("array_record.python.array_record_module")
    folder.mkdir()
    for index, shard in enumerate(make_shards(rows)):
        path = folder / f"{index:05}.array_record"
        writer = array_record.ArrayRecordWriter(str(path), "group_size:1")
        for columns in batches_of(shard):
            batch, sink = pa.record_batch(columns), pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            writer.write(sink.getvalue().to_pybytes())
        writer.close()


def _parse_record(record: bytes) -> Columns:
    batch = pa.ipc.open_stream(record).read_next_batch()
    names = batch.schema.names
    return {name: v.to_numpy() for name, v in zip(names, batch.columns, strict=True)}


def _make_tensors(columns: Columns) -> Columns:
    return {name: torch.from_numpy(values) for name, values in columns.items()}


class _GrainLoader:
    """Grain's dataset, whose state is that of its iterator."""

    def __init__(self, folder: Path, workers: int) -> None:
        grain = import_module("grain")
        files = [str(path) for path in sorted(folder.iterdir())]
        source = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files))
        rows = source.map(_parse_record).to_iter_dataset()
        if workers:
            rows = rows.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        self._dataset = rows.map(_make_tensors)
        self._state: Any = None
        self._iterator: Any = None

    def __iter__(self) -> Any:
        self._iterator = iter(self._dataset)
        if self._state is not None:
            self._iterator.set_state(self._state)
        return self._iterator

    def state_dict(self) -> Any:
        return self._iterator.get_state()

    def load_state_dict(self, state: Any) -> None:
        self._state = state


def _write_litdata(folder: Path, rows: int) -> None:
    cache = import_module("litdata.streaming").Cache(str(folder), chunk_bytes="64MB")
    batches = (batch for shard in make_shards(rows) for batch in batches_of(shard))
    for index, batch in enumerate(batches):
        cache[index] = {name: torch.from_numpy(values.copy()) for name, values in batch.items()}
    cache.done()
    cache.merge()


def _take_only(samples: list[Any]) -> Any:
    return samples[0]


def _open_litdata(folder: Path, workers: int) -> Any:
    litdata = import_module("litdata")
    dataset = litdata.StreamingDataset(str(folder), shuffle=False)
    loader = litdata.StreamingDataLoader
    return _load(dataset, workers, loader, batch_size=1, collate_fn=_take_only)


def _write_npz(folder: Path, rows: int) -> None:
    folder.mkdir()
    for index, shard in enumerate(make_shards(rows)):
        for number, batch in enumerate(batches_of(shard)):
            np.savez(folder / f"{index:05}-{number:06}.npz", **batch)


def _read_npz(path: Path) -> Columns:
    return _make_tensors(import_module("spdl.io").load_npz(path.read_bytes()))


def _open_spdl(folder: Path, workers: int) -> Any:
    """Return a loader whose workers are threads."""
    return import_module("spdl.dataloader").DataLoader(
        sorted(folder.iterdir()),
        preprocessor=_read_npz,
        num_threads=max(1, workers),
        output_order="input",
    )


PEERS = {
    "pyarrow.dataset, Arrow": Peer("pyarrow", "arrow", write_arrow, _open_arrow),
    "pyarrow.dataset, Parquet": Peer("pyarrow", "parquet", write_parquet, _open_parquet),
    "HF datasets": Peer("datasets", "hf", _write_hf, _open_hf, _save_loader, _load_loader),
    "Mosaic Streaming": Peer(
        "streaming", "mosaic", _write_mosaic, _open_mosaic, _save_mosaic, load_dataset
    ),
    "WebDataset": Peer("webdataset", "webdataset", _write_webdataset, _open_webdataset),
    "Lance": Peer("lance", "lance", _write_lance, _open_lance),
    "LanceDB": Peer(
        "lancedb", "lancedb", _write_lancedb, _LanceDBLoader, _save_loader, _load_loader
    ),
    "Grain": Peer("grain", "grain", _write_grain, _GrainLoader, _save_loader, _load_loader),
    "LitData": Peer(
        "litdata", "litdata", _write_litdata, _open_litdata, _save_loader, _load_loader
    ),
    "SPDL": Peer("spdl", "npz", _write_npz, _open_spdl),
}
"""The peers by their names in the table."""
