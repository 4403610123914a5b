"""The tensors of a record batch, slice by slice.

To convert 20 columns of each small batch takes five times as long as to convert them once and to
make views of the tensors.
"""

from __future__ import annotations

import threading

import pyarrow as pa

from .plan import Categories
from .tensors import TensorOptions, Tensors, convert_batch, convert_plain
from .torch_module import torch

_VIEWS = 16
"""The slices whose views are made together."""


class BatchTensors:
    """The tensors of consecutive slices of a record batch. Safe to use from several threads.

    Columns that become tensors without a copy are converted once. A slice has views of them, which
    share a storage, but no version counter: autograd does not confuse them.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        The record batch.
    options : TensorOptions
        How to convert.
    categories : mapping of str to pyarrow.Array
        The categories of the dictionary columns.
    """

    def __init__(
        self, batch: pa.RecordBatch, options: TensorOptions, categories: Categories
    ) -> None:
        self._rows = batch.num_rows
        self._options = options
        self._categories = categories
        self._plain: Tensors = {}
        self._others: dict[str, pa.RecordBatch] = {}
        self._names = batch.schema.names
        for index, (field, array) in enumerate(zip(batch.schema, batch.columns, strict=True)):
            tensor = convert_plain(field, array, options)
            if tensor is None:
                self._others[field.name] = batch.select([index])
            else:
                self._plain[field.name] = tensor
        self._views: dict[tuple[int, int], Tensors] = {}
        self._lock = threading.Lock()

    def slice(self, begin: int, end: int) -> Tensors:
        """Return the tensors of the rows from `begin` to `end`, of which there is at least one.

        Raises
        ------
        SplitArrowError
            As `convert_batch` does.
        """
        plain = self._slice_plain(begin, end)
        if not self._others:
            return plain
        tensors: Tensors = {}
        for name in self._names:
            if name in plain:
                tensors[name] = plain[name]
            else:
                other = self._others[name].slice(begin, end - begin)
                tensors.update(convert_batch(other, self._options, self._categories))
        return tensors

    def _slice_plain(self, begin: int, end: int) -> Tensors:
        """Return the views of a slice, and make those of the slices after it as well."""
        if (begin, end) == (0, self._rows) or not self._plain:
            return dict(self._plain)
        with self._lock:
            if (begin, end) not in self._views:
                self._make_views(begin, end - begin)
            return self._views.pop((begin, end))

    def _make_views(self, begin: int, rows: int) -> None:
        end = min(begin + _VIEWS * rows, self._rows)
        # The outputs of `split` would share a version counter.
        columns = [torch.unsafe_split(each[begin:end], rows) for each in self._plain.values()]
        for views in zip(*columns, strict=True):
            last = min(begin + rows, end)
            self._views[begin, last] = dict(zip(self._plain, views, strict=True))
            begin = last
