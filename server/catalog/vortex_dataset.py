"""A dataset as its readers in the format Vortex see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from ...protocol.request import Request
from .dataset import Dataset, Encoding, Shard, Source
from .files.vortex_stream import VortexStreamDataset
from .messages.generator_source import GeneratorSource
from .messages.vortex_encoding import encode_arrays

VORTEX = "vortex"
"""The name of the format in requests."""


class VortexDataset:
    """A dataset whose record batches are sent as Vortex arrays. See `Dataset`.

    The record batches are those of the dataset: shards, filters, columns, limits and batch sizes
    apply before they are encoded.

    Parameters
    ----------
    original : Dataset
        The dataset.
    """

    def __init__(self, original: Dataset) -> None:
        self.original = original
        """The dataset."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self.original.schema

    @property
    def rows(self) -> int | None:
        """The number of rows; see `Dataset.rows`."""
        return self.original.rows

    @property
    def nbytes(self) -> int | None:
        """The stored size in bytes."""
        return self.original.nbytes

    @property
    def kind(self) -> str:
        """The type of the data."""
        return self.original.kind

    @property
    def version(self) -> str:
        """The version of the data."""
        return self.original.version

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards in order."""
        return self.original.shards

    def open(self, request: Request, encoding: Encoding) -> Source:
        """Open the dataset for one reader; see `Dataset.open`.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the server lacks the extra ``vortex``.
        """
        stored = self.open_stored(request, regions=encoding.regions)
        if stored is not None:
            return stored
        plain = replace(request, format=None, compression="none")
        source = self.original.open(
            plain, Encoding(None, encoding.batch_rows, budget=encoding.budget)
        )
        label = f"the dataset {request.dataset!r}"
        encoded = GeneratorSource(encode_arrays(source, label, request.dataset), blocking=True)
        encoded.call_on_close(source.close)  # a generator that has not begun runs no cleanup
        return encoded

    def open_stored(self, request: Request, *, regions: bool = False) -> Source | None:
        """Open stored arrays, which need no encoding; None if the request needs others.

        Parameters and errors are those of `open`.
        """
        if not isinstance(self.original, VortexStreamDataset):
            return None
        return self.original.open_arrays(request, regions=regions)

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each stored batch contributes; see `Dataset.count_rows`."""
        return self.original.count_rows(replace(request, format=None), encoding)

    def close(self) -> None:
        """Do nothing: the catalog closes the dataset."""
