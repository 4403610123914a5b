"""Which stored rows are in a batch: their dataset, version, shard, and number in the shard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..client.connect import AnyClient
from ..filters import decode_filter, encode_filter
from ..filters.binding import bind
from ..filters.evaluation import evaluate
from ..filters.tree import list_columns
from .blocks import Run
from .order import EpochOrder
from .plan import Block, DatasetPlan, Selection, Servers, call_with_client


def find_stored_rows(
    servers: Servers, plan: DatasetPlan, blocks: Collection[int]
) -> dict[int, Any]:
    """Return the numbers of the selected rows of blocks in their shards, by block.

    It reads nothing without a filter, and otherwise the columns that the filter refers to. Raises
    `SplitArrowError` as `Client.read` does.
    """
    if plan.selection.filter is not None:
        chosen = {index: plan.blocks[index] for index in blocks}
        return call_with_client(_select_rows, servers, plan.selection, chosen)
    begins: dict[int, int] = {}
    rows: dict[int, int] = {}
    for index, block in enumerate(plan.blocks):
        begins[index] = rows.get(block.shard, 0)
        rows[block.shard] = begins[index] + block.rows
    return {
        index: np.arange(begins[index], begins[index] + plan.blocks[index].rows) for index in blocks
    }


def _select_rows(
    client: AnyClient, selection: Selection, blocks: dict[int, Block]
) -> dict[int, Any]:
    """Return the numbers of the rows that the filter selects in each block."""
    version = selection.version or None
    stored = client.count_rows(selection.name, version=version)
    text = encode_filter(selection.filter, client.schema(selection.name))
    tree = decode_filter(text)
    columns = list_columns(tree)
    found: dict[int, Any] = {}
    for index, block in blocks.items():
        begin = sum(stored[block.shard][: block.first])
        with client.read(
            selection.name,
            columns=columns,
            version=version,
            shards=[block.shard],
            batches=(block.first, block.end),
        ) as stream:
            table: Any = stream.read_all()
        arrays = dict(enumerate(column.combine_chunks() for column in table.columns))
        mask = evaluate(bind(tree, table.schema), arrays, table.num_rows)
        found[index] = begin + np.flatnonzero(np.asarray(mask))
    return found


class StoredSource(NamedTuple):
    """What a source of rows reads."""

    servers: Servers
    """The control planes."""
    plan: DatasetPlan
    """The blocks."""
    order: EpochOrder
    """The order of the rows."""


def locate_runs(runs: Sequence[Run], find_source: Callable[[int], StoredSource]) -> pa.Table:
    """Return where the rows of some runs are stored, in the order of the runs.

    `find_source` returns what the source with a number reads.
    """
    sources = {run.source: find_source(run.source) for run in runs}
    needed: dict[int, set[int]] = {}
    for run in runs:
        needed.setdefault(run.source, set()).update(piece.block for piece in run.pieces)
    stored = {
        number: find_stored_rows(sources[number].servers, sources[number].plan, blocks)
        for number, blocks in needed.items()
    }
    names: list[str] = []
    versions: list[str] = []
    shards: list[int] = []
    rows: list[int] = []
    for run in runs:
        _, plan, order = sources[run.source]
        for piece in run.pieces:
            permutation = order.permutation(piece.block)
            chosen: Any = slice(piece.begin, piece.end)
            if permutation is not None:
                chosen = permutation.to_numpy()[chosen]
            found = stored[run.source][piece.block][chosen].tolist()
            rows += found
            names += [plan.selection.name] * len(found)
            versions += [plan.selection.version] * len(found)
            shards += [plan.blocks[piece.block].shard] * len(found)
    return pa.table(
        {
            "dataset": pa.array(names, pa.string()),
            "version": pa.array(versions, pa.string()),
            "shard": pa.array(shards, pa.int64()),
            "row": pa.array(rows, pa.int64()),
        }
    )
