"""Planning in a process of its own, so that the trainer does not start gRPC before it forks.

A loader can fork the trainer safely only while the trainer does not use gRPC.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..client.connect import AnyClient
from ..errors import ConnectionLostError, SplitArrowError
from ..grpc_usage import GRPC_USAGE
from ..pandas_import import prevent_pandas_import
from .plan import DatasetPlan, Selection, make_plan

Connect = Callable[[], AnyClient]
"""Connects to the control planes. It can be pickled."""
Task = tuple[Connect, Selection, int, Mapping[str, Sequence[Any]]]
"""How to connect, and the other arguments of `make_plan`."""

_PROGRAM = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from splitarrow.pytorch.planning import run_task
run_task()
"""


def plan_dataset(
    connect: Connect,
    selection: Selection,
    window_rows: int,
    categories: Mapping[str, Sequence[Any]],
) -> DatasetPlan:
    """Return what `make_plan` returns, in a process of its own if loaders fork by default.

    Parameters
    ----------
    connect : callable
        Connects to the control planes. It can be pickled, and so can the other arguments.
    selection, window_rows, categories
        As in `make_plan`.

    Raises
    ------
    ConnectionLostError
        If the process ends without a result.
    SplitArrowError
        As `splitarrow.connect` and `make_plan` do.
    """
    if default_start_method() != "fork" or GRPC_USAGE.has_fork_support:
        with connect() as client:
            return make_plan(client, selection, window_rows, categories)
    return _plan_in_process((connect, selection, window_rows, categories))


def default_start_method() -> str:
    """Return how loaders start their workers by default."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _plan_in_process(task: Task) -> DatasetPlan:
    name = task[1].name
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=pickle.dumps(sys.path) + pickle.dumps(task),
        stdout=subprocess.PIPE,
        check=False,
    )
    if process.returncode:
        raise ConnectionLostError(
            f"the process that plans {name!r} ended with status {process.returncode}; "
            "its standard error names the reason",
            stream=name,
        )
    result: DatasetPlan | SplitArrowError = pickle.loads(process.stdout)
    if isinstance(result, SplitArrowError):
        raise result
    return result


def run_task() -> None:
    """Plan the dataset that standard input describes, and write the result to standard output."""
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    task: Task = pickle.load(sys.stdin.buffer)
    prevent_pandas_import()  # which has no effect if the task contains objects of pandas
    connect, selection, window_rows, categories = task
    try:
        with connect() as client:
            result = make_plan(client, selection, window_rows, categories)
    except SplitArrowError as error:
        result = error
    with open(output, "wb") as file:
        file.write(pickle.dumps(result))
