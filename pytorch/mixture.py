"""`Mixture`: several datasets as one, by weights."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, fields
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import UsageError
from ..formats.arguments import check_choice, check_text, list_items, refuse
from .announcement import Announcement, announce
from .blocks import BatchPlan, BlockSource, Rows, Run
from .dataset import Part, StreamDataset, check_seed
from .loader import StepDataset
from .metrics import Stage
from .mixing import (
    MixOrder,
    MixPosition,
    PartOrder,
    Places,
    RowFinder,
    Segment,
    Stop,
    Unit,
    divide_step,
    find_order,
    make_schedule,
    share_rows,
)
from .order import Span
from .position import STATE_FORMAT, Progress, check_state
from .provenance import StoredSource
from .record_batches import plain_schema, transform_batch, with_plain_types
from .tensors import convert_batch, torch


def make_part_order(part: Part, epoch: int, turn: int, cell_rows: int) -> PartOrder:
    """Return the order in which a mixture takes the rows of a part in one pass through it."""
    order = part.make_order(epoch if not turn else f"{epoch} pass {turn}")
    return PartOrder(order, part.lanes, cell_rows)


class Mixture(StepDataset):
    """Several datasets as one: each batch has rows of all of them, by weights.

    Use it like a `StreamDataset`, with ``batch_size=None``. What the parts state of batches applies
    to the mixture and must be the same in all of them: `batch_rows`, `rank`, `world_size`, `even`,
    `on_null`, `strings`, `collate`, `device`, `threads` and `prefetch_blocks`. Each part keeps its
    daemons, filter, columns, shuffle, seed and `transform`.

    The rows are one sequence for all ranks, which depends on nothing but the seeds, the weights and
    the epoch. A step takes the next ``batch_rows * world_size`` rows of it, so twice as many ranks
    with half as many rows get the same rows in the same steps.

    Parameters
    ----------
    parts : sequence of (StreamDataset, float)
        The datasets and their weights, in any unit.
    schedule : mapping or sequence of pairs, optional
        Further weights by the step from which they apply, such as ``{1000: [0.5, 0.5]}``, counted
        from the beginning of the epoch.
    unit : {"steps", "rows"}
        What the schedule counts: steps, or rows of all ranks.
    seed : int
        It determines from which part each row is. All ranks need the same one.
    stop : {"first", "all", "repeat"}
        When the epoch ends. ``first`` ends where the mixture needs a row of a part that has no more
        of them. ``all`` continues with the other parts, so that each row arrives once. ``repeat``
        begins exhausted parts again, in another order, until each part has been delivered once.
    label : str, optional
        The name of a tensor that states from which part each row is, by its index.

    Columns that a part lacks are null in its rows, so they need ``on_null="mask"`` or ``"fill"``.
    Parts with a `transform` must all arrive at the same columns.

    Raises
    ------
    UsageError
        If an argument is invalid, the parts differ in what must be the same, a column has types
        that do not go together, or a weighted part has no rows.
    """

    def __init__(
        self,
        parts: Sequence[tuple[StreamDataset, float]],
        *,
        schedule: Mapping[int, Sequence[float]] | Sequence[tuple[int, Sequence[float]]] = (),
        unit: Unit = "steps",
        seed: int = 0,
        stop: Stop = "first",
        label: str | None = None,
    ) -> None:
        datasets, weights = _split(parts)
        options = _common_options(datasets)
        if options.on_error != "raise":
            raise UsageError(
                "the parts of a mixture cannot leave rows out; pass on_error='raise' to all of them"
            )
        super().__init__(options)
        self.parts = [dataset.as_part() for dataset in datasets]
        """The datasets."""
        self._part_rows = [dataset.rows for dataset in datasets]
        self._schedule = make_schedule(weights, schedule, len(datasets))
        for part, rows in zip(self.parts, self._part_rows, strict=True):
            if not rows:
                raise UsageError(f"the dataset {part.plan.selection.name!r} has no rows to mix")
        self._unit: Unit = check_choice("unit", unit, Unit)
        self._seed = check_seed(seed)
        self._stop: Stop = check_choice("stop", stop, Stop)
        self.label = None if label is None else check_text("label", label)
        """The name of the tensor that states the part of each row."""
        self._schema = _unify([part for part in self.parts if part.transform is None])
        self._check_columns()
        self.value_categories = _join_categories(self.parts)
        """The categories of dictionary columns, as arrays."""

    def _check_columns(self) -> None:
        """Raise `UsageError` if the batches of the parts cannot be put together."""
        for part in self.parts:
            missing = set(self._schema.names) - set(part.plan.schema.names)
            if part.transform is None and missing and self.options.tensors.on_null == "error":
                raise UsageError(
                    f"the dataset {part.plan.selection.name!r} lacks {', '.join(sorted(missing))}; "
                    "pass on_null='mask' or 'fill' to all parts, or columns= or transform="
                )

    @property
    def categories(self) -> dict[str, list[Any]]:
        """The values that the codes of each dictionary column refer to, of all parts together."""
        return {name: values.to_pylist() for name, values in self.value_categories.items()}

    @property
    def rows(self) -> int:
        """The number of rows in an epoch, of all ranks together."""
        return len(self.find_order(self._start()))

    def find_order(self, position: MixPosition) -> MixOrder:
        """Return the sequence of rows of the epoch of a position."""
        key = (self._seed, position.epoch, "mixture")
        return find_order(tuple(self._part_rows), position.segments, key, self._stop)

    def find_rows(self, position: MixPosition, cell_rows: int = 1) -> RowFinder:
        """Return what finds the rows of the epoch of a position in the parts."""
        return RowFinder(
            self.find_order(position),
            self._part_rows,
            lambda part, turn: make_part_order(self.parts[part], position.epoch, turn, cell_rows),
        )

    def make_runs(
        self, places: Places, finder: RowFinder, needed: Places | None = None
    ) -> tuple[list[Run], Any]:
        """Return the runs with some rows, and for each row its index among those of all runs.

        `needed` are rows that lanes have passed, and later batches need.
        """
        groups, order = places.group()
        open_blocks: dict[tuple[int, int, int], set[int]] = {}
        for part, turn, lane, begin, end in needed.group()[0] if needed is not None else ():
            pieces = finder.part_order(part, turn).order.locate([(begin, end)])
            blocks = open_blocks.setdefault((part, turn, lane), set())
            blocks.update(piece.block for piece in pieces)
        runs: list[Run] = []
        for (part, turn, lane), members in groupby(groups, key=lambda group: group[:3]):
            later = frozenset(open_blocks.get((part, turn, lane), ()))
            spans = [(group.begin, group.end) for group in members]
            pieces = list(finder.part_order(part, turn).order.locate(spans))
            runs.append(Run(turn * len(self.parts) + part, lane, pieces, later))
        return runs, order

    def join_rows(self, plan: BatchPlan, rows: Rows) -> tuple[pa.Table, Any]:
        """Return the rows of the runs of a batch, and their parts."""
        tables: list[pa.Table] = []
        labels: list[int] = []
        counts = [(run.source % len(self.parts), len(run.pieces)) for run in plan.runs]
        for number, part_rows in rows.split(counts):
            batch = part_rows.to_record_batch()
            part = self.parts[number]
            if part.transform is not None:
                with Stage("transform"):
                    batch = transform_batch(part.transform, batch)
            tables.append(pa.Table.from_batches([with_plain_types(batch)]))
            labels += [number] * batch.num_rows
        table = pa.concat_tables(
            [self._schema.empty_table(), *tables], promote_options="permissive"
        )
        for each in tables:
            missing = set(table.column_names) - set(each.column_names)
            if missing and self.options.tensors.on_null == "error":
                raise UsageError(
                    f"the columns of a mixture differ: {', '.join(sorted(missing))} is missing "
                    "in what a transform returned"
                )
        return table, labels

    def _make_batch(self, plan: BatchPlan, rows: Rows) -> Any:
        with Stage("join"):
            table, labels = self.join_rows(plan, rows)
            order = pa.array(plan.detail)
            batch = table.unify_dictionaries().combine_chunks().to_batches()[0].take(order)
        tensors = convert_batch(batch, self.options.tensors, self.value_categories)
        if self.label is not None:
            tensors[self.label] = torch.tensor(labels)[torch.from_numpy(plan.detail)]
        return self.options.finish(tensors)

    @contextmanager
    def open_sources(
        self, epoch: int, reader: str, list_blocks: Callable[[int], Iterable[int]]
    ) -> Generator[Callable[[int], BlockSource]]:
        """Connect, announce what a reader reads, and return what finds a source by its number.

        `list_blocks` returns the blocks of a part in the order in which they are read. Each part
        has an announcement of its own: a server compares them by the bytes that precede a shard.
        """
        with ExitStack() as stack:
            clients = [stack.enter_context(part.servers.borrow()) for part in self.parts]
            announcements = [
                Announcement(client, part.plan, f"{reader}-{index}", partial(list_blocks, index))
                for index, (client, part) in enumerate(zip(clients, self.parts, strict=True))
            ]
            stack.enter_context(announce(announcements))

            def find_source(number: int) -> BlockSource:
                _, plan, order = self.find_stored(epoch, number)
                index = number % len(self.parts)
                return BlockSource(clients[index], plan, order, self.parts[index].lanes)

            yield find_source

    def list_blocks(
        self,
        index: int,
        position: MixPosition,
        rank: int,
        ranks: int,
        cell_rows: int = 1,
        held: Iterable[int] = (),
    ) -> Iterator[int]:
        """Yield the blocks of a part that a rank needs from a position on, and in the next epoch.

        `held` are earlier rows that it still needs. The order is that of the rows, which is exact
        for one rank. Of several, each reads some lanes and a few rows of others, and all workers
        of a rank read its lanes. The next epoch is taken to read as much of the part as this one.
        """
        order, part_rows = self.find_order(position), self._part_rows[index]
        begin, end = (order.taken(row)[index] for row in (position.rows, len(order)))
        spans = [(position.epoch, begin, end), (position.epoch + 1, 0, end)]
        places = (map(int, np.concatenate(order.rows(each, each + 1))) for each in held)
        spans[:0] = [(position.epoch, row, row + 1) for part, row in places if part == index]

        def divide() -> Iterator[tuple[int, int, Span]]:
            for epoch, first, last in spans:
                for turn in range(first // part_rows, -(-last // part_rows)):
                    start = turn * part_rows
                    yield epoch, turn, (max(first - start, 0), min(last - start, part_rows))

        for (epoch, turn), members in groupby(divide(), key=itemgetter(0, 1)):
            each = make_part_order(self.parts[index], epoch, turn, cell_rows)
            yield from each.list_blocks([span for *_, span in members], rank, ranks)

    def _open_sources(
        self, progress: Progress
    ) -> AbstractContextManager[Callable[[int], BlockSource]]:
        position = progress.start.after(progress.next)
        share = self.options.rank, self.options.world_size
        return self.open_sources(
            position.epoch,
            self._name_reader(progress),
            lambda index: self.list_blocks(index, position, *share),
        )

    def _plan_batches(self, position: MixPosition, numbers: Iterator[int]) -> Iterator[BatchPlan]:
        finder = self.find_rows(position)
        for number in numbers:
            places = self._find_batch(position, number, finder)
            runs, order = self.make_runs(places, finder)
            yield BatchPlan(number, runs, order)

    def _find_batch(self, position: MixPosition, number: int, finder: RowFinder) -> Places:
        """Return where the rows of a batch of this rank are."""
        options = self.options
        begin = position.after(number).rows
        places, fractions = finder.place(begin, begin + options.step_rows)
        chosen = divide_step(
            fractions, options.step_rows, options.world_size, options.even, options.rank
        )
        return places.take(chosen)

    def _find_start(self, resumed: MixPosition | None) -> MixPosition:
        return self._begin(self.epoch, resumed, self.options.step_rows, self._unit)

    def start_rows(self, epoch: int, resumed: MixPosition | None) -> MixPosition:
        """Return the position at which an epoch begins or continues, if each row is a step."""
        return self._begin(epoch, resumed, 1, "rows")

    def _begin(
        self, epoch: int, resumed: MixPosition | None, step_rows: int, unit: Unit
    ) -> MixPosition:
        if resumed is not None:
            return resumed.continued(step_rows, unit, self._schedule)
        return MixPosition(epoch, (Segment(0, 0, step_rows, unit, self._schedule),), 0)

    def check_packing(self, tokens: str, made: Sequence[str]) -> None:
        """Raise `UsageError` if a column cannot be packed, or would have the name of one made."""
        if self._unit == "steps" and len(self._schedule) > 1:
            raise UsageError("a schedule for packing counts rows; pass unit='rows'")
        for part in self.parts:
            names = part.plan.schema.names
            if tokens not in names:
                raise UsageError(
                    f"the dataset {part.plan.selection.name!r} has no column {tokens!r}; its "
                    f"columns are {', '.join(names)}"
                )
            if taken := set(names).intersection(made):
                raise UsageError(
                    f"the column {min(taken)!r} has the name of a tensor that packing makes; "
                    "choose others with columns="
                )

    def _find_stage(self, step: int) -> tuple[MixPosition, int]:
        position = self._start().at(step)
        if position.segments[-1].step_rows != self.options.step_rows:
            raise UsageError(
                f"step {step} had {position.segments[-1].step_rows} rows, which a state does not "
                "divide among ranks; make the dataset with the ranks and batch_rows of then"
            )
        return position, self.options.world_size

    def _find_source(self, position: MixPosition, number: int) -> StoredSource:
        return self.find_stored(position.epoch, number)

    def find_stored(self, epoch: int, number: int) -> StoredSource:
        """Return what the source with a number reads in an epoch."""
        turn, index = divmod(number, len(self.parts))
        part = self.parts[index]
        return StoredSource(part.servers, part.plan, make_part_order(part, epoch, turn, 1).order)

    def _describe(self, plan: BatchPlan, rows: pa.Table) -> pa.Table:
        return rows.take(pa.array(plan.detail))

    def _advance(self, position: MixPosition, steps: int) -> MixPosition:
        return position.after(steps)

    def _count_batches(self, position: MixPosition) -> int:
        last, options = position.segments[-1], self.options
        steps, rest = divmod(len(self.find_order(position)) - last.row, last.step_rows)
        begin, end = share_rows(
            rest, last.step_rows, options.world_size, options.even, options.rank
        )
        return last.step + steps + (begin < end)

    def _encode(self, position: MixPosition) -> dict[str, Any]:
        return {**self.encode_order(position), **position.encode()}

    def encode_order(self, position: MixPosition) -> dict[str, Any]:
        """Return what determines the order, and the position in each part, for checkpoints."""
        taken = self.find_order(position).taken(position.rows)
        parts = [
            {**asdict(part.identity), "rows": rows, "delivered": delivered}
            for part, rows, delivered in zip(self.parts, self._part_rows, taken, strict=True)
        ]
        settings = {**self._settings, "even": self.options.even}
        return {"format": STATE_FORMAT, **settings, "parts": parts}

    @property
    def _settings(self) -> dict[str, Any]:
        return {"kind": "mixture", "seed": self._seed, "stop": self._stop}

    def check_order(self, state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Raise `UsageError` if a checkpoint is of another order, or has other settings."""
        check_state(state, {**self._settings, **settings})
        if len(state["parts"]) != len(self.parts):
            raise UsageError(
                f"the state is that of a mixture of {len(state['parts'])} datasets, not "
                f"{len(self.parts)}"
            )
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.identity.check({"format": STATE_FORMAT, **saved})

    def _decode(self, state: Mapping[str, Any]) -> MixPosition:
        self.check_order(state, {})
        return MixPosition.decode(state)


