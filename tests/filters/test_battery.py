"""Random filters select the rows that DuckDB selects, from every kind of source.

A case is a number. It draws a table, a source that holds the table, the way of the data, a
condition and the style in which the condition is written. To repeat the case 4711:

    FILTER_SEED=4711 pytest tests/filters/test_battery.py -k rows
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import flight, substrait

import splitarrow
from helpers.filter_conditions import (
    STYLES,
    Among,
    Columns,
    NotWritableError,
    list_leaves,
    list_paths,
    permitted_outcomes,
    render,
    simplify,
)
from helpers.filter_drawing import draw_condition
from helpers.filter_oracle import Oracle, RejectedError, evaluate
from helpers.filter_tables import ROW, SOURCES, draw_table, list_columns, write_source
from splitarrow.errors import ExhaustedError, InvalidRequestError, UsageError

GROUPS = 6
CASES = 2_508
LONG_CASES = 200_000
LONG_GROUPS = 40
CASES_PER_TABLE = 209  # so that a group has whole tables: 2 of them make 418 cases
TRANSPORTS = ("tcp", "shm", "flight")  # the last one is DoGet
_SHRUNK = 3
"""The number of failures of a group that are made smaller and printed."""
_ATTEMPTS = 150
"""The number of smaller cases that are tried for each of them."""


@dataclass(frozen=True)
class Case:
    """One filter, on one source, in one style, over one transport."""

    seed: int
    source: str
    transport: str
    style: str
    lowercase: bool
    condition: Any
    extra: tuple[str, ...] | None = ()
    """The columns to read besides `ROW`; None reads all."""

    @property
    def filter(self) -> Any:
        return render(self.condition, self.style, self.lowercase)


@dataclass(frozen=True)
class Result:
    """What a read returned, beside what was right."""

    outcome: str
    """``equal``, ``refused``, or else the failure."""
    found: Any
    expected: Any

    @property
    def fails(self) -> bool:
        return self.outcome not in ("equal", "refused")


class Tables:
    """The sources of one drawn table, served, with the oracle of each."""

    def __init__(self, client: splitarrow.Client, tables: dict[str, pa.Table]) -> None:
        self.client = client
        self.tables = tables
        self.columns: dict[str, Columns] = {
            source: list_columns(table) for source, table in tables.items()
        }
        self.oracle = Oracle()
        for source, columns in self.columns.items():
            self.oracle.add_table(source, columns)

    def select(self, cases: Sequence[Case]) -> list[list[int]]:
        """Return the values of `ROW` that each case selects, according to the oracle."""
        found: dict[int, list[int]] = {}
        for source, columns in self.columns.items():
            here = [case for case in cases if case.source == source and _has_rows(case, columns)]
            ids = columns[(ROW,)].values
            for begin in range(0, len(here), 40):
                part = here[begin : begin + 40]
                selected = self.oracle.select(source, [(c.condition, c.style) for c in part])
                for case, rows in zip(part, selected, strict=True):
                    found[id(case)] = [ids[row] for row in rows]
        return [found.get(id(case), []) for case in cases]

    def run(self, case: Case, expected: list[int]) -> Result:
        """Read the rows of a case, and compare them with those that are expected."""
        permitted = permitted_outcomes(case.condition, self.columns[case.source], case.style)
        names = None if case.extra is None else [ROW, *case.extra]
        try:
            table = self._read(case, names)
        except (UsageError, InvalidRequestError) as error:
            outcome = "refused" if "refused" in permitted else "wrongly refused"
            return Result(outcome, f"{type(error).__name__}: {error}", expected)
        except (Exception, pl.exceptions.PanicException) as error:
            return Result(f"{type(error).__name__}", f"{type(error).__name__}: {error}", expected)
        rows = table[ROW].to_pylist()
        if "rows" not in permitted:
            return Result("not refused", rows, "a refusal")
        if names is not None and table.column_names != names:
            return Result("other columns", table.column_names, names)
        return Result("equal" if rows == expected else "other rows", rows, expected)

    def _read(self, case: Case, names: list[str] | None) -> pa.Table:
        has_list = any(isinstance(leaf, Among) for leaf in list_leaves(case.condition))
        if case.transport == "flight" and case.style == "pyarrow" and not has_list:
            # Substrait cannot express every filter, and its lists are those of SQL.
            with suppress(pa.ArrowException):
                return self._read_with_flight(case, names)
        try:
            with self.client.read(
                case.source, filter=case.filter, columns=names, transport=case.transport
            ) as stream:
                return stream.read_all()
        except ExhaustedError:
            if case.transport != "shm":
                raise
            return self._read(replace(case, transport="tcp"), names)  # the host lacks memory

    def _read_with_flight(self, case: Case, names: list[str] | None) -> pa.Table:
        """Read with pyarrow's Flight client, and the filter in Substrait."""
        used = sorted({path[0] for path in list_paths(case.condition)})
        schema = pa.schema([self.tables[case.source].schema.field(name) for name in used])
        plan = substrait.serialize_expressions([case.filter], ["filter"], schema)
        text = base64.urlsafe_b64encode(bytes(plan)).rstrip(b"=").decode()
        command = {"dataset": case.source, "columns": names, "filter": text}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        with flight.connect(self.client.uri) as client:
            endpoints = client.get_flight_info(descriptor).endpoints
            return pa.concat_tables(client.do_get(each.ticket).read_all() for each in endpoints)


