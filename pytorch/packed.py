"""`Packed`: lists of tokens in rows of a fixed length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DatasetError, InvalidDataError, UsageError
from ..formats.arguments import check_integer, check_text, refuse
from .blocks import BatchPlan, BlockSource, Rows
from .dataset import Part, StreamDataset
from .loader import StepDataset
from .metrics import Stage
from .mixing import Places, RowFinder, divide_step
from .mixture import Mixture
from .packing import (
    Pack,
    Packer,
    PackPosition,
    PackSequence,
    Place,
    Policy,
    check_policy,
    count_tokens,
)
from .plan import call_with_client, find_lengths
from .position import Progress
from .provenance import StoredSource
from .tensors import convert_batch, torch

CELL_ROWS = 32
"""The documents that follow each other from one lane, so that a pack needs few blocks."""
_MANY = 1 << 62
_MADE = ("position_ids", "segment_ids", "cu_seqlens", "max_seqlen")


class _Detail(NamedTuple):
    """What the conversion needs to know of a batch."""

    packs: list[Pack]
    """The packs of the batch."""
    rows: dict[int, int]
    """The row of each document in the record batch."""
    lengths: Any
    """The lengths of these rows, as the daemon states them."""


class Packed(StepDataset):
    """Lists of tokens in rows of a fixed length, for language models.

    Use it like a `StreamDataset`, with ``batch_size=None``. A batch has `batch_rows` packs, as the
    dataset states. Each token arrives exactly once, in a pack that depends on nothing but the order
    of the dataset: packs are made of one sequence of documents for all ranks, and a run continues
    in the middle of it with other ranks and workers. Documents without tokens are left out.

    A batch is a dict with these tensors, where `rows` is the number of packs:

    - `tokens`, and every other column of lists that are as long: (rows, length), integers as int64;
    - ``position_ids``: (rows, length), int64, the positions in the document or its part, from 0;
    - ``segment_ids``: (rows, length), int32, the number of the document in its row from 1 on, and 0
      for padding;
    - ``cu_seqlens``: int32, where each document, and the padding of a row, begins among all tokens
      of the batch, and the end of the last one, as FlashAttention and
      ``torch.nested.nested_tensor_from_jagged`` take it, with the tensors flattened;
    - ``max_seqlen``: the length of the longest of these, as an int;
    - each other column: a value for each document or part of one, in the order of the tokens.

    Parameters
    ----------
    dataset : StreamDataset or Mixture
        The documents. Of a mixture, a schedule must count rows.
    tokens : str
        The column of lists.
    length : int
        The number of tokens in a row.
    policy : {"fit", "split"}
        ``fit`` puts each document into the first of the open packs that has room for it, and splits
        only documents that are longer than `length`; what is left of a pack is padding. ``split``
        puts documents one after the other and splits them where a row ends; only the last row of an
        epoch is padded.
    window : int
        The number of packs that are open at a time with ``fit``. More leave less padding.
    pad : int, or mapping of str to int
        The token that fills the rest of a row, or such a value for each column.

    The dataset first asks the daemons for the lengths of all lists, and keeps four bytes for each.

    Raises
    ------
    UsageError
        If an argument is invalid, or the column is missing or has no lists.
    SplitArrowError
        As `Client.list_lengths` does.
    """

    def __init__(
        self,
        dataset: StreamDataset | Mixture,
        tokens: str = "input_ids",
        length: int = 4096,
        *,
        policy: Policy = "fit",
        window: int = 64,
        pad: int | Mapping[str, int] = 0,
    ) -> None:
        check_policy(length, policy, window)
        if isinstance(dataset, StreamDataset):
            dataset = Mixture([(dataset, 1)], stop="all")
        if not isinstance(dataset, Mixture):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse("dataset", dataset, "a StreamDataset or a Mixture")
        check_text("tokens", tokens)
        super().__init__(dataset.options)
        dataset.check_packing(tokens, _MADE)
        self._documents = dataset
        self._tokens = tokens
        self._length = length
        self._policy: Policy = policy
        self._window = window
        self._pad = _check_pad(pad)
        on_null = dataset.options.tensors.on_null
        self._lengths: list[Any] = []
        for part in dataset.parts:
            lengths = call_with_client(find_lengths, part.servers, part.plan.selection, tokens)
            self._lengths.append(_check_lengths(lengths, part, tokens, on_null))
        self._begins = [
            np.cumsum([0, *(block.rows for block in part.plan.blocks)]) for part in dataset.parts
        ]
        self._memo: tuple[PackPosition, PackPosition] | None = None
        """A start, and the last position that was found from it."""

    def __len__(self) -> int:
        """Return the number of batches that this rank delivers in the next iteration.

        It packs all documents, which takes some seconds for each million.
        """
        start = self._resume(self._shared.is_pending)
        return sum(1 for _ in self._take_packs(start, self._list_numbers(start)))

    def _make_sequence(self, position: PackPosition) -> tuple[PackSequence, RowFinder]:
        finder = self._documents.find_rows(position.documents, CELL_ROWS)
        lanes = sum(part.lanes for part in self._documents.parts)

        @lru_cache(maxsize=2 * lanes + 16)
        def arrange(part: int, turn: int, block: int) -> Any:
            begin, end = self._begins[part][block : block + 2]
            lengths = self._lengths[part].numpy()[begin:end]
            permutation = finder.part_order(part, turn).order.permutation(block)
            return lengths if permutation is None else lengths[permutation.to_numpy()]

        def look_up(places: Places) -> Any:
            found = np.empty(len(places.parts), np.int64)
            for part, turn in set(zip(places.parts.tolist(), places.turns.tolist(), strict=True)):
                chosen = np.flatnonzero((places.parts == part) & (places.turns == turn))
                order = finder.part_order(part, turn).order
                blocks, rows = order.find(places.positions[chosen])
                for block in np.unique(blocks).tolist():
                    inside = blocks == block
                    found[chosen[inside]] = arrange(part, turn, block)[rows[inside]]
            return found

        packer = Packer(self._length, self._policy, self._window, position.open_packs)
        return PackSequence(position, packer, finder, look_up), finder

    def _take_packs(
        self, position: PackPosition, numbers: Iterator[int]
    ) -> Iterator[tuple[int, list[Pack], PackSequence, RowFinder]]:
        """Yield the packs of this rank in each of some steps."""
        options = self.options
        sequence, finder = self._make_sequence(position)
        step = position.steps
        for number in numbers:
            for _ in range(number - step):
                sequence.take(options.step_rows)
                sequence.forget()
            packs, step = sequence.take(options.step_rows), number + 1
            fractions = np.array([sequence.place(pack[0].document).fraction for pack in packs])
            chosen = divide_step(
                fractions, options.step_rows, options.world_size, options.even, options.rank
            )
            if not len(chosen):
                return
            yield number, [packs[index] for index in chosen], sequence, finder
            sequence.forget()

    def _plan_batches(self, position: PackPosition, numbers: Iterator[int]) -> Iterator[BatchPlan]:
        for number, packs, sequence, finder in self._take_packs(position, numbers):
            documents = dict.fromkeys(part.document for pack in packs for part in pack)
            places = _join(sequence.place(document) for document in documents)
            lengths = sequence.find_lengths(places)
            runs, order = self._documents.make_runs(places, finder, _join(sequence.forget()))
            rows = dict(zip(documents, order.tolist(), strict=True))
            yield BatchPlan(number, runs, _Detail(packs, rows, lengths[np.argsort(order)]))

    def _open_sources(
        self, progress: Progress
    ) -> AbstractContextManager[Callable[[int], BlockSource]]:
        share = self.options.rank, self.options.world_size
        if self._policy == "fit":  # the documents of a pack come from all lanes
            share = 0, 1

        def list_blocks(index: int) -> Iterator[int]:
            position = self._advance(progress.start, progress.next)
            packs = (*position.ready, *position.open_packs)
            held = sorted({part.document for pack in packs for part in pack})
            return self._documents.list_blocks(index, position.documents, *share, CELL_ROWS, held)

        reader = self._name_reader(progress)
        return self._documents.open_sources(progress.start.epoch, reader, list_blocks)

    def _make_batch(self, plan: BatchPlan, rows: Rows) -> Any:
        detail: _Detail = plan.detail
        with Stage("join"):
            table, labels = self._documents.join_rows(plan, rows)
            (batch,) = table.unify_dictionaries().combine_chunks().to_batches()
        lengths = _measure(batch[self._tokens])
        if not np.array_equal(lengths, detail.lengths):
            raise DatasetError(
                f"the lengths of the lists in {self._tokens!r} are others than the daemon stated; "
                "a transform must not change them"
            )
        layout = _Layout(detail, lengths, self._length)
        packed = [name for name in batch.schema.names if self._is_packed(batch[name], lengths)]
        tensors: dict[str, Any] = {}
        for name in packed:
            values: Any = pc.list_flatten(batch[name])
            column = pa.record_batch([values], names=[name])
            flat = convert_batch(column, self.options.tensors, {})[name]
            tensors[name] = layout.fill(flat, self._find_pad(name))
        tensors.update(layout.tensors)
        others = [name for name in batch.schema.names if name not in packed]
        if others:
            values = batch.select(others).take(pa.array(layout.rows))
            tensors.update(
                convert_batch(values, self.options.tensors, self._documents.value_categories)
            )
        if self._documents.label is not None:
            tensors[self._documents.label] = torch.tensor(labels)[layout.rows]
        return self.options.finish(tensors)

    def _is_packed(self, array: Any, lengths: Any) -> bool:
        """Return whether a column has a value for each token."""
        kind = array.type
        is_list = any(test(kind) for test in _LISTS)
        return is_list and _is_number(kind.value_type) and np.array_equal(_measure(array), lengths)

    def _find_pad(self, name: str) -> float:
        if isinstance(self._pad, Mapping):
            return self._pad.get(name, 0)
        return self._pad if name == self._tokens else 0

    def _find_start(self, resumed: PackPosition | None) -> PackPosition:
        if resumed is None:
            return PackPosition(0, self._documents.start_rows(self.epoch, None))
        documents = self._documents.start_rows(self.epoch, resumed.documents)
        return replace(resumed, documents=documents)

    def _find_stage(self, step: int) -> tuple[PackPosition, int]:
        start = self._start()
        if step < start.steps:
            raise UsageError(
                f"step {step} is over at step {start.steps}, where this dataset continues; locate "
                "it with one that begins at an earlier step"
            )
        return start, self.options.world_size

    def _find_source(self, position: PackPosition, number: int) -> StoredSource:
        return self._documents.find_stored(position.epoch, number)

    def _describe(self, plan: BatchPlan, rows: pa.Table) -> pa.Table:
        detail: _Detail = plan.detail
        parts = [(n, part) for n, pack in enumerate(detail.packs) for part in pack]
        located: Any = rows.take(pa.array([detail.rows[part.document] for _, part in parts]))
        columns = {
            "pack": [number for number, _ in parts],
            "begin": [part.begin for _, part in parts],
            "end": [part.end for _, part in parts],
        }
        for name, values in columns.items():
            located = located.append_column(name, pa.array(values, pa.int64()))
        return located

    def _advance(self, position: PackPosition, steps: int) -> PackPosition:
        if steps == position.steps:
            return position
        current = position
        memo = self._memo  # an announcement replaces it in a thread
        if memo is not None and memo[0] == position and memo[1].steps <= steps:
            current = memo[1]  # checkpoints are taken in ascending order
        sequence, _ = self._make_sequence(current)
        for _ in range(steps - current.steps):
            sequence.take(self.options.step_rows)
        self._memo = position, sequence.position
        return sequence.position

    def _count_batches(self, position: PackPosition) -> int:
        return _MANY

    @property
    def _settings(self) -> dict[str, Any]:
        settings = {"tokens": self._tokens, "length": self._length, "policy": self._policy}
        return {"kind": "packed", **settings, "window": self._window}

    def _encode(self, position: PackPosition) -> dict[str, Any]:
        order = self._documents.encode_order(position.documents)
        return {**order, **self._settings, **position.encode()}

    def _decode(self, state: Mapping[str, Any]) -> PackPosition:
        self._documents.check_order(state, self._settings)
        return PackPosition.decode(state)


class _Layout:
    """Where the tokens of the documents of a batch are in its packs."""

    def __init__(self, detail: _Detail, lengths: Any, length: int) -> None:
        begins = np.cumsum(lengths) - lengths
        parts = [part for pack in detail.packs for part in pack]
        self.rows = [detail.rows[part.document] for part in parts]
        """The row of each document or part of one in the record batch."""
        counts = np.array([end - begin for _, begin, end in parts], np.int64)
        numbers = np.array([n for pack in detail.packs for n in range(1, len(pack) + 1)], np.int64)
        self._shape = (len(detail.packs), length)
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = begins[self.rows] + np.array([part.begin for part in parts], np.int64)
        self._sources = torch.from_numpy(np.repeat(first, counts) + inside)
        used = np.array([count_tokens(pack) for pack in detail.packs], np.int64)
        in_row = np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used)
        targets = np.repeat(np.arange(len(used)) * length, used) + in_row
        self._targets = torch.from_numpy(targets)
        positions = np.tile(np.arange(length), len(used)) - np.repeat(used, length)
        positions[targets] = inside
        segments = np.zeros(len(used) * length, np.int32)
        segments[targets] = np.repeat(numbers, counts)
        starts = np.append(np.flatnonzero(positions == 0), len(positions))
        self.tensors = {
            "position_ids": torch.from_numpy(positions).reshape(self._shape),
            "segment_ids": torch.from_numpy(segments).reshape(self._shape),
            "cu_seqlens": torch.from_numpy(starts.astype(np.int32)),
            "max_seqlen": int(np.diff(starts).max()),
        }
        """The tensors that describe the packs."""

    def fill(self, values: Any, pad: float) -> Any:
        """Return the values of all documents in their packs."""
        if not (values.dtype.is_floating_point or values.dtype == torch.bool):
            values = values.long()
        rows, length = self._shape
        filled = torch.full((rows * length, *values.shape[1:]), pad, dtype=values.dtype)
        filled[self._targets] = values[self._sources]
        return filled.reshape(rows, length, *values.shape[1:])


_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _measure(array: Any) -> Any:
    """Return the lengths of lists; a null has no values."""
    return _fill_lengths(pc.list_value_length(array)).astype(np.int64)


def _fill_lengths(lengths: Any) -> Any:
    """Return lengths as a NumPy array; a null list has no values."""
    return np.asarray(lengths.fill_null(0))


def _join(places: Iterable[Place]) -> Places:
    columns = list(zip(*places, strict=True))[:4] or [()] * 4
    return Places(*(np.array(column, np.int64) for column in columns))


def _check_pad(pad: Any) -> Any:
    """Return the value that fills the rest of a row, or a mapping of columns to such values."""
    begin, end = -(1 << 63), 1 << 63
    if not isinstance(pad, Mapping):
        return check_integer("pad", pad, begin, end)
    items = cast("Mapping[Any, Any]", pad).items()
    return {
        check_text("a column in pad", name): check_integer(f"pad[{name!r}]", value, begin, end)
        for name, value in items
    }


def _check_lengths(lengths: Any, part: Part, tokens: str, on_null: str) -> Any:
    """Return the lengths of all lists as a tensor that processes share."""
    name = part.plan.selection.name
    if lengths.null_count and on_null == "error":
        raise InvalidDataError(
            f"the column {tokens!r} of {name!r} has {lengths.null_count} nulls; pass on_null='fill'"
        )
    expected = sum(block.rows for block in part.plan.blocks)
    if len(lengths) != expected:
        raise DatasetError(f"{len(lengths)} lengths for {expected} rows", stream=name)
    return torch.from_numpy(_fill_lengths(lengths).astype(np.int32)).share_memory_()