def _split(parts: Any) -> tuple[list[StreamDataset], list[Any]]:
    """Return the datasets and their weights; raise `UsageError` if they are not pairs."""
    datasets: list[StreamDataset] = []
    weights: list[Any] = []
    for each in list_items("parts", parts, "pairs of a StreamDataset and its weight"):
        try:
            dataset, weight = each
        except (TypeError, ValueError):
            dataset, weight = None, None
        if not isinstance(dataset, StreamDataset):
            refuse("a part", each, "a StreamDataset and its weight")
        datasets.append(dataset)
        weights.append(weight)
    if not datasets:
        raise UsageError("parts is empty; expected one dataset or more")
    return datasets, weights


def _common_options(datasets: Sequence[StreamDataset]) -> Any:
    """Return how the parts make batches; raise `UsageError` if they differ in that."""
    first = datasets[0].options
    for dataset in datasets[1:]:
        for field in fields(first):
            mine, other = getattr(first, field.name), getattr(dataset.options, field.name)
            if mine != other:
                raise UsageError(
                    f"the parts of a mixture have different {field.name}: {mine!r} and {other!r}"
                )
    return first


def _unify(parts: Sequence[Part]) -> pa.Schema:
    """Return a schema with the columns of all parts; raise `UsageError` if types do not agree."""
    schemas = [plain_schema(part.plan.schema) for part in parts] or [pa.schema([])]
    try:
        schema: Any = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UsageError(
            f"the datasets have columns of one name and different types: {error}"
        ) from None
    return pa.schema(
        field if all(field.name in each.names for each in schemas) else field.with_nullable(True)
        for field in schema
    )


def _join_categories(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the categories of dictionary columns, of all parts together."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in part.plan.categories.items():
            found.setdefault(name, []).append(values)
    return {
        name: pa.chunked_array(values).combine_chunks().unique() for name, values in found.items()
    }