def _has_rows(case: Case, columns: Columns) -> bool:
    return "rows" in permitted_outcomes(case.condition, columns, case.style)


@contextmanager
def serve(table: pa.Table, seed: int, sources: Iterable[str]) -> Generator[Tables]:
    """Serve a table in some sources."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {source: write_source(source, table, Path(folder), seed) for source in sources}
        with (
            splitarrow.serve(
                paths, listen=["tcp://127.0.0.1:0", "shm://"], control="grpc://127.0.0.1:0"
            ) as server,
            splitarrow.connect(server.control_uri or "") as client,
        ):
            tables = {source: _read_all(client, source) for source in paths}
            served = Tables(client, tables)
            try:
                yield served
            finally:
                served.oracle.close()


def _read_all(client: splitarrow.Client, source: str) -> pa.Table:
    with client.read(source, transport="tcp") as stream:
        return stream.read_all()


def draw_case(seed: int, served: dict[str, Columns]) -> Case:
    rng = random.Random(f"case {seed}")
    style = rng.choice((*STYLES, "sql"))
    source = rng.choice(list(served))
    columns = served[source]
    condition = draw_condition(rng, columns, style)
    extra: Any = ()
    if rng.random() < 0.1:
        extra = (".".join(rng.choice([path for path in columns if path != (ROW,)])),)
    elif rng.random() < 0.1:
        extra = None
    return Case(seed, source, rng.choice(TRANSPORTS), style, rng.random() < 0.3, condition, extra)


def run_cases(seeds: Sequence[int]) -> Iterator[tuple[Case, Result, pa.Table]]:
    """Run cases, with their results and the tables that they read, as served."""
    for number in sorted({seed // CASES_PER_TABLE for seed in seeds}):
        table = draw_table(number)
        with serve(table, number, SOURCES) as served:
            here = [seed for seed in seeds if seed // CASES_PER_TABLE == number]
            cases = [draw_case(seed, served.columns) for seed in here]
            for case, expected in zip(cases, served.select(cases), strict=True):
                yield case, served.run(case, expected), served.tables[case.source]


# --- smaller cases -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A case that fails, and the table that it reads."""

    case: Case
    result: Result
    table: pa.Table

    def describe(self) -> str:
        case = self.case
        text = str(case.filter) if case.style == "polars" else repr(case.filter)
        used = {path[0] for path in list_paths(case.condition)} | {ROW}
        table = self.table.select([name for name in self.table.column_names if name in used])
        others = self.table.num_columns - table.num_columns
        lines = [
            f"seed {case.seed}: {self.result.outcome}",
            f"  {case.style}: {text}"[:2000],
            f"  source: {case.source}, transport: {case.transport}, columns: {case.extra}",
            *(f"  {field.name}: {field.type}" for field in table.schema),
            *([f"  and {others} other columns"] if others else []),
            f"  {_to_text(table.slice(0, 20))}"[:1500],
            f"  expected: {str(self.result.expected)[:300]}",
            f"  found:    {str(self.result.found)[:500]}",
        ]
        return "\n".join(lines)


def _to_text(table: pa.Table) -> str:
    parts: list[str] = []
    for name in table.column_names:
        values = [str(value) for chunk in table[name].chunks for value in chunk]
        parts.append(f"{name}: [{', '.join(values)}]")
    return ", ".join(parts)


