"""`Mixture`: several datasets as one, by weights."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any, get_args

import pyarrow as pa

from ..errors import UsageError
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
    make_schedule,
    share_rows,
)
from .position import STATE_FORMAT, check_state
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
        for name, value, choices in (("stop", stop, Stop), ("unit", unit, Unit)):
            if value not in get_args(choices):
                raise UsageError(f"{name} is {value!r}; expected {', '.join(get_args(choices))}")
        super().__init__(_common_options(datasets))
        self._parts = [dataset.as_part() for dataset in datasets]
        self._part_rows = [dataset.rows for dataset in datasets]
        self._schedule = make_schedule(weights, schedule, len(datasets))
        for part, rows in zip(self._parts, self._part_rows, strict=True):
            if not rows:
                raise UsageError(f"the dataset {part.plan.selection.name!r} has no rows to mix")
        self._unit: Unit = unit
        self._seed = check_seed(seed)
        self._stop: Stop = stop
        self._label = label
        self._schema = _unify([part for part in self._parts if part.transform is None])
        self._check_columns()
        self._categories = _join_categories(self._parts)

    def _check_columns(self) -> None:
        """Raise `UsageError` if the batches of the parts cannot be put together."""
        for part in self._parts:
            missing = set(self._schema.names) - set(part.plan.schema.names)
            if part.transform is None and missing and self.options.tensors.on_null == "error":
                raise UsageError(
                    f"the dataset {part.plan.selection.name!r} lacks {', '.join(sorted(missing))}; "
                    "pass on_null='mask' or 'fill' to all parts, or columns= or transform="
                )

    @property
    def categories(self) -> dict[str, list[Any]]:
        """The values that the codes of each dictionary column refer to, of all parts together."""
        return {name: values.to_pylist() for name, values in self._categories.items()}

    @property
    def rows(self) -> int:
        """The number of rows in an epoch, of all ranks together."""
        return len(self.find_order(self._start()))

    def find_order(self, position: MixPosition) -> MixOrder:
        """Return the sequence of rows of the epoch of a position."""
        key = (self._seed, position.epoch, "mixture")
        return MixOrder(self._part_rows, position.segments, key, self._stop)

    def find_rows(self, position: MixPosition, cell_rows: int = 1) -> RowFinder:
        """Return what finds the rows of the epoch of a position in the parts."""
        return RowFinder(
            self.find_order(position),
            self._part_rows,
            lambda part, turn: make_part_order(self._parts[part], position.epoch, turn, cell_rows),
        )

    def make_runs(self, places: Places, finder: RowFinder) -> tuple[list[Run], Any]:
        """Return the runs with some rows, and for each row its index among those of all runs."""
        groups, order = places.group()
        runs: list[Run] = []
        for (part, turn, lane), members in groupby(groups, key=lambda group: group[:3]):
            spans = [(group.begin, group.end) for group in members]
            pieces = list(finder.part_order(part, turn).order.locate(spans))
            runs.append(Run(turn * len(self._parts) + part, lane, pieces))
        return runs, order

    def join_rows(self, plan: BatchPlan, rows: Rows) -> tuple[pa.Table, Any]:
        """Return the rows of the runs of a batch, and their parts."""
        tables: list[pa.Table] = []
        labels: list[int] = []
        counts = [(run.source % len(self._parts), len(run.pieces)) for run in plan.runs]
        for number, part_rows in rows.split(counts):
            batch = part_rows.to_record_batch()
            part = self._parts[number]
            if part.transform is not None:
                with Stage("transform"):
                    batch = part.transform(batch)
            tables.append(pa.Table.from_batches([batch]))
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
        tensors = convert_batch(batch, self.options.tensors, self._categories)
        if self._label is not None:
            tensors[self._label] = torch.tensor(labels)[torch.from_numpy(plan.detail)]
        return self.options.finish(tensors)

    @contextmanager
    def _open_sources(
        self, position: MixPosition, workers: int
    ) -> Generator[Callable[[int], BlockSource]]:
        with ExitStack() as stack:
            clients = [stack.enter_context(part.connect()) for part in self._parts]

            def find_source(number: int) -> BlockSource:
                turn, index = divmod(number, len(self._parts))
                part = self._parts[index]
                order = make_part_order(part, position.epoch, turn, 1)
                return BlockSource(clients[index], part.plan, order.order, order.lanes)

            yield find_source

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
        step_rows = self.options.step_rows
        if resumed is not None:
            return resumed.continued(step_rows, self._unit, self._schedule)
        segment = Segment(0, 0, step_rows, self._unit, self._schedule)
        return MixPosition(self.epoch, (segment,), 0)

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
        taken = self.find_order(position).taken(position.rows)
        parts = [
            {**asdict(part.identity), "rows": rows}
            for part, rows in zip(self._parts, taken, strict=True)
        ]
        mine = {"kind": "mixture", "seed": self._seed, "stop": self._stop, "parts": parts}
        return {"format": STATE_FORMAT, **mine, **position.encode()}

    def _decode(self, state: Mapping[str, Any]) -> MixPosition:
        check_state(state, {"kind": "mixture", "seed": self._seed, "stop": self._stop})
        if len(state["parts"]) != len(self._parts):
            raise UsageError(
                f"the state is that of a mixture of {len(state['parts'])} datasets, not "
                f"{len(self._parts)}"
            )
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.identity.check({"format": STATE_FORMAT, **saved})
        return MixPosition.decode(state)


def _split(parts: Any) -> tuple[list[StreamDataset], list[Any]]:
    """Return the datasets and their weights; raise `UsageError` if they are not pairs."""
    datasets: list[StreamDataset] = []
    weights: list[Any] = []
    for each in parts:
        try:
            dataset, weight = each
        except (TypeError, ValueError):
            dataset, weight = None, None
        if not isinstance(dataset, StreamDataset):
            raise UsageError(f"a part is {each!r}; expected a StreamDataset and its weight")
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
    schemas = [part.plan.schema for part in parts]
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
