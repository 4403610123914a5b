"""Copying the file of a shard from another daemon."""

from __future__ import annotations

import io
from typing import Any

from ..client.dataset.client import Client
from ..protocol.request import FILE, MAX_COUNT
from ..publication.storage import Progress, write_all

_PREFETCH_BYTES = 16 << 20


def copy_shard(
    client: Client,
    name: str,
    version: str,
    ordinal: int,
    file: io.FileIO,
    progress: Progress | None,
    **options: Any,
) -> None:
    """Copy the file of a shard, from where a local file ends. The options are those of a read."""
    read = client.read(
        name,
        format=FILE,
        shards=[ordinal],
        version=version,
        rows=(file.tell(), MAX_COUNT),
        prefetch_bytes=_PREFETCH_BYTES,
        **options,
    )
    with read as stream:
        for batch in stream:
            values: Any = batch.column(0)
            data = memoryview(values.buffers()[1])[values.offset :][: len(values)]
            write_all(file, data)
            if progress is not None:
                progress(file.tell())