class Shrinker:
    """Makes a case smaller while it fails."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._attempts = _ATTEMPTS

    def run(self) -> Problem:
        """Return the smallest case that was found."""
        plain = replace(self.problem.case, transport="tcp", extra=(), lowercase=False)
        if not self._try(plain, self.problem.table):
            return self.problem  # it fails only as it was, or beside other reads
        while self._step():
            pass
        return self.problem

    def _step(self) -> bool:
        """Try all smaller cases, and return whether one of them fails."""
        case, table = self.problem.case, self.problem.table
        for smaller in simplify(case.condition):
            if self._try(replace(case, condition=smaller), table):
                return True
        used = {path[0] for path in list_paths(case.condition)} | {ROW}
        others = [name for name in table.column_names if name not in used]
        for part in _parts(others):
            kept = [name for name in table.column_names if name not in part]
            if self._try(case, table.select(kept)):
                return True
        if case.style != "sql" and self._try(replace(case, style="sql"), table):
            return True
        if case.source != "arrow" and self._try(replace(case, source="arrow"), table):
            return True
        for part in _parts(range(len(table))):
            if len(part) < len(table) and self._try(case, table.slice(part[0], len(part))):
                return True
        return bool(len(table)) and self._try(case, table.slice(0, 0))

    def _try(self, case: Case, table: pa.Table) -> bool:
        if not self._attempts:
            return False
        self._attempts -= 1
        try:
            case.filter  # noqa: B018
            result, read = run_alone(case, table)
        except (NotWritableError, RejectedError, LookupError, TypeError, ValueError):
            return False
        is_same = result.outcome == self.problem.result.outcome
        if is_same:
            self.problem = Problem(case, result, read)
        return is_same


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield all items, the halves, the quarters and so on."""
    size = len(items)
    while size:
        yield from (items[begin : begin + size] for begin in range(0, len(items), size))
        size //= 2


def run_alone(case: Case, table: pa.Table) -> tuple[Result, pa.Table]:
    """Run a case on a table, and return its result and the table as it is served."""
    with serve(table, case.seed // CASES_PER_TABLE, [case.source]) as served:
        (expected,) = served.select([case])
        return served.run(case, expected), served.tables[case.source]


def report(problems: list[Problem], counts: Counter[str]) -> str:
    """Describe failures, the first ones of different kinds in a smaller form."""
    chosen: dict[tuple[str, ...], Problem] = {}
    for problem in problems:
        found = problem.result.found
        reason = re.sub(r"'[^']*'|\d+", "", found)[:60] if isinstance(found, str) else ""
        key = (problem.result.outcome, reason)
        chosen.setdefault(key, problem)
    rest = [problem for problem in problems if problem not in chosen.values()]
    first = [*chosen.values(), *rest][:_SHRUNK]
    shrunk = [Shrinker(problem).run().describe() for problem in first]
    seeds = ", ".join(str(problem.case.seed) for problem in problems[:50])
    return "\n\n".join([f"{dict(counts)}", *shrunk, f"seeds that fail: {seeds}"])


# --- tests -------------------------------------------------------------------------------------


def _check(seeds: Sequence[int]) -> None:
    counts: Counter[str] = Counter()
    problems: list[Problem] = []
    for case, result, table in run_cases(seeds):
        counts[result.outcome] += 1
        if result.fails:
            problems.append(Problem(case, result, table))
    if problems:
        pytest.fail(report(problems, counts), pytrace=False)


def _divide(cases: int, groups: int, first: int = 0) -> list[range]:
    """Return the seeds of each group. Groups share no table."""
    tables = -(-cases // CASES_PER_TABLE)
    limits = [
        first + min(tables * number // groups * CASES_PER_TABLE, cases)
        for number in range(groups + 1)
    ]
    return [range(*pair) for pair in pairwise(limits)]


SEED = os.environ.get("FILTER_SEED")
CASE_GROUPS = [range(int(SEED), int(SEED) + 1)] if SEED else _divide(CASES, GROUPS)
_QUICK_GROUPS = 1


_LEVELS = (pytest.mark.slow, (pytest.mark.slow, pytest.mark.long))


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(seeds, marks=_LEVELS[index > _QUICK_GROUPS] if index >= _QUICK_GROUPS else ())
        for index, seeds in enumerate(CASE_GROUPS)
    ],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_filters_select_the_rows_that_duckdb_selects(seeds: range) -> None:
    _check(seeds)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "seeds", _divide(LONG_CASES, LONG_GROUPS, 10_000), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
def test_many_filters_select_the_rows_that_duckdb_selects(
    seeds: range, request: pytest.FixtureRequest
) -> None:
    scale: Any = request.config.getoption("--scale")
    _check(seeds[: max(1, round(len(seeds) * scale))])


def test_python_and_duckdb_agree() -> None:
    """The two halves of the oracle give the same rows, and DuckDB decides most leaves."""
    leaves: Counter[str] = Counter()
    for number in range(1000, 1004):
        columns = list_columns(draw_table(number))
        oracle = Oracle()
        oracle.add_table("t", columns)
        drawn: list[tuple[Any, str]] = []
        for seed in range(60):
            rng = random.Random(f"agreement {number} {seed}")
            style = rng.choice(STYLES)
            condition = draw_condition(rng, columns, style)
            if "rows" in permitted_outcomes(condition, columns, style):
                drawn.append((condition, style))
        for (condition, style), found in zip(drawn, oracle.select("t", drawn), strict=True):
            values = evaluate(condition, columns, style)
            assert found == [row for row, value in enumerate(values) if value], condition
        leaves.update(oracle.leaves)
        oracle.close()
    assert leaves["duckdb"] > 3 * leaves["python"]
