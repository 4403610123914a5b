"""All data that leaves splitarrow comes back equal, or is refused by name.

Every table of `make_examples` takes every way out. The file is read by splitarrow, and by a reader
that shares no code with it: DuckDB, polars or vortex-data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.package import ROOT
from helpers.round_trips import (
    SINKS,
    WAYS,
    RefusedError,
    Site,
    Write,
    judge,
    list_values,
    make_examples,
    open_site,
)

EXAMPLES = make_examples()
EQUAL = ("yes", "other type", "as text")
FEW = ("uint64 with extremes", "dictionary of views", "two columns, two batches", "0 columns")


def find_wrong(site: Site, write: Write, names: Iterable[str]) -> dict[str, str]:
    """Return what is wrong with the tables that do not come back equal, and are not refused."""
    wrong: dict[str, str] = {}
    for name in names:
        table = site.tables[name]
        try:
            path = write(site, name)
        except RefusedError as error:
            if "cannot store" not in str(error):
                wrong[name] = f"refused without a reason: {error}"
            continue
        except Exception as error:
            wrong[name] = repr(error)
            continue
        outcome = judge(name, table, path)
        if outcome not in (*EQUAL, "refused"):
            wrong[name] = outcome
    return wrong


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round trips")


@pytest.fixture(scope="module")
def few(folder: Path) -> Iterator[Site]:
    """A server of a few tables."""
    with open_site(folder, {name: EXAMPLES[name] for name in FEW}) as site:
        yield site


@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_keeps_or_refuses_every_table(tmp_path: Path, sink: str) -> None:
    site = Site(tmp_path, EXAMPLES, {}, {}, None, None)
    assert find_wrong(site, SINKS[sink], list(EXAMPLES)[::2]) == {}


def test_every_way_out_keeps_or_refuses_a_few_tables(few: Site) -> None:
    found = {way: find_wrong(few, write, FEW) for way, write in WAYS.items()}
    assert {way: wrong for way, wrong in found.items() if wrong} == {}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_way_out_keeps_or_refuses_every_table(tmp_path: Path, way: str) -> None:
    with open_site(tmp_path, EXAMPLES) as site:
        assert find_wrong(site, WAYS[way], EXAMPLES) == {}


def test_the_page_states_the_number_of_combinations() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    stated = (
        f"{len(EXAMPLES)} tables by {len(WAYS)} ways, {len(EXAMPLES) * len(WAYS):,} combinations"
    )
    assert stated in text, stated


def test_values_differ_where_python_calls_them_equal() -> None:
    floats = pa.array([0.0, -0.0, float("nan"), 2.0**53])
    assert list_values(floats) == ["0.0", "-0.0", "nan", "9007199254740992.0"]
    sliced = pa.array([[1], None, [2, 3]], pa.list_(pa.int8())).slice(1)
    assert list_values(sliced) == [None, [2, 3]]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int16()), pa.array(["a", None]))
    assert list_values(runs.slice(1, 3)) == ["a", None, None]
